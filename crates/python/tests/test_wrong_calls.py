"""Wrong calls: exceptions, never a crash. RIFFLE_WRONG_CALLS sets how many; under valgrind or a sanitizer see docs/results/python.md."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from conftest import MODEL

import riffle
from riffle import errors

CALLS = int(os.environ.get("RIFFLE_WRONG_CALLS", "10000"))

# Taken before tests add policies of their own, which may raise what they like.
POLICIES = [policy.name for policy in riffle.policies()]

ALLOWED = (
    riffle.RiffleError,
    TypeError,
    ValueError,
    OverflowError,
    AttributeError,
    MemoryError,
    OSError,
    UnicodeError,
    KeyError,
    IndexError,
    BufferError,
)


class Wild:
    """Draws arguments that are often wrong."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.arrays = np.random.default_rng(seed)

    def thing(self) -> object:
        return self.random.choice(
            [
                None, True, -1, 0, 1, 3, 17, 2**31, 2**63, 2**64, -(2**70), 0.5, float("nan"), float("inf"), -0.0, "", "full",
                "quest", "streaming:sinks=4", "q8_0", "\0", "ü" * 3, "\ud800", b"bytes", [], [1, 2], [-1], [2**40], ["a"], {}, {"a": 1},
                (), (1, 2, 3), object(), int, Wild, range(3), np.float32(2), np.int64(-3), np.array(5), self.array(), self.selection(),
            ]
        )  # fmt: skip

    def array(self) -> object:
        shape = tuple(self.random.choice([0, 1, 2, 3, 5, 16, 17, 33]) for _ in range(self.random.choice([0, 1, 2, 3, 3, 3, 3, 4])))
        kind = self.random.choice(["f4", "f4", "f4", "f2", "f8", ">f4", "u2", "i4", "?", "c8", "U3", "O"])
        array = np.zeros(shape, kind) if kind in ("U3", "O") else (self.arrays.standard_normal(shape) * 3).astype(kind)
        change = self.random.randrange(9)
        if change == 0 and array.ndim:
            array = array[::-1]
        elif change == 1 and array.ndim == 3:
            array = array.transpose(2, 0, 1)
        elif change == 2 and array.ndim:
            array = np.broadcast_to(array[:1], array.shape)
        elif change == 3 and array.ndim == 3:
            array = array[:, :, ::2]
        elif change == 4:
            array.flags.writeable = False
        elif change == 5 and kind == "f4" and array.size:
            array = array.copy()
            array.flat[0] = self.random.choice([np.nan, np.inf, -np.inf, 1e38])
        elif change == 6 and array.ndim == 3 and kind == "f4":
            whole = np.zeros(array.nbytes + 1, np.uint8)
            array = np.frombuffer(whole.data, np.float32, array.size, 1).reshape(array.shape)
        return array

    def right_arrays(self) -> list[np.ndarray]:
        heads, kv_heads = self.random.choice([(1, 1), (2, 1), (4, 2), (3, 3)])
        width, rows, tokens = self.random.choice([1, 8, 16, 20, 64]), self.random.choice([1, 2, 9]), self.random.choice([9, 33, 300])
        shapes = [(heads, rows, width), (kv_heads, tokens, width), (kv_heads, tokens, width)]
        arrays = [self.arrays.standard_normal(shape).astype(np.float32) for shape in shapes]
        if self.random.random() < 0.7:
            arrays[self.random.randrange(3)] = self.array()
        return arrays

    def selection(self) -> object:
        small = lambda: self.random.choice([0, 1, 2, 5, 40, 400])  # noqa: E731
        try:
            return riffle.selection(
                [(small(), small()) for _ in range(self.random.randrange(3))],
                row_window=small(),
                diagonals=[small() for _ in range(self.random.randrange(3))],
                row_extras=[[small()], [], [small(), small()]][: self.random.randrange(4)],
                first_row=small(),
                summaries=[(small(), small())][: self.random.randrange(2)],
            )
        except errors.OptionError:
            return riffle.selection(row_window=3)

    def options(self, names: tuple[str, ...]) -> dict[str, object]:
        return {name: self.thing() for name in self.random.sample(names, self.random.randrange(min(4, len(names))))}


def calls(wild: Wild, engine: riffle.Engine, session: riffle.Session, cache: riffle.PagedCache):
    """A call drawn from everything there is."""
    from riffle import _riffle
    from riffle._engine import _ANSWER, _ENGINE

    thing, draw = wild.thing, wild.random
    attend_options = ("start", "scale", "soft_cap", "causal", "log_sum_exp", "selection")
    cache_options = ("kv_type", "prefill", "decode", "page_tokens", "chunk_tokens", "context", "kv_ram", "attention", "audit")
    small_engine = {name: value for name, value in wild.options(tuple(_ENGINE)).items() if name not in ("kv_disk", "profile")}
    answer = {**wild.options(tuple(_ANSWER)), "max_tokens": draw.choice([0, 1, 2, 3])}
    selection = wild.selection()
    made = draw.choice([session, riffle.Session.__new__(riffle.Session), engine, None, thing()])
    return draw.choice(
        [
            lambda: riffle.attend(*wild.right_arrays(), **wild.options(attend_options)),
            lambda: riffle.attend(*wild.right_arrays(), selection),
            lambda: riffle.attend(wild.array(), wild.array(), wild.array(), selection),
            lambda: riffle.attend(thing(), thing(), thing(), thing()),
            lambda: riffle.reference(*wild.right_arrays(), selection),
            lambda: riffle.select(thing(), *wild.right_arrays()[:2], **wild.options(("phase", "layer", "layers", "start"))),
            lambda: riffle.select(draw.choice(POLICIES), *wild.right_arrays()[:2]),
            lambda: riffle.selection(thing(), row_window=thing(), diagonals=thing(), row_extras=thing(), summaries=thing()),
            lambda: riffle.Selection(thing()),
            lambda: selection.mask(*[draw.choice([0, 1, 7, 2**33, -1, None]) for _ in range(3)]),
            lambda: selection.reads(draw.choice([0, 5, 2**31]), draw.choice([0, 3, 2**20])),
            lambda: selection.contains(thing(), thing()),
            lambda: selection.row_extras(thing()),
            lambda: riffle.PagedCache(layers=thing(), heads=thing(), kv_heads=thing(), head_dim=thing(), **wild.options(cache_options)),
            lambda: riffle.PagedCache(layers=2, heads=4, kv_heads=2, head_dim=16, **wild.options(cache_options)).attend(*wild.right_arrays()),
            lambda: cache.attend(*wild.right_arrays(), **wild.options(("layer", "phase", "scale", "soft_cap", "window"))),
            lambda: cache.append(wild.array(), wild.array(), layer=draw.choice([0, 1, 2, -1])),
            lambda: cache.truncate(draw.choice([0, 1, 5, thing()])),
            lambda: cache.tokens(thing()),
            lambda: engine.generate(thing(), **answer),
            lambda: engine.batch(thing(), **answer),
            lambda: engine.batch([thing(), [5, 6]], **answer),
            lambda: engine.generate([draw.randrange(2500) for _ in range(draw.randrange(6))], **answer),
            lambda: engine.encode(thing()),
            lambda: engine.decode(thing()),
            lambda: engine.logits(thing(), first=thing()),
            lambda: engine.render(thing()),
            lambda: engine.chat(thing(), session=made),
            lambda: engine.restore(draw.choice(["/no/such", str(MODEL), str(MODEL / "config.json"), thing()])),
            lambda: engine.with_options(**{**small_engine, "context": draw.choice([16, 64, thing()])}),
            lambda: riffle.plan(MODEL, **small_engine),
            lambda: riffle.plan(thing()),
            lambda: session.prefill(thing()),
            lambda: session.log_probabilities(thing(), first=thing()),
            lambda: session.truncate(draw.choice([0, 1, 3, thing()])),
            lambda: session.advance(thing()),
            lambda: session.generate(draw.choice([None, thing()]), **answer),
            lambda: list(session.stream(thing(), **answer)),
            lambda: session.compress(thing(), method=thing()),
            lambda: session.save(draw.choice(["/no/such/folder/x", "/", thing()])) if draw.random() < 0.1 else None,
            lambda: made.tokens,
            lambda: riffle.register(thing(), thing()),
            lambda: riffle.parse_policy(thing()),
            lambda: riffle.set_threads(draw.choice([0, -1, 10**6, None, "x"])),
            lambda: _riffle.attend(thing(), thing(), thing(), thing()),
            lambda: _riffle.PagedCache(thing()),
            lambda: _riffle.Engine(thing(), thing(), thing()),
            lambda: _riffle.read_record(thing()),
            lambda: _riffle.run_needle(thing(), thing()),
        ]
    )


@pytest.mark.filterwarnings("ignore")
def test_wrong_calls_raise_exceptions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engine = riffle.Engine(MODEL, context=64, threads=1)
    session = engine.session()
    cache = riffle.PagedCache(layers=2, heads=4, kv_heads=2, head_dim=16, audit=True)
    raised: dict[str, int] = {}
    for seed in range(CALLS):
        wild = Wild(seed)
        try:
            calls(wild, engine, session, cache)()
            name = "nothing"
        except ALLOWED as error:
            name = type(error).__name__
            assert not isinstance(error, errors.InternalError), (seed, error)
        raised[name] = raised.get(name, 0) + 1
        if seed % 50 == 49:
            session.truncate(0)
            cache.truncate(0)
    assert raised["nothing"] < CALLS * 0.8 and len(raised) > 5, raised
    # Right calls must work as before.
    assert engine.generate("And", max_tokens=2).tokens == riffle.Engine(MODEL, context=64).generate("And", max_tokens=2).tokens
