"""Policies: names with parameters, and policies written in Python."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _riffle
from ._riffle import Selection


@dataclass(frozen=True)
class PolicyInfo:
    """An entry of the catalogue of policies."""

    name: str
    source: str
    saves: str
    prefill: bool
    decode: bool
    parameters: tuple[tuple[str, str, str], ...]
    """Name, default and meaning of each parameter."""


@dataclass(frozen=True)
class SelectContext:
    """Context of a selection. Positions count from the first token that the KV head holds."""

    phase: str
    """`prefill` or `decode`."""
    layer: int
    layers: int
    kv_head: int
    start: int
    """Position of the first query."""
    rows: int
    """Queries that select together."""
    chunk_start: int
    """Position of the first query of the chunk."""
    tokens: int
    """Keys that may be read: all up to the end of the chunk."""
    total_tokens: int
    """Tokens at the end of the prompt, where it is known."""
    page_tokens: int
    scale: float
    """Factor on query times key."""
    soft_cap: float | None
    keys: np.ndarray | None
    """Keys `[tokens, head_dim]` where the policy reads them."""


class Policy(ABC):
    """A policy written in Python: slow, for research. `riffle.register` gives it a name that engines and arrays know.

    The same object selects for every layer and KV head, in any order. Two calls never run at the same time.
    """

    prefill: bool = True
    """True if it selects for prompts."""
    decode: bool = True
    """True if it selects for generated tokens."""
    reads_keys: bool = True
    """True to fill in `SelectContext.keys`, which copies the keys for every call."""
    follows_from_keys: bool = False
    """True if selections do not depend on earlier selections. Then answers may be drafted and beginnings shared."""

    @abstractmethod
    def select(self, queries: np.ndarray, context: SelectContext) -> Selection:
        """Selects the keys for the queries `[rows, group, head_dim]` from position `context.start` on."""


def register(name: str, policy: Policy) -> None:
    """Gives a policy a name. Engines that are loaded later may use it: `Engine(model, decode=name)`."""
    if not isinstance(policy, Policy):
        raise TypeError(f"{policy!r} is not a riffle.Policy: make it a subclass with a method select")
    traits = {
        "prefill": policy.prefill,
        "decode": policy.decode,
        "reads_keys": policy.reads_keys,
        "follows_from_keys": policy.follows_from_keys,
    }
    _riffle.register_policy(name, policy, traits)


def policies() -> list[PolicyInfo]:
    """Every policy that can be named, with its parameters."""

    def info(entry: dict[str, Any]) -> PolicyInfo:
        entry["parameters"] = tuple(tuple(parameter) for parameter in entry["parameters"] if parameter[0] != "object")
        return PolicyInfo(**entry)

    return [info(entry) for entry in json.loads(_riffle.policies())]
