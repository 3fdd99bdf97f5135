"""Writes src/quant/grid_codes.rs: the grids of ggml's i-quants, each entry as the places of its values in a short list.

Needs the PyPI package gguf, whose grids these are.

    python crates/linear/scripts/make_grids.py && cargo fmt
"""

import pathlib

import numpy as np
from gguf import quants

GRIDS = [("IQ3_XXS", 3), ("IQ3_S", 3), ("IQ2_XXS", 2), ("IQ2_XS", 2), ("IQ2_S", 2), ("IQ1_S", 2)]

text = "//! Written by `scripts/make_grids.py` from the grids of the gguf package. Value `i` of an entry lies at bit `i · bits`.\n"
for name, bits in GRIDS:
    kind = getattr(quants, name)
    kind.init_grid()
    values = kind.grid.reshape(kind.grid_shape)
    places = np.searchsorted(np.array(kind.grid_map, np.float32), values)
    assert (np.array(kind.grid_map, np.float32)[places] == values).all()
    codes = (places << (bits * np.arange(values.shape[1]))).sum(axis=1)
    text += f"\npub(super) const {name}: [u16; {len(codes)}] = [\n    {', '.join(str(code) for code in codes)},\n];\n"
(pathlib.Path(__file__).parent.parent / "src/quant/grid_codes.rs").write_text(text)
