"""Answers and plans as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import _riffle


@dataclass(frozen=True)
class TokenProbability:
    """Probability of a token, before temperature, penalties and biases."""

    token: int
    log_probability: float
    likeliest: tuple[tuple[int, float], ...]
    """The likeliest alternatives with the logarithms of their probabilities, in descending order."""


@dataclass(frozen=True)
class Generation:
    """An answer. `str(generation)` is its text."""

    text: str
    tokens: list[int]
    """The drawn tokens, including the token that ended the text."""
    stop_reason: str
    """`end_of_text`, `stop_string`, `max_tokens`, `context_full` or `interrupted`."""
    stop: str | None
    """The stop string that ended it."""
    prompt_tokens: int
    reused_tokens: int
    """Number of reused prompt tokens."""
    drafted_tokens: int
    accepted_tokens: int
    read_s: float
    """Seconds of reading the prompt."""
    answered_s: float
    """Seconds of writing the answer."""
    probabilities: list[TokenProbability] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Generation:
        found = [TokenProbability(token, value, tuple(most)) for token, value, most in fields.pop("probabilities")]
        return cls(probabilities=found, **fields)


class Plan:
    """Memory of a run by part, before anything is allocated. `plan["weights_bytes"]` reads a part."""

    def __init__(self, parts: dict[str, Any]):
        self._parts = parts

    def __getitem__(self, part: str) -> Any:
        return self._parts[part]

    def __getattr__(self, part: str) -> Any:
        try:
            return self.__dict__["_parts"][part]
        except KeyError:
            raise AttributeError(f"the plan has no part {part!r}; it has {', '.join(self.keys())}") from None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def keys(self) -> list[str]:
        """Names of its parts."""
        return list(self.__dict__["_parts"])

    @property
    def fits(self) -> bool:
        """True if the run fits memory and tiers."""
        return bool(self._parts["fits"])

    def __repr__(self) -> str:
        parts = self._parts
        sizes = ", ".join(
            f"{name} {parts[f'{name}_bytes'] / 2**20:.0f} MiB" for name in ("weights", "kv", "scratch", "total")
        )
        verdict = "fits" if self.fits else f"does not fit: {parts['advice']}"
        return f"Plan({parts['context_tokens']} tokens; {sizes}; {verdict})"


class Stream:
    """A streamed answer: an iterator of pieces of text, also for `async for`.

    Leaving the loop early and `close()` stop the answer at its next token; what was written stays in the session.
    """

    def __init__(self, native: _riffle.Stream):
        self._native = native

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        return next(self._native)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> str:
        import asyncio

        piece = await asyncio.to_thread(next, self._native, None)
        if piece is None:
            raise StopAsyncIteration
        return piece

    def close(self) -> None:
        """Stops the answer before its next token."""
        self._native.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return self._native.__reduce__()

    @property
    def generation(self) -> Generation | None:
        """The whole answer; `None` before its end."""
        fields = self._native.generation()
        return None if fields is None else Generation._of(fields)

    def read(self) -> Generation:
        """Waits for the rest of the answer."""
        for _ in self:
            pass
        generation = self.generation
        assert generation is not None, "a stream that ended without an exception has an answer"
        return generation
