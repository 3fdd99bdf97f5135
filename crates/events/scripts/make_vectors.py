"""Writes the batches of tests/wire.rs as msgspec encodes them: tests/vectors/{map,array}.bin.

The structures are those of vLLM's vllm/distributed/kv_events.py, maps as of 0.20, arrays as before. Needs msgspec (pip install msgspec).
"""

from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).resolve().parent.parent / "tests/vectors"


def encoded(array_like: bool) -> bytes:
    class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list[Any]
        data_parallel_rank: int | None = None

    class Stored(msgspec.Struct, array_like=array_like, omit_defaults=True, tag="BlockStored"):
        block_hashes: list[int]
        parent_block_hash: int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[Any] | None = None
        group_idx: int | None = None
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None

    class Removed(msgspec.Struct, array_like=array_like, omit_defaults=True, tag="BlockRemoved"):
        block_hashes: list[int]
        medium: str | None
        group_idx: int | None = None

    class Cleared(msgspec.Struct, array_like=array_like, omit_defaults=True, tag="AllBlocksCleared"):
        pass

    tokens = [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1]
    events = [
        Cleared(),
        Stored([1, 2**63 + 5], None, tokens, 4, None, "GPU", None, group_idx=0, kv_cache_spec_kind="full_attention"),
        Stored([300], 1, [7, 8, 9, 10], 4, None, "CPU", None, group_idx=0, kv_cache_spec_kind="full_attention"),
        Stored([2**63 + 5], 1, tokens[4:], 4, None, "GPU", None, group_idx=1, kv_cache_spec_kind="mamba"),
        Removed([2**63 + 5, 1], "DISK", group_idx=0),
    ]
    return msgspec.msgpack.encode(Batch(1.5, events, 0))


HERE.mkdir(exist_ok=True)
(HERE / "map.bin").write_bytes(encoded(False))
(HERE / "array.bin").write_bytes(encoded(True))
