"""Writes seeds/: small valid inputs of every fuzz target, a few kilobytes each so that mutations meet what matters.

    python fuzz/make_seeds.py

Needs numpy, gguf, safetensors and tokenizers. The seed of `cache_file` is a file KvCache::save wrote in the target's
shape.
"""

import base64
import json
import pathlib
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

SEEDS = pathlib.Path(__file__).resolve().parent / "seeds"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}{% endfor %}"
MATRICES = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]


def sentencepiece(writer):
    pieces = ["<unk>", "<s>", "</s>", *BYTES, "\u2581", "a", "b", "ab", "\u2581a", "\u2581ab", "<x>"]
    kinds = [2, 3, 3] + [6] * 256 + [1] * 6 + [4]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(7)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(True)
    return len(pieces)


def byte_pairs(pre):
    def write(writer):
        tokens = LETTERS + ["ab", "\u0120a", "\u0120ab", "<|im_end|>", "<t>"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([1] * (len(tokens) - 2) + [3, 4])
        writer.add_token_merges(["a b", "\u0120 a", "\u0120 ab", "\u0120a b"])
        writer.add_eos_token_id(len(tokens) - 2)
        writer.add_add_bos_token(False)
        writer.add_chat_template(TEMPLATE)
        return len(tokens)

    return write


def write_gguf(name, architecture, kind, tokenizer, extra=lambda writer: None, hidden=4, norms=()):
    random = np.random.default_rng(len(name))
    writer = gguf.GGUFWriter(SEEDS / "gguf" / name, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    vocabulary = tokenizer(writer) if tokenizer else 6
    extra(writer)

    def add(tensor, *shape, kind=Type.F32):
        data = random.standard_normal(shape).astype(np.float32)
        if kind not in (Type.F32, Type.F16):
            data = gguf.quants.quantize(data, kind)
            writer.add_tensor(f"{tensor}.weight", data, raw_dtype=kind)
        else:
            writer.add_tensor(f"{tensor}.weight", data.astype(np.float16 if kind == Type.F16 else np.float32))

    add("token_embd", vocabulary, hidden, kind=kind)
    add("output_norm", hidden)
    for matrix in MATRICES:
        add(f"blk.0.{matrix}", hidden // 2 if matrix in ("attn_k", "attn_v") else hidden, hidden, kind=kind)
    for norm in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{norm}", hidden)
    for norm, size in norms:
        add(norm, size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def yarn(writer):
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(2)


TINY = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 6, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "eos_token_id": [1, 2], "bos_token_id": 0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
}


def tiny_weights(vocabulary=6):
    random = np.random.default_rng(0)
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens": (vocabulary, 4), "model.norm": (4,), layer + "input_layernorm": (4,), layer + "post_attention_layernorm": (4,),
        layer + "self_attn.q_proj": (4, 4), layer + "self_attn.k_proj": (2, 4), layer + "self_attn.v_proj": (2, 4), layer + "self_attn.o_proj": (4, 4),
        layer + "mlp.gate_proj": (4, 4), layer + "mlp.up_proj": (4, 4), layer + "mlp.down_proj": (4, 4),
    }
    return save({f"{name}.weight": random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


def tokenizer_json(kind):
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("\u2581", -1.0), ("a", -2.0), ("ab", -1.5), ("\u2581a", -2.5), ("b", -3.0)], 0))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2, "ab": 3, "b": 4}, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
    else:
        tokenizer = Tokenizer(models.BPE({"<unk>": 0, "a": 1, "b": 2, "ab": 3, "\u2581": 4, "\u2581a": 5}, [("a", "b"), ("\u2581", "a")], unk_token="<unk>", byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581"), normalizers.NFKC()])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer.to_str()


def directory(name, *parts):
    (SEEDS / "directory" / name).write_bytes(b"\xff".join(part if isinstance(part, bytes) else part.encode() for part in parts))


def field(number, value):
    """A field of Protocol Buffers: a number or bytes."""
    if isinstance(value, bytes):
        return bytes([number << 3 | 2, len(value)]) + value
    return bytes([number << 3, value]) if number < 16 else bytes([number << 3 & 127 | 128, number >> 4, value])


def sentence_pieces(algorithm):
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("\u2581", -1.0, 1), ("a", -2.0, 1), ("\u2581a", -1.5, 1), ("<x>", 0.0, 4)]
    coded = [field(1, text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score) + field(3, kind) for text, score, kind in pieces]
    trainer = field(3, algorithm) + field(35, 1)
    return b"".join(field(1, piece) for piece in coded) + field(2, trainer) + field(3, field(3, 1) + field(4, algorithm - 1))


def tekken():
    vocab = [{"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode()} for byte in range(256)]
    vocab.append({"rank": 256, "token_bytes": "YWI="})
    config = {"pattern": r"\p{L}+|\s+(?!\S)|\s+", "default_vocab_size": 260, "default_num_special_tokens": 3}
    special = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(["<unk>", "<s>"])]
    return json.dumps({"config": config, "vocab": vocab, "special_tokens": special}, separators=(",", ":"))


def adapters():
    random = np.random.default_rng(1)
    modules = {"self_attn.q_proj": ("attn_q", 4, 4), "mlp.down_proj": ("ffn_down", 4, 4)}
    tensors, writer = {}, gguf.GGUFWriter(SEEDS / "adapter" / "gguf", "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    for module, (weight, inputs, outputs) in modules.items():
        for part, shape in {"A": (2, inputs), "B": (outputs, 2)}.items():
            values = random.standard_normal(shape).astype(np.float32)
            tensors[f"base_model.model.model.layers.0.{module}.lora_{part}.weight"] = values
            writer.add_tensor(f"blk.0.{weight}.weight.lora_{part.lower()}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "use_rslora": True, "alpha_pattern": {"q_proj": 3}}
    (SEEDS / "adapter" / "peft").write_bytes(json.dumps(settings).encode() + b"\xff" + save(tensors))


def importance_matrices():
    names = {"blk.0.attn_q.weight": (1, 4), "blk.0.ffn_down_exps.weight": (2, 4)}
    writer, older = gguf.GGUFWriter(SEEDS / "imatrix" / "gguf", ""), struct.pack("<i", 1)
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["text.txt"])
    writer.add_uint32("imatrix.chunk_count", 2)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, (matrices, inputs) in names.items():
        sums = np.arange(matrices * inputs, dtype=np.float32).reshape(matrices, inputs)
        writer.add_tensor(f"{name}.in_sum2", sums)
        writer.add_tensor(f"{name}.counts", np.full((matrices, 1), 8, np.float32))
        if matrices == 1:
            older += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 2, sums.size) + sums.tobytes()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (SEEDS / "imatrix" / "older").write_bytes(older + struct.pack("<ii", 2, 8) + b"text.txt")


def main():
    for target in ("gguf", "safetensors", "directory", "adapter", "imatrix"):
        (SEEDS / target).mkdir(parents=True, exist_ok=True)
    write_gguf("llama-sentencepiece", "llama", Type.F32, sentencepiece, yarn)
    write_gguf("qwen2-byte-pairs", "qwen2", Type.F16, byte_pairs("qwen2"), hidden=4)
    write_gguf("qwen3-norms", "qwen3", Type.F32, None, norms=[("blk.0.attn_q_norm", 2), ("blk.0.attn_k_norm", 2)])
    write_gguf("llama-q4_0", "llama", Type.Q4_0, None, hidden=32, norms=[("rope_freqs", 8)])
    write_gguf("llama-q8_0", "llama", Type.Q8_0, byte_pairs("llama-bpe"), hidden=32)
    (SEEDS / "safetensors" / "llama").write_bytes(tiny_weights())
    config = json.dumps(TINY)
    settings = json.dumps({"bos_token": "a", "eos_token": {"content": "b"}, "add_bos_token": True, "tokenizer_class": "LlamaTokenizer", "chat_template": TEMPLATE})
    generation = json.dumps({"temperature": 0.5, "top_k": 3, "top_p": 0.9, "eos_token_id": [1]})
    for kind in ("bpe", "unigram", "wordpiece"):
        directory(kind, config, tokenizer_json(kind), settings, generation, TEMPLATE)
    for algorithm in (1, 2):
        directory(f"sentence-pieces-{algorithm}", config, "", "", generation, "", "", sentence_pieces(algorithm))
    directory("tekken", json.dumps(TINY | {"vocab_size": 260}), "", "", generation, "", tekken())
    for family, change in {
        "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 2}, "gemma3": {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 4, "layer_types": ["sliding_attention"]},
        "phi3": {"architectures": ["Phi3ForCausalLM"], "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}, "original_max_position_embeddings": 16},
        "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    }.items():
        directory(family, json.dumps(TINY | change), "", "", generation)
    adapters()
    importance_matrices()


if __name__ == "__main__":
    main()
