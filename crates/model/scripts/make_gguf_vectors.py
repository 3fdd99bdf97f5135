"""GGUF files of the tiny models of make_vectors.py, made by llama.cpp's own converter.

    python scripts/make_gguf_vectors.py PATH_TO_LLAMA_CPP

The converter is part of the source package of llama-cpp-python (vendor/llama.cpp) and of llama.cpp itself. The models
have no tokenizer, so vocabularies are left out. Logits must equal those of the directory a file was made from.
"""

import pathlib
import sys

import numpy as np

VECTORS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "vectors"
# case -> element type of the matrices
CASES = {
    "llama-0": "f32",
    "llama-1": "bf16",
    "llama-2": "f16",
    "mistral-1": "f16",
    "qwen2-0": "f32",
    "qwen3-1": "f16",
    "qwen3_5-0": "f32",
    "qwen3_5-2": "bf16",
    "phi-0": "f32",
    "phi3-0": "bf16",
    "gemma2-0": "f32",
    "gemma3-1": "bf16",
}


def main():
    llama_cpp = pathlib.Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    import convert_hf_to_gguf as converter
    from conversion.base import ModelBase, TextModel

    import conversion.gemma  # noqa: F401

    def all_subclasses(cls):
        return {cls} | {below for child in cls.__subclasses__() for below in all_subclasses(child)}

    (VECTORS / "gguf").mkdir(exist_ok=True)
    for case, kind in CASES.items():
        converter.get_model_class(ModelBase.load_hparams(VECTORS / case, False)["architectures"][0])
        for model in all_subclasses(TextModel):
            model.set_vocab = lambda self: None
        # Its modify_tensors reads the tokenizer only to cut padding rows off the embedding.
        gemma = conversion.gemma.Gemma3Model
        gemma.modify_tensors = lambda self, data, name, bid: TextModel.modify_tensors(self, data + self.norm_shift(name), name, bid)
        sys.argv = ["convert", str(VECTORS / case), "--outtype", kind, "--outfile", str(VECTORS / "gguf" / f"{case}.gguf")]
        if case.startswith("qwen3_5"):
            # These have no layers that predict further tokens.
            sys.argv.append("--no-mtp")
        converter.main()
    fuse(VECTORS / "gguf" / "phi-0.gguf", VECTORS / "fused" / "phi-0.gguf")


def fuse(path, fused):
    """The same file with queries, keys and values of a layer in one tensor, as earlier converters wrote it."""
    import gguf

    fused.parent.mkdir(exist_ok=True)
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(fused, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(name, field.contents(), field.types[0])
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in tensors.items():
        if ".attn_q." in name:
            parts = [tensors[name.replace("attn_q", f"attn_{part}")].data for part in "qkv"]
            writer.add_tensor(name.replace("attn_q", "attn_qkv"), np.concatenate(parts), raw_dtype=tensor.tensor_type)
        elif ".attn_k." not in name and ".attn_v." not in name:
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
