"""Logits and token ids of riffle and llama.cpp on the same GGUF files.

    python scripts/compare/compare_llama_cpp.py logits LLAMA_CPP_PYTHON LIBRARIES MODEL.gguf..
    python scripts/compare/compare_llama_cpp.py tokens LLAMA_CPP_PYTHON LIBRARIES MODEL.gguf..

LLAMA_CPP_PYTHON is the unpacked source of PyPI's llama-cpp-python, LIBRARIES the folder of the shared libraries built from
its vendor/llama.cpp (docs/results/models.md says how). Needs numpy, gguf, safetensors, diskcache, jinja2 and a release build of
riffle and of `cargo build --release -p riffle-model --example token_ids`.

Logits: 128 random tokens. Both round the activations that meet quantised weights to 8 bits, in different ways, and llama.cpp
those that meet halves to the weights' type. So beside the largest difference stands how far each is off, as the root of the
mean square, the logits riffle computes from the same weights in f32. Token ids: the texts of fixtures/vectors/tokenization.json and random strings, without BOS.
"""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from safetensors.numpy import load_file

from random_texts import random_texts

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASE = ROOT / "target" / "release"
TOKENS = 128
STRINGS = 20_000


def copy(path, out, exact=False):
    """A copy that says it has no vocabulary, for llama.cpp wants to be told; `exact` writes all weights as f32."""
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "tokenizer.")) and name not in ("general.architecture", f"{architecture}.vocab_size"):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[1] if kind == gguf.GGUFValueType.ARRAY else None)
    writer.add_tokenizer_model("no_vocab")
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    writer.add_vocab_size(int(embedding.shape[1]))
    for tensor in reader.tensors:
        if exact:
            writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def llama_logits(llama, path, random):
    """Random tokens and their logits, [tokens, vocabulary]."""
    parameters = llama.llama_model_default_params()
    # Without the layouts that compute otherwise for speed.
    parameters.use_extra_bufts = False
    model = llama.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        return None
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    tokens = random.integers(0, vocabulary, TOKENS).astype(np.int32)
    settings = llama.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = TOKENS
    settings.n_threads = settings.n_threads_batch = 2
    # An f32 cache without flash attention, so that only the products differ.
    settings.type_k = settings.type_v = 0
    settings.flash_attn_type = 0
    context = llama.llama_init_from_model(model, settings)
    batch = llama.llama_batch_init(TOKENS, 0, 1)
    batch.n_tokens = TOKENS
    for at, token in enumerate(tokens):
        batch.token[at] = int(token)
        batch.pos[at] = at
        batch.n_seq_id[at] = 1
        batch.seq_id[at][0] = 0
        batch.logits[at] = 1
    if llama.llama_decode(context, batch) != 0:
        raise RuntimeError(f"{path}: llama_decode failed")
    size = TOKENS * vocabulary
    logits = np.array(np.ctypeslib.as_array(llama.llama_get_logits(context), (size,))).reshape(TOKENS, vocabulary)
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    llama.llama_model_free(model)
    return tokens, logits


def riffle_logits(path, tokens, folder):
    ids, out = folder / "ids.json", folder / "logits.safetensors"
    ids.write_text(json.dumps(tokens.tolist()))
    command = [RELEASE / "riffle", "eval", "logits", "--model", path, "--tokens", ids, "--out", out, "--kv-type", "f32", "--ctx", "256"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        return run.stderr.strip()
    return load_file(out)["logits"]


def compare_logits(llama, paths):
    print(f"{'file':<20} {'spread':>7} {'difference':>11} {'likeliest equal':>16}   {'riffle off by':>14} {'llama.cpp off by':>17}")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for path in paths:
            found = llama_logits(llama, copy(path, folder / path.name), np.random.default_rng(1))
            if found is None:
                print(f"{path.name:<20} llama.cpp does not load it")
                continue
            tokens, theirs = found
            ours = riffle_logits(path, tokens, folder)
            if isinstance(ours, str):
                print(f"{path.name:<20} {ours}")
                continue
            exact = riffle_logits(copy(path, folder / f"exact-{path.name}", exact=True), tokens, folder)
            same = (ours.argmax(-1) == theirs.argmax(-1)).mean()
            off = [float(np.sqrt(np.mean((logits - exact) ** 2))) for logits in (ours, theirs)]
            print(f"{path.name:<20} {exact.std():>7.2f} {np.abs(ours - theirs).max():>11.1e} {same:>16.1%}   {off[0]:>14.1e} {off[1]:>17.1e}", flush=True)


def compare_tokens(llama, paths):
    texts = [case["text"] for case in json.loads((ROOT / "fixtures/vectors/tokenization.json").read_text())["cases"]]
    # A text with a zero byte ends there for a library of C.
    texts = [text for text in texts + random_texts(STRINGS) if "\0" not in text]
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    for path in paths:
        parameters = llama.llama_model_default_params()
        parameters.vocab_only = True
        model = llama.llama_model_load_from_file(str(path).encode(), parameters)
        if not model:
            print(f"{path.name:<28} llama.cpp does not load it")
            continue
        vocabulary = llama.llama_model_get_vocab(model)
        ours = subprocess.run([RELEASE / "examples" / "token_ids", path], input=lines, text=True, check=True, capture_output=True)
        different = []
        for text, ids in zip(texts, map(json.loads, ours.stdout.splitlines()), strict=True):
            encoded = text.encode()
            buffer = (ctypes.c_int32 * (len(encoded) + 16))()
            count = llama.llama_tokenize(vocabulary, encoded, len(encoded), buffer, len(buffer), False, True)
            if ids != list(buffer[:count]):
                different.append((text, ids, list(buffer[:count])))
        print(f"{path.name:<28} {len(texts) - len(different)} of {len(texts)} texts equal")
        for text, ours_ids, theirs in different[:3]:
            print(f"    {text!r}: {ours_ids} here, {theirs} there")


def main():
    what, package, libraries, *paths = sys.argv[1:]
    os.environ["LLAMA_CPP_LIB_PATH"] = libraries
    sys.path.insert(0, package)
    import llama_cpp as llama

    @llama.llama_log_callback
    def quiet(level, text, data):
        if level == 4:  # errors
            sys.stderr.write(text.decode())

    llama.llama_log_set(quiet, ctypes.c_void_p())
    llama.llama_backend_init()
    {"logits": compare_logits, "tokens": compare_tokens}[what](llama, [pathlib.Path(path).resolve() for path in paths])


if __name__ == "__main__":
    main()
