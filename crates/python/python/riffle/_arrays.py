"""Kernels on arrays of numpy, torch and others that speak DLPack."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from . import _riffle
from ._riffle import Selection
from .errors import ArrayError

Array = Any
"""An array of numpy, or of a library that speaks DLPack, such as torch: float32, float16 or bfloat16, in main memory."""

Reads = Union[Selection, Sequence[Selection], None]
"""One selection for all KV heads, one for each of them, or everything."""


def selection(
    spans: Sequence[tuple[int, int]] = (),
    *,
    row_window: int = 0,
    diagonals: Sequence[int] = (),
    row_extras: Sequence[Sequence[int]] = (),
    first_row: int = 0,
    summaries: Sequence[tuple[int, int]] = (),
    summarizes_parts: bool = False,
) -> Selection:
    """A selection: query `i` reads the spans, its latest `row_window` tokens, the tokens at the distances of `diagonals` before it,
    and `row_extras[i - first_row]`. A query that reads no token of a block of `summaries` reads the mean of the
    block. With `summarizes_parts`, the mean of a block also replaces the unread tokens where the query reads some of them."""
    return Selection(
        {
            "spans": [tuple(span) for span in spans],
            "row_window": row_window,
            "diagonals": list(diagonals),
            "extras_start": first_row,
            "extras": [list(row) for row in row_extras],
            "summaries": [tuple(block) for block in summaries],
            "summarizes_parts": summarizes_parts,
        }
    )


def attend(
    queries: Array,
    keys: Array,
    values: Array,
    selection: Reads | str = None,
    *,
    start: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    causal: bool = True,
    log_sum_exp: bool = False,
) -> Any:
    """Attention of queries `[heads, rows, width]` to keys and values `[kv_heads, tokens, width]` under a selection, or the name of a
    policy. Every KV head serves `heads / kv_heads` query heads.

    The first query stands at position `start`, the last one at the last key where it is not given. The result has the shape and
    the library of the queries, in float32; with `log_sum_exp` it comes with those of the logits, `[heads, rows]`.
    """
    q, k, v = native(queries, "queries"), native(keys, "keys"), native(values, "values")
    if isinstance(selection, str):
        selection = select(selection, q, k, start=start, scale=scale, soft_cap=soft_cap)
    output, sums = _riffle.attend(q, k, v, _call(selection, start, scale, soft_cap, causal))
    output = like(queries, output)
    return (output, like(queries, sums)) if log_sum_exp else output


@dataclass(frozen=True)
class Reference:
    """Computes the reference in float64."""

    output: np.ndarray
    """`[heads, rows, width]`"""
    log_sum_exp: np.ndarray
    """`[heads, rows]`"""
    mass: np.ndarray
    """Softmax mass that each key receives, summed over the queries of its KV head: `[kv_heads, tokens]`."""


def reference(
    queries: Array,
    keys: Array,
    values: Array,
    selection: Reads = None,
    *,
    start: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    causal: bool = True,
) -> Reference:
    """As `attend`, in float64, one pair of query and key at a time: slow, and the oracle of every kernel."""
    arrays = native(queries, "queries"), native(keys, "keys"), native(values, "values")
    return Reference(*_riffle.reference(*arrays, _call(selection, start, scale, soft_cap, causal)))


def select(
    policy: str,
    queries: Array,
    keys: Array,
    *,
    phase: str = "prefill",
    start: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    layer: int | None = None,
    layers: int = 64,
) -> list[Selection]:
    """Selects keys with a policy for these queries as one tile, by KV head. `layer` defaults to the last layer, because some
    policies read everything in the first layers."""
    if phase not in ("prefill", "decode"):
        raise ArrayError(f"phase is {phase!r}, but it must be 'prefill' or 'decode'")
    place = (phase == "prefill", layers - 1 if layer is None else layer, layers)
    call = _call(None, start, scale, soft_cap, True)
    return _riffle.select(native(queries, "queries"), native(keys, "keys"), call, policy, place)


@dataclass(frozen=True)
class AuditedQuery:
    """A query compared with exact attention."""

    layer: int
    kv_head: int
    head: int
    position: int
    kept_mass: float
    """Share of the exact softmax mass that was read."""
    read: list[tuple[int, int]]
    """Spans of positions that were read."""


class PagedCache:
    """Keys and values of one sequence in Riffle's pages, quantised and in tiers, with policies for prompts and for generated
    tokens. Each `attend` appends new rows to a layer and attends with their queries.

    `kv_disk` is a folder for the oldest pages behind `kv_ram` bytes of memory; it needs `context`, the most tokens. With `audit`
    sampled queries are compared with exact attention.
    """

    def __init__(
        self,
        *,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_type: str = "f16",
        prefill: str = "full",
        decode: str = "full",
        page_tokens: int | None = None,
        chunk_tokens: int | None = None,
        context: int | None = None,
        kv_ram: str | int | None = None,
        kv_disk: str | os.PathLike[str] | None = None,
        attention: str | None = None,
        audit: bool = False,
    ):
        options = {
            "layers": layers,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "kv_type": kv_type,
            "prefill": prefill,
            "decode": decode,
            "page_tokens": page_tokens,
            "chunk_tokens": chunk_tokens,
            "context": context,
            "kv_ram": None if kv_ram is None else str(kv_ram),
            "kv_disk": kv_disk,
            "attention": attention,
            "audit": audit,
        }
        self._native = _riffle.PagedCache(options)

    def attend(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        *,
        layer: int = 0,
        phase: str | None = None,
        scale: float | None = None,
        soft_cap: float | None = None,
        window: int | None = None,
    ) -> Any:
        """Appends keys and values `[kv_heads, tokens, head_dim]` to a layer and attends with queries `[heads, tokens, head_dim]`.
        The result has the queries' shape and library, in float32.

        One token is `decode` and several are `prefill` where no phase is given. A `window` is the most tokens that the layer
        looks back: no policy acts there, and pages behind it are freed.
        """
        arrays = [native(queries, "queries"), native(keys, "keys"), native(values, "values")]
        if phase not in (None, "prefill", "decode"):
            raise ArrayError(f"phase is {phase!r}, but it must be 'prefill' or 'decode'")
        is_prefill = arrays[0].ndim == 3 and arrays[0].shape[1] > 1 if phase is None else phase == "prefill"
        call = {"layer": layer, "is_prefill": is_prefill, "scale": scale, "soft_cap": soft_cap, "window": window}
        return like(queries, self._native.attend(arrays, call).transpose(1, 0, 2))

    def append(self, keys: Array, values: Array, *, layer: int = 0) -> None:
        """Appends keys and values `[kv_heads, tokens, head_dim]` to a layer without attention, such as a copy of another cache.
        Policies that learn from attention learn nothing from them."""
        self._native.append([native(keys, "keys"), native(values, "values")], layer)

    def tokens(self, layer: int = 0) -> int:
        """Tokens that a layer has read."""
        return self._native.tokens(layer)

    def truncate(self, tokens: int) -> None:
        """Forgets everything after the first `tokens` tokens."""
        self._native.truncate(tokens)

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens, pages, bytes in memory and on disk, and the share of pairs that was read."""
        return json.loads(self._native.usage())

    @property
    def audit(self) -> dict[str, Any] | None:
        """Shares of exact attention that the policies kept, if `audit` is on."""
        report = self._native.audit()
        return None if report is None else json.loads(report)

    def take_audited(self) -> list[AuditedQuery]:
        """The queries audited since the last call, with their kept mass and their selections."""
        return [AuditedQuery(*query) for query in self._native.take_audited()]

    def close(self) -> None:
        """Frees its pages."""
        self._native.close()

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._native.is_closed

    def __enter__(self) -> PagedCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return self._native.__reduce__()


def native(array: Array, name: str) -> np.ndarray:
    """An array as a numpy array, without a copy. Bits of bfloat16 become 16-bit integers for the kernels."""
    if isinstance(array, np.ndarray):
        if array.dtype == np.uint16:
            raise ArrayError(f"{name} has elements of type uint16, but they must be float32, float16 or bfloat16")
        if not array.flags.aligned:
            raise ArrayError(f"{name} has elements at odd addresses: copy it with numpy.array")
        return array
    if is_torch(array):
        import torch

        tensor = array.detach()
        if tensor.device.type != "cpu":
            raise ArrayError(f"{name} lies on {tensor.device}, but Riffle computes in main memory: move it by .cpu()")
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            raise ArrayError(f"{name} is no plain dense tensor: make it one by .to_dense() or .resolve_neg()")
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(np.uint16)
        return tensor.numpy()
    if not hasattr(array, "__dlpack__"):
        raise ArrayError(f"{name} is no array of numpy, nor one that speaks DLPack: {type(array).__name__}")
    try:
        found = np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArrayError(f"{name} cannot be read where it lies: {error}") from error
    return native(found, name)


def like(source: Array, array: np.ndarray) -> Any:
    """A result in the library of its source."""
    if is_torch(source):
        import torch

        return torch.from_numpy(array)
    return array


def is_torch(array: Any) -> bool:
    """True if it is a tensor of torch, which need not be installed."""
    return type(array).__module__.split(".")[0] == "torch" or hasattr(array, "untyped_storage")


def _call(
    selection: Reads, start: int | None, scale: float | None, soft_cap: float | None, causal: bool
) -> dict[str, Any]:
    if isinstance(selection, Selection):
        selection = [selection]
    return {
        "start": start,
        "scale": scale,
        "soft_cap": soft_cap,
        "causal": causal,
        "selections": None if selection is None else list(selection),
    }
