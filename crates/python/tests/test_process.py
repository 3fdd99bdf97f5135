"""Processes, threads and signals."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import MODEL, TEXT

import riffle
from riffle import errors


def test_the_lock_of_the_interpreter_is_free_in_long_calls(engine, text):
    session = engine.session()
    ticks = 0
    over = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not over.is_set():
            ticks += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    began = time.monotonic()
    session.prefill(text[:9000])
    elapsed = time.monotonic() - began
    over.set()
    counter.join()
    # A call that kept the lock would have let it tick once or twice.
    assert ticks > 20 * elapsed, (ticks, elapsed)


def test_one_session_serves_one_thread_at_a_time(engine, text):
    session = engine.session()
    errors_seen: list[Exception] = []

    def inside(done: float, total: int) -> None:
        try:
            len(session)
        except errors.SessionError as error:
            errors_seen.append(error)

    session.prefill(text[:9000], progress=inside)
    assert errors_seen and "in use" in str(errors_seen[0])
    assert len(session) > 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no Ctrl-C to another process alone")
def test_ctrl_c_ends_a_long_call():
    program = f"""
import signal, sys, riffle
# A child of a program in the background begins with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
engine = riffle.Engine({str(MODEL)!r}, context=131072)
text = open({str(TEXT)!r}).read() * 2
session = engine.session()
print("ready", flush=True)
try:
    session.prefill(text)
except KeyboardInterrupt:
    print("interrupted", len(session) >= 0, flush=True)
    print(engine.generate("And", max_tokens=2).stop_reason, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    found, _ = child.communicate(timeout=60)
    assert found == "interrupted True\nmax_tokens\n" and child.returncode == 0
    assert time.monotonic() - began < 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore")
def test_a_forked_child_is_told_to_load_the_model_itself(engine):
    session = engine.session()
    session.prefill("And the")
    cache = riffle.PagedCache(layers=1, heads=1, kv_heads=1, head_dim=16)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (
            lambda: engine.generate("And"),
            lambda: session.generate(max_tokens=1),
            lambda: cache.tokens(),
        ):
            try:
                call()
                said.append("nothing")
            except errors.ProcessError:
                said.append("told")
        # Calls on arrays get threads of the child's own.
        x = np.ones((1, 2, 16), np.float32)
        said.append(str(float(riffle.attend(x, x, x)[0, 0, 0])))
        fresh = riffle.Engine(MODEL, context=64, threads=1)
        said.append(fresh.generate("And", max_tokens=1).stop_reason)
        os.write(writer, " ".join(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    assert found == "told told told 1.0 max_tokens"


def test_what_holds_memory_cannot_be_pickled(engine):
    session = engine.session()
    session.prefill("And")
    stream = session.fork().stream(max_tokens=1)
    cache = riffle.PagedCache(layers=1, heads=1, kv_heads=1, head_dim=16)
    for thing in (engine, session, stream, cache, engine._native, session._native):
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="pickle"):
                copied(thing)


def test_what_is_data_can_be_pickled(engine):
    answer = engine.generate("And", max_tokens=2, probabilities=1)
    selection = riffle.selection([(0, 4), (9, 12)], row_window=3, diagonals=[7], row_extras=[[1, 5]], first_row=20)
    plan = engine.plan
    for thing in (answer, selection):
        assert pickle.loads(pickle.dumps(thing)) == thing
        assert copy.deepcopy(thing) == thing
    assert pickle.loads(pickle.dumps(plan)).total_bytes == plan.total_bytes


def test_threads_are_counted_and_set():
    before = riffle.threads()
    riffle.set_threads(1)
    assert riffle.threads() == 1
    riffle.set_threads(before)
    for count in (0, 100_000):
        with pytest.raises(errors.OptionError):
            riffle.set_threads(count)
    with pytest.raises((TypeError, OverflowError)):
        riffle.set_threads(-1)


def test_several_threads_use_one_engine(engine, text):
    prompts = [text[at : at + 200] for at in range(0, 1600, 200)]
    expected = [engine.generate(prompt, max_tokens=6).tokens for prompt in prompts]
    found: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        found[number] = engine.generate(prompts[number], max_tokens=6).tokens

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(prompts))] == expected
