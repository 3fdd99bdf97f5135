"""Writes rows of weights and the squared errors of ggml's own encoders for them: tests/vectors/ggml.bin and ggml.json.

    python make_ggml_errors.py LIBGGML_BASE

LIBGGML_BASE is libggml-base.so of a build of llama.cpp (or the wheel of llama-cpp-python). ggml.bin holds WEIGHTS rows of COLUMNS weights, then
one row of importance, all binary32.
"""

import ctypes
import json
import pathlib
import sys

import numpy as np

COLUMNS, WEIGHTS = 1024, 6
TYPES = {
    "q8_0": 8, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q2_k": 10, "q3_k": 11, "q4_k": 12, "q5_k": 13, "q6_k": 14,
    "iq4_nl": 20, "iq4_xs": 23, "iq3_s": 21, "iq3_xxs": 18, "iq2_s": 22, "iq2_xs": 17, "iq2_xxs": 16,
    "tq1_0": 34, "tq2_0": 35, "mxfp4": 39, "nvfp4": 40, "q1_0": 41, "q2_0": 42, "iq1_s": 19, "iq1_m": 29,
}  # fmt: skip
# Types that ggml does not write without importance.
NEEDS_IMPORTANCE = {"iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"}


class Traits(ctypes.Structure):
    _fields_ = [
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_int64)),
        ("from_float_ref", ctypes.c_void_p),
    ]


def rows():
    """Weights of several kinds: Gaussian, with outliers, with a heavy tail, sparse, one-sided, of the size of real ones."""
    random = np.random.default_rng(41)
    normal = lambda: random.standard_normal(COLUMNS)
    outliers = normal() * np.where(random.random(COLUMNS) > 0.98, 8, 1)
    tail = random.standard_t(3, COLUMNS)
    sparse = normal() * (random.random(COLUMNS) > 0.7)
    one_sided = np.abs(normal()) + 0.3
    weights = np.stack([normal(), outliers, tail, sparse, one_sided, normal()]) * 0.03
    importance = np.exp(1.5 * normal())
    return weights.astype(np.float32), importance.astype(np.float32)


def main():
    library = ctypes.CDLL(sys.argv[1])
    library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_init.restype = None
    floats = ctypes.POINTER(ctypes.c_float)
    weights, importance = rows()
    errors = {}
    for name, number in TYPES.items():
        traits = library.ggml_get_type_traits(number).contents
        library.ggml_quantize_init(number)
        size = weights.size // traits.blck_size * traits.type_size
        found = {}
        for kind, factors in (("plain", None), ("important", importance)):
            if factors is None and name in NEEDS_IMPORTANCE:
                continue
            encoded = (ctypes.c_uint8 * size)()
            library.ggml_quantize_chunk(
                number, weights.ctypes.data_as(floats), encoded, ctypes.c_int64(0), ctypes.c_int64(WEIGHTS), ctypes.c_int64(COLUMNS),
                factors.ctypes.data_as(floats) if factors is not None else None,
            )  # fmt: skip
            decoded = np.zeros_like(weights)
            traits.to_float(ctypes.addressof(encoded), decoded.ctypes.data_as(floats), weights.size)
            squares = (weights.astype(np.float64) - decoded) ** 2
            found[kind] = list((squares * (1 if factors is None else factors)).sum(axis=1))
        errors[name] = found
    folder = pathlib.Path(__file__).parent.parent / "tests" / "vectors"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ggml.bin").write_bytes(weights.tobytes() + importance.tobytes())
    (folder / "ggml.json").write_text(json.dumps(errors, indent=1) + "\n")


main()
