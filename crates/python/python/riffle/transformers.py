"""Riffle's attention for models of the package `transformers`, on the CPU.

    from transformers import AutoModelForCausalLM
    import riffle.transformers

    model = AutoModelForCausalLM.from_pretrained("…")
    model.set_attn_implementation("riffle")
    cache = riffle.transformers.Cache(model, kv_type="q8_0", prefill="xattention", decode="quest")
    model.generate(**inputs, cache=cache)

Importing this module registers the attention and its mask under the name `riffle`. With a `Cache` of this module only new rows are
appended to Riffle's pages, and the policies choose what queries read. With another cache, or without one, attention is exact and reads
everything. What cannot be honoured (padding, batches, masks of other patterns, dropout, gradients) is refused with
`riffle.errors.UnsupportedError`.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, cache_utils

from . import _arrays
from ._arrays import AuditedQuery, PagedCache
from .errors import UnsupportedError

__all__ = ["AuditedQuery", "Cache", "CacheLayer", "NAME", "attention", "mask"]

NAME = "riffle"
"""The name of the attention."""

_waiting = threading.local()
"""The layer of a cache that was given rows last and has not attended with them yet."""

_MARK = "_riffle_layer"
"""The attribute of new keys that names their layer."""

_HONOURED_LAYERS = ("full_attention", "sliding_attention")


class CacheLayer(cache_utils.CacheLayerMixin):
    """One layer of a `Cache`: it hands its new rows to the attention, which appends them to Riffle's pages."""

    is_croppable = True
    supports_early_init = False

    def __init__(self, owner: Cache, number: int, window: int | None):
        super().__init__()
        self.owner = owner
        self.number = number
        """Its number among the layers that attend."""
        self.window = window
        self.is_sliding = window is not None
        self.tokens = 0
        self.waits = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the new rows alone; the attention appends them."""
        if self.waits:
            raise UnsupportedError(
                f"layer {self.number} was given rows twice without attention between: the model does not use the attention "
                f"{NAME!r} in every layer; call model.set_attn_implementation({NAME!r}) before"
            )
        if key_states.shape[0] != 1:
            raise UnsupportedError(_batches(key_states.shape[0]))
        self.is_initialized = True
        self.waits = True
        self.tokens += key_states.shape[-2]
        _waiting.layer = self
        setattr(key_states, _MARK, self)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.tokens + query_length, 0

    def get_seq_length(self) -> int:
        return self.tokens

    def get_max_length(self) -> int:
        return -1 if self.window is None else self.window

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the latest tokens; `-3` removes three."""
        if tokens_to_remove == 0:
            return
        self.owner.keep(self, self.tokens - abs(tokens_to_remove))

    def reset(self) -> None:
        self.owner.keep(self, 0)

    def offload(self) -> None:
        raise UnsupportedError("Riffle's pages lie in main memory and on disk (kv_ram, kv_disk): leave offloading out")

    def prefetch(self) -> None:
        self.offload()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        raise UnsupportedError("beam search needs several sequences in one cache, and Riffle's cache holds one: use sampling")

    def batch_repeat_interleave(self, repeats: int) -> None:
        if repeats != 1:
            raise UnsupportedError(_batches(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        raise UnsupportedError("a cache of Riffle holds one sequence, of which none can be selected")


class Cache(cache_utils.Cache):
    """A cache for `model(…, cache=cache)` and `model.generate(…, cache=cache)`, for one sequence.

    Its layers append only new rows to Riffle's pages. `prefill` and `decode` name the policies, `kv_type` the format of keys and
    values, `kv_ram` and `kv_disk` the tiers, as in `riffle.PagedCache`. Recurrent layers of hybrid models keep the state that
    transformers gives them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
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
        config: Any = getattr(model, "config", model)
        config = config.get_text_config(decoder=True)
        self._options: dict[str, Any] = {
            "kv_type": kv_type,
            "prefill": prefill,
            "decode": decode,
            "page_tokens": page_tokens,
            "chunk_tokens": chunk_tokens,
            "context": context,
            "kv_ram": kv_ram,
            "kv_disk": kv_disk,
            "attention": attention,
            "audit": audit,
        }
        # Wrong options are told here, not in the middle of a model.
        PagedCache(layers=1, heads=1, kv_heads=1, head_dim=16, **{**self._options, "kv_ram": None, "kv_disk": None}).close()
        self._shape: tuple[int, int, int] | None = None
        self._pages: PagedCache | None = None
        super().__init__(layers=self._make_layers(config))

    def _make_layers(self, config: Any) -> list[Any]:
        kinds, arguments = cache_utils.get_layer_types_and_kwargs(config)
        if "reuse" in (getattr(config, "kv_sharing_modes", None) or ()):
            raise UnsupportedError("layers that read the keys of other layers cannot be held in Riffle's pages")
        layers: list[Any] = []
        attending = 0
        for kind, given in zip(kinds, arguments):
            layer_class = cache_utils.DYNAMIC_LAYER_TYPE_MAPPING[kind]
            if issubclass(layer_class, cache_utils.CacheLayerMixin):
                if kind not in _HONOURED_LAYERS:
                    raise UnsupportedError(f"layers of kind {kind!r} cannot be held in Riffle's pages")
                window = given.get("sliding_window") if kind == "sliding_attention" else None
                layers.append(CacheLayer(self, attending, window))
                attending += 1
            else:
                layers.append(layer_class(**given))
        if attending == 0:
            raise UnsupportedError("the model has no layer that attends")
        self._attending = attending
        return layers

    def pages(self, heads: int, kv_heads: int, head_dim: int) -> PagedCache:
        """The pages, which are made when the first layer attends."""
        shape = (heads, kv_heads, head_dim)
        if self._pages is None:
            self._shape = shape
            self._pages = PagedCache(
                layers=self._attending, heads=heads, kv_heads=kv_heads, head_dim=head_dim, **self._options
            )
        if shape != self._shape:
            raise UnsupportedError(
                f"layers differ: one has (heads, KV heads, head_dim) {self._shape} and another {shape}; Riffle's pages need one shape"
            )
        return self._pages

    def keep(self, layer: CacheLayer, tokens: int) -> None:
        """Keeps the first `tokens` tokens of a layer. The pages of all layers are cut when the last of them is."""
        tokens = max(tokens, 0)
        layer.tokens, layer.waits = tokens, False
        others = [other for other in self.layers if isinstance(other, CacheLayer)]
        if self._pages is not None and all(other.tokens <= tokens for other in others):
            self._pages.truncate(tokens)

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens, pages, bytes in memory and on disk, and the share of pairs that was read."""
        if self._pages is None:
            return {"tokens": 0, "pages": 0, "ram_bytes": 0, "disk_bytes": 0, "density": 1.0}
        return self._pages.usage

    @property
    def audit(self) -> dict[str, Any] | None:
        """Shares of exact attention that the policies kept, by layer and head, if `audit` is on."""
        return None if self._pages is None else self._pages.audit

    def take_audited(self) -> list[AuditedQuery]:
        """The sampled queries since the last call, with their kept mass and what they read."""
        return [] if self._pages is None else self._pages.take_audited()

    def close(self) -> None:
        """Frees its pages."""
        if self._pages is not None:
            self._pages.close()

    def __reduce__(self) -> Any:
        raise TypeError("a riffle Cache cannot be pickled or copied: its pages belong to this process")


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention that models call under the name `riffle`."""
    _check(module, query, value, attention_mask, dropout, kwargs)
    layer = _layer_of(module, key)
    window = kwargs.get("sliding_window")
    soft_cap = kwargs.get("softcap")
    if layer is None:
        output = _attend_whole(query[0], key[0], value[0], scaling, soft_cap, window)
    else:
        layer.waits = False
        if layer.window != window:
            raise UnsupportedError(
                f"layer {layer.number} of the cache has a window of {layer.window} tokens and the model asks for {window}"
            )
        pages = layer.owner.pages(query.shape[1], key.shape[1], query.shape[3])
        held = layer.tokens - key.shape[2]
        if pages.tokens(layer.number) != held:
            raise UnsupportedError(
                f"layer {layer.number} holds {pages.tokens(layer.number)} tokens and the cache counts {held}: a call before failed; "
                "reset the cache"
            )
        arrays = [_arrays.native(part[0], name) for part, name in ((query, "queries"), (key, "keys"), (value, "values"))]
        call = {
            "layer": layer.number,
            "is_prefill": query.shape[2] > 1,
            "scale": scaling,
            "soft_cap": soft_cap,
            "window": window,
        }
        # [tokens, heads, head_dim]
        output = pages._native.attend(arrays, call)
    return torch.from_numpy(output).to(query.dtype).unsqueeze(0), None


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    **kwargs: Any,
) -> None:
    """Checks that the mask is causal, or a causal window, and makes none: the attention knows both. Others are refused."""
    if batch_size != 1:
        raise UnsupportedError(_batches(batch_size))
    if attention_mask is not None and not bool(attention_mask.all()):
        raise UnsupportedError(
            f"padding: {int((~attention_mask.bool()).sum())} tokens of the attention mask are off, and {NAME!r} reads every "
            "token; give the sequence without padding"
        )
    if use_vmap:
        raise UnsupportedError(f"a mask of the model's own (or_mask_function, and_mask_function): {NAME!r} reads causally")
    if mask_function is not None and not _is_causal(mask_function, q_length, kv_length, int(q_offset), int(kv_offset), local_size):
        raise UnsupportedError(
            f"a mask that is neither causal nor a causal window (bidirectional, chunked, packed sequences): {NAME!r} reads causally"
        )


def _is_causal(function: Any, rows: int, tokens: int, row_offset: int, token_offset: int, window: int | None) -> bool:
    """True if a mask function is causal, or causal within a window. Only keys at the edges of the mask are tested."""
    last = row_offset + rows - 1
    near = window or 1
    places = {row_offset, last, row_offset + rows // 2, row_offset + 1, row_offset + near, row_offset + near - 1}
    for query in sorted(place for place in places if row_offset <= place <= last):
        keys = {0, 1, query - near - 1, query - near, query - near + 1, query // 2, query - 1, query, query + 1, last}
        keys_here = sorted(key for key in keys if token_offset <= key < token_offset + tokens)
        key = torch.tensor(keys_here)
        found = function(torch.tensor(0), torch.tensor(0), torch.tensor(query).expand(len(key)), key)
        expected = key <= query
        if window is not None:
            expected &= key > query - window
        if not torch.equal(torch.as_tensor(found).expand(len(key)), expected):
            return False
    return True


def _check(
    module: torch.nn.Module,
    query: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
    kwargs: dict[str, Any],
) -> None:
    """Refuses what the kernels cannot honour."""
    if query.shape[0] != 1:
        raise UnsupportedError(_batches(query.shape[0]))
    if attention_mask is not None:
        raise UnsupportedError(
            f"a mask of shape {tuple(attention_mask.shape)} that was made elsewhere: {NAME!r} reads causally and takes none"
        )
    if dropout:
        raise UnsupportedError(f"dropout of {dropout}: {NAME!r} is for inference; call model.eval()")
    if torch.is_grad_enabled() and query.requires_grad:
        raise UnsupportedError(f"gradients: {NAME!r} is for inference; call the model under torch.no_grad()")
    if query.shape[3] != value.shape[3]:
        raise UnsupportedError(f"keys have {query.shape[3]} elements and values {value.shape[3]}: Riffle's pages need as many")
    causal = kwargs.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise UnsupportedError(f"attention in both directions: {NAME!r} reads causally")
    for name, what in (("s_aux", "sinks of their own"), ("position_bias", "a bias by position")):
        if kwargs.get(name) is not None:
            raise UnsupportedError(f"heads with {what} ({name}): {NAME!r} does not compute them")
    if kwargs.get("output_attentions"):
        raise UnsupportedError("output_attentions: weights are never held whole; use Cache(audit=True) and take_audited")


def _layer_of(module: torch.nn.Module, key: torch.Tensor) -> CacheLayer | None:
    """The layer of a cache of this module whose rows these are."""
    waiting = getattr(_waiting, "layer", None)
    _waiting.layer = None
    layer = getattr(key, _MARK, None)
    if layer is not None:
        return layer
    if waiting is not None and waiting.waits:
        raise UnsupportedError(
            f"{type(module).__name__} changes keys after it has given them to the cache: {NAME!r} cannot append them"
        )
    return None


def _attend_whole(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    soft_cap: float | None,
    window: int | None,
) -> np.ndarray:
    """Exact attention over keys and values that another cache holds, `[tokens, heads, head_dim]`."""
    reads = None if window is None else _arrays.selection(row_window=window)
    output = _arrays.attend(query, key, value, reads, scale=scale, soft_cap=soft_cap)
    return output.numpy().transpose(1, 0, 2)


def _batches(sequences: int) -> str:
    return f"a batch of {sequences} sequences: {NAME!r} reads one at a time; call the model for each"


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
