"""Writes vectors/<format>.bin: two rows of blocks in each GGUF format and the weights they stand for.

Made with the PyPI package gguf (gguf.quants.dequantize). A file holds the raw blocks of both rows, then the weights as
little-endian f32, row by row. Rows are 512 weights. Bits are random; scales are random binary16 values in about ±0.1,
so that no weight is infinite.

    python crates/linear/scripts/make_vectors.py
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

ROWS, WEIGHTS = 2, 512
# Byte offsets of the binary16 values in a block.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}

random = np.random.default_rng(4)
folder = Path(__file__).parent.parent / "vectors"
for name, offsets in HALVES.items():
    kind = GGMLQuantizationType[name]
    weights, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (ROWS, WEIGHTS // weights, size), dtype=np.uint8)
    for offset in offsets:
        scales = random.uniform(-0.1, 0.1, blocks.shape[:2]).astype("<f2")
        blocks[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
    raw = blocks.reshape(ROWS, -1)
    exact = quants.dequantize(raw, kind).astype("<f4")
    assert exact.shape == (ROWS, WEIGHTS)
    (folder / f"{name.lower()}.bin").write_bytes(raw.tobytes() + exact.tobytes())
