"""Measures the quality of policies: needles, RULER's tasks, comparisons, and records of the `riffle` command.

Every function returns a frame of pandas: `pip install riffle[evaluation]`.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _riffle
from ._engine import Engine, Progress

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KINDS", "PLACES", "RULER_TASKS", "Record", "compare", "load_record", "load_records", "needle", "ruler", "ruler_prompt"]

RULER_TASKS, KINDS, PLACES = _riffle.task_names()
"""Names of RULER's tasks, of kinds of needles, and of places where they are asked for."""


def needle(
    engine: Engine,
    text: str,
    *,
    lengths: Sequence[int],
    depths: int = 10,
    kinds: Sequence[str] = ("multi-key",),
    places: Sequence[str] = ("late",),
    documents: int = 1,
    seed: int = 1,
    compress: str | None = None,
    wording: str = "auto",
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Facts hidden at even depths in a text: one row a question, with `expected`, `answered` and `correct`. `compress` such as
    `echo:0.3` compresses a document before late questions come."""
    tasks = _tasks(
        text, lengths=lengths, depths=depths, kinds=kinds, places=places, samples=documents, seed=seed, compress=compress,
        wording=wording,
    )  # fmt: skip
    return _frame(_riffle.run_needle(engine._native, tasks, progress))


def ruler(
    engine: Engine,
    text: str,
    *,
    tasks: Sequence[str] = tuple(RULER_TASKS),
    lengths: Sequence[int],
    samples: int = 10,
    seed: int = 1,
    late: bool = False,
    wording: str = "auto",
    progress: Progress | None = None,
) -> pd.DataFrame:
    """RULER's tasks made from a text: one row a prompt, with a `score` from 0 to 1. With `late` the question is read token by
    token, under the decode policy."""
    given = _tasks(text, tasks=tasks, lengths=lengths, samples=samples, seed=seed, late=late, wording=wording)
    return _frame(_riffle.run_ruler(engine._native, given, progress))


def ruler_prompt(
    engine: Engine, text: str, task: str, tokens: int, *, seed: int = 1, wording: str = "auto"
) -> tuple[str, list[str]]:
    """A prompt of a task of RULER and what is expected of its answer, to ask another program."""
    given = _tasks(text, lengths=[tokens], seed=seed, wording=wording)
    return _riffle.ruler_prompt(engine._native, given, task, tokens)


def compare(
    engine: Engine,
    text: str,
    *,
    policies: Sequence[str],
    tasks: Sequence[str] = ("needle:multi-key:late",),
    lengths: Sequence[int],
    samples: int = 1,
    depths: int = 10,
    seed: int = 1,
    budget: float | None = None,
    shares: bool = True,
    wording: str = "auto",
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Policies on the same prompts, beside dense attention: one row a policy, task and length. Policies are spelled `POLICY`,
    `prefill=POLICY` or `decode=POLICY`; those of the laboratory (`random`, `oracle-top-k`, `oracle-top-p`) and registered ones are
    known. `budget` is the share of the pairs that each is fitted to read; `shares` reads once what prompts begin with alike."""
    given = _tasks(
        text, policies=policies, tasks=tasks, lengths=lengths, samples=samples, depths=depths, seed=seed, budget=budget,
        shares=shares, wording=wording,
    )  # fmt: skip
    return _frame(_riffle.run_compare(engine._native, given, progress))


class Record:
    """A measurement that `riffle eval` or `riffle bench` wrote with `--out`."""

    def __init__(self, header: dict[str, Any], rows: pd.DataFrame):
        self.header = header
        """Name, command, model, machine and time."""
        self.rows = rows
        """The results."""

    @property
    def name(self) -> str:
        """Its file's name without `.json`."""
        return str(self.header["name"])

    @property
    def kind(self) -> str:
        """Kind of the measurement: `needle`, `ruler`, `comparison`, `context` and others."""
        return str(self.header["kind"])

    def __repr__(self) -> str:
        return f"Record({self.name!r}, {self.kind}, {len(self.rows)} rows)"

    def plot(self, x: str | None = None, y: str | None = None, by: str | None = None, axes: Any = None) -> Any:
        """Draws a column over another, a line for each value of a third. Kinds of records have columns of their own that are drawn
        where none are named. Returns the axes of matplotlib."""
        own = _PLOTS.get(self.kind, (None, None, None))
        x, y, by = x or own[0], y or own[1], by or own[2]
        if x is None or y is None:
            raise ValueError(f"name the columns of a record of kind {self.kind}: there are {', '.join(self.rows.columns)}")
        missing = [column for column in (x, y, by) if column is not None and column not in self.rows.columns]
        if missing:
            raise ValueError(f"{self!r} has no column {missing[0]!r}; there are {', '.join(self.rows.columns)}")
        if axes is None:
            import matplotlib.pyplot as plt

            _, axes = plt.subplots(layout="constrained")
        groups = [(None, self.rows)] if by is None else self.rows.groupby(by, sort=False)
        for name, rows in groups:
            means = rows.groupby(x)[y].mean()
            axes.plot(means.index, means.values, marker="o", label=None if name is None else str(name))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_title(self.name)
        if by is not None:
            axes.legend(title=by)
        return axes


_PLOTS = {
    "needle": ("depth", "correct", "context_tokens"),
    "ruler": ("context_tokens", "score", "task"),
    "comparison": ("density", "score", "policy"),
    "perplexity": ("from_position", "perplexity", "prefill"),
}


def load_record(path: str | os.PathLike[str]) -> Record:
    """Reads one record."""
    header, rows = _riffle.read_record(os.fspath(path))
    frame = _frame(rows)
    if "score.mean" in frame.columns and "score" not in frame.columns:
        frame["score"] = frame["score.mean"]
    return Record(json.loads(header), frame)


def load_records(folder: str | os.PathLike[str]) -> list[Record]:
    """Reads every record of a folder, by name."""
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no records there (*.json): riffle eval and riffle bench write them with --out")
    return [load_record(path) for path in paths]


def _tasks(text: str, **given: Any) -> dict[str, Any]:
    tasks: dict[str, Any] = {
        "text": text,
        "wording": "auto",
        "lengths": [],
        "samples": 1,
        "depths": 10,
        "seed": 1,
        "tasks": [],
        "kinds": [],
        "places": [],
        "late": False,
        "compress": None,
        "policies": [],
        "budget": None,
        "shares": True,
        **given,
    }
    for name in ("lengths", "tasks", "kinds", "places"):
        tasks[name] = list(tasks[name])
    tasks["policies"] = [_choice(policy) for policy in tasks["policies"]]
    return tasks


def _choice(policy: str) -> tuple[bool | None, str]:
    for phase, is_prefill in (("prefill=", True), ("decode=", False)):
        if policy.startswith(phase):
            return is_prefill, policy[len(phase) :]
    return None, policy


def _frame(rows: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(io.StringIO(rows))
