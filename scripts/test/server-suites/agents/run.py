#!/usr/bin/env python3
"""Runs real clients against a server, each with a call of a tool and a second turn, and prints a table of what works.

usage: scripts/test/server-suites/agents/run.py FOLDER [NAME]...

The server at RIFFLE_URL runs the shipped model, which cannot use tools: a proxy adds to each request the form of the answer that is
due. AGENTS is the versions to take: "pinned" (those of versions.json), "newest" or "both" [default: pinned]. NAME is the beginning of
a client's name; without one the table of all is written. FOLDER gets the packages, what each run printed, its requests and the table.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import play as plays
import install
from programs import PROGRAMS, Place
from stand_in import StandIn

LIMIT = 300
TEXTS = ("NOTES", "FIRST_TURN", "SECOND_TURN", "FORM_TURN", "FIRST_ANSWER", "SECOND_ANSWER")
# The clients may reach nothing but the server: other requests go to a port where nothing listens.
NOWHERE = "http://127.0.0.1:9"


def environment(place, node):
    return {
        "PATH": f"{node}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(place.home),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        **{name: NOWHERE for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")},
        **{name: "127.0.0.1,localhost" for name in ("NO_PROXY", "no_proxy")},
        "RIFFLE_URL": place.url,
        "RIFFLE_MODEL_NAME": place.model,
        **{name: getattr(plays, name) for name in TEXTS},
    }


def run(program, which, suites):
    """Runs a client; gives its row of the table."""
    package, version = install.install(program.package, which, suites)
    folder = suites / "runs" / which / re.sub(r"\W+", "-", program.name)
    shutil.rmtree(folder, ignore_errors=True)
    place = Place(folder / "home", folder / "work", package, "", os.environ["RIFFLE_MODEL_NAME"])
    place.home.mkdir(parents=True)
    place.work.mkdir()
    (place.work / "notes.txt").write_text(plays.NOTES)
    subprocess.run(["git", "init", "-q"], cwd=place.work, check=True)
    stand_in = StandIn(os.environ["RIFFLE_URL"], program.play, folder / "requests")
    place.url = stand_in.url
    node = install.node_folder(suites)
    variables, steps = program.steps(place)
    failure, printed, start = None, "", time.monotonic()
    with open(folder / "printed", "w") as log:
        for step in steps:
            command = step() if callable(step) else step
            log.write(f"$ {' '.join(map(str, command))}\n")
            log.flush()
            try:
                done = subprocess.run(
                    list(map(str, command)),
                    **{"cwd": place.work, "env": {**environment(place, node), **variables}, "timeout": LIMIT, "text": True},
                    **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
                )
            except subprocess.TimeoutExpired:
                failure = f"no end within {LIMIT} s"
                break
            log.write(done.stdout)
            printed += done.stdout
            if done.returncode:
                failure = f"ended with {done.returncode}"
                break
    stand_in.close()
    end_leftovers(place.home)
    called, again, failure = judge(program, stand_in, printed, place, failure)
    seconds = f"{time.monotonic() - start:.0f} s"
    return [program.name, version, program.shape, called, again, read_before(stand_in), failure or "works", seconds]


def end_leftovers(home):
    """Ends what a client left running: the processes that have its home."""
    mark = f"HOME={home}".encode()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGTERM)
        except OSError:
            pass


def judge(program, stand_in, printed, place, failure):
    """Words for the table: the tool ran, the second turn was answered, and the failure, if any."""
    if stand_in.refused():
        failure = f"refused: {stand_in.refused()[0]['answer'][:300]}"
    answers = [one["due"] for one in stand_in.kept if one["due"]]
    if not answers:
        return "no", "no", failure or "asked nothing"
    called = {
        "call": plays.FIRST_ANSWER in answers,
        "edit": "It was read." in (place.work / "notes.txt").read_text(),
        "form": True,
        "text": True,
    }[program.shows]
    again = plays.SECOND_ANSWER in answers if program.shows != "form" else len(answers) > 1
    if not failure and not called:
        failure = "the tool did not run"
    if not failure and not again:
        failure = "no second turn"
    if not failure and program.package in PRINTING and plays.SECOND_ANSWER not in printed:
        failure = "it did not show the answer"
    return {True: "yes" if program.shows == "call" else program.shows, False: "no"}[called], "yes" if again else "no", failure


def read_before(stand_in):
    """Tokens of the second turn's prompt, and the share of them that the server had read before."""
    last = [one["answer"] for one in stand_in.kept if one["due"] == plays.SECOND_ANSWER]
    if not last:
        return "–"
    counts = {name: int(number) for name, number in re.findall(r'"(\w+)":\s*(\d+)', last[-1])}
    cached = counts.get("cache_read_input_tokens", counts.get("cached_tokens"))
    prompt = counts.get("prompt_tokens", counts.get("input_tokens"))
    if cached is None or prompt is None:
        return "–"
    prompt += cached if "cache_read_input_tokens" in counts else 0
    return f"{100 * cached / prompt:.1f}% of {prompt}"


# These print the answers that they get; the others compare answers themselves.
PRINTING = {"claude-code", "codex", "opencode", "pi", "continue", "cline", "aider"}


def table(rows):
    head = ["client", "version", "shape", "tool call", "second turn", "of its prompt read before", "result"]
    lines = [head, ["---"] * len(head), *(row[: len(head)] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(folder, *names):
    suites = pathlib.Path(folder).resolve()
    asked, failed = os.environ.get("AGENTS", "pinned"), 0
    for which in ("pinned", "newest") if asked == "both" else (asked,):
        rows = []
        for program in PROGRAMS:
            if names and not program.name.startswith(names):
                continue
            rows.append(run(program, which, suites))
            print(" | ".join(rows[-1]), flush=True)
        failed += sum(row[6] != "works" for row in rows)
        if not names:
            (suites / f"table-{which}.md").write_text(table(rows))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
