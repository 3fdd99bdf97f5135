"""Writes vectors/<format>.bin: two rows of blocks in each GGUF format and the weights they stand for.

    python crates/linear/scripts/make_vectors.py GGML [FORMAT..]

Needs numpy, gcc, the PyPI package gguf and GGML, ggml's folder of the source in PyPI's llama-cpp-python
(vendor/llama.cpp/ggml). The weights are those of gguf.quants.dequantize. The package does not know Q1_0 and Q2_0, whose
weights come from ggml's own C code. A file holds the raw blocks of both rows, then the weights as little-endian f32, row by
row. Rows are 512 weights. Bits are random; scales are random values in about ±0.1, so that no weight is infinite.
Formats of groups (Q4_G32 ..) are not ggml's: their weights are numpy's scale * (code - center) - minimum, and GGML may be any path.
"""

import ctypes
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

ROWS, WEIGHTS = 2, 512
# Byte offsets of the binary16 values in a block.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "IQ3_S": [0], "IQ3_XXS": [0],
    "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "NVFP4": [], "TQ1_0": [52], "TQ2_0": [64],
    "IQ1_S": [0], "IQ1_M": [], "Q1_0": [0], "Q2_0": [0],
}
# Bits and weights of a block of the formats of groups.
GROUPS = {"Q4_G32": (4, 32), "Q4_G64": (4, 64), "Q4_G128": (4, 128), "Q8_G32": (8, 32), "Q8_G64": (8, 64)}
# Numbers and sizes of the types that the package may be too old for.
NEWER = {"Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18)}


def random_blocks(name, weights, size):
    # A generator for each format: a new format changes no other file.
    random = np.random.default_rng([4, *name.encode()])
    blocks = random.integers(0, 256, (ROWS, WEIGHTS // weights, size), dtype=np.uint8)
    scales = lambda: random.uniform(-0.1, 0.1, blocks.shape[:2]).astype("<f2")
    for offset in HALVES[name]:
        blocks[:, :, offset : offset + 2] = scales()[..., None].view(np.uint8)
    if name == "MXFP4":
        # 2^-9 to 2^-3, and the two smallest of all, whose weights are subnormal.
        blocks[:, :, 0] = random.integers(119, 126, blocks.shape[:2])
        blocks[0, :2, 0] = 0, 1
    if name == "IQ1_M":
        # Four bits of the scale in the top of each 16 bits of scales.
        bits = scales().view("<u2")
        for part in range(4):
            at = blocks[:, :, 49 + 2 * part]
            at[:] = at & 15 | (bits >> (4 * part) & 15).astype(np.uint8) << 4
    return blocks.reshape(ROWS, -1)


def groups(name):
    bits, weights = GROUPS[name]
    random = np.random.default_rng([4, *name.encode()])
    shape = (ROWS, WEIGHTS // weights)
    center = 0 if bits == 4 else 128
    codes = random.integers(0, 1 << bits, (*shape, weights), dtype=np.uint8)
    scales = random.uniform(-0.1, 0.1, shape).astype("<f4")
    minimums = (scales * (random.integers(0, 1 << bits, shape) - center)).astype("<f4")
    exact = (codes.astype("<f4") - center) * scales[..., None] - minimums[..., None]
    if bits == 4:
        halves = codes.reshape(*shape, -1, 2, 16)
        codes = (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(*shape, -1)
    heads = np.stack([scales, minimums], -1).view(np.uint8)
    return np.concatenate([heads, codes], -1), exact.astype("<f4")


def weights_of_ggml(library, name, raw):
    weights = np.empty((ROWS, WEIGHTS), "<f4")
    pointer = lambda array: ctypes.c_void_p(array.ctypes.data)
    raw = np.ascontiguousarray(raw)
    getattr(library, f"dequantize_row_{name.lower()}")(pointer(raw), pointer(weights), ctypes.c_int64(ROWS * WEIGHTS))
    return weights


def compiled(ggml, folder):
    """ggml's code for blocks alone; functions that it lacks are never called."""
    library, source = pathlib.Path(folder) / "quants.so", pathlib.Path(folder) / "quants.c"
    # A table that ggml fills when it starts.
    source.write_text('float ggml_table_f32_f16[1 << 16];\nfloat ggml_table_f32_e8m0_half[1 << 8];\nfloat ggml_table_f32_ue4m3[1 << 8];\n')
    sources = [ggml / "src/ggml-quants.c", source]
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", f"-I{ggml}/include", f"-I{ggml}/src", *sources, "-lm", "-o", library], check=True)
    return ctypes.CDLL(str(library), mode=1)


def main():
    ggml, *names = sys.argv[1:]
    folder = pathlib.Path(__file__).parent.parent / "vectors"
    for name in [name for name in names or GROUPS if name in GROUPS]:
        raw, exact = groups(name)
        (folder / f"{name.lower()}.bin").write_bytes(raw.tobytes() + exact.tobytes())
    names = [name for name in names or HALVES if name in HALVES]
    if not names:
        return
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
    with tempfile.TemporaryDirectory() as scratch:
        library = compiled(pathlib.Path(ggml), scratch)
        for name in names:
            if name in NEWER:
                _, weights, size = NEWER[name]
            else:
                weights, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
            raw = random_blocks(name, weights, size)
            if name in NEWER:
                exact = weights_of_ggml(library, name, raw)
            else:
                exact = quants.dequantize(raw, GGMLQuantizationType[name]).astype("<f4")
            assert exact.shape == (ROWS, WEIGHTS) and np.isfinite(exact).all()
            (folder / f"{name.lower()}.bin").write_bytes(raw.tobytes() + exact.tobytes())


if __name__ == "__main__":
    main()
