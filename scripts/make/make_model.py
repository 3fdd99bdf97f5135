"""Writes a GGUF model of random weights, without a network, for benchmarks and comparisons.

    python scripts/make/make_model.py OUT.gguf [--family qwen3] [--shape qwen3-4b] [--layers N] [--type Q8_0] [--tokenizer]

Families: llama, qwen2, qwen3, phi2, phi3, gemma2, gemma3, and with a shape that has experts qwen3moe, qwen35moe, gpt-oss. Types: F32, F16, BF16, Q4_0 to Q8_0, Q2_K to Q6_K,
IQ1_S to IQ4_XS with scales of 16 bits, TQ1_0, TQ2_0, and UD-Q4_K_M, Q4_K_M and MXFP4_MOE, the mixes of files of these names. Quantised weights are random blocks under scales that give the spread a layer's weights have. Files have no tokenizer, but with
--tokenizer one in the manner of SentencePiece whose tokens are made up. Needs numpy and gguf.
"""

import argparse

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

# hidden, inner, layers, heads, KV heads, head_dim, vocabulary, context
SHAPES = {
    "qwen3-0.6b": (1024, 3072, 28, 16, 8, 128, 151_936, 40_960),
    "qwen3-4b": (2560, 9728, 36, 32, 8, 128, 151_936, 262_144),
    "qwen3-30b-a3b": (2048, 6144, 48, 32, 4, 128, 151_936, 262_144),
    "qwen3.6-35b-a3b": (2048, 5632, 40, 16, 2, 256, 248_320, 262_144),
    "gpt-oss-20b": (2880, 2880, 24, 64, 8, 64, 201_088, 131_072),
    "gemma3-270m": (640, 2048, 18, 4, 1, 256, 262_144, 32_768),
    "small": (512, 768, 2, 8, 4, 64, 1024, 4096),
}
# Experts of a layer, those of a token, and the inner width of one.
EXPERTS = {"qwen3-30b-a3b": (128, 8, 768), "qwen3.6-35b-a3b": (256, 8, 512), "gpt-oss-20b": (32, 4, 2880)}
EXPERT_FAMILIES = ("qwen3moe", "qwen35moe", "gpt-oss")
# Of the recurrent layers of qwen35moe: key heads, value heads, width of a head, taps of the convolution. Every fourth layer attends.
RECURRENT = (16, 32, 128, 4)
ATTENDS_EVERY = 4
# Byte offsets of a block's half-precision scales.
SCALES = {
    Type.Q4_0: [0], Type.Q5_0: [0], Type.Q8_0: [0], Type.Q4_1: [0, 2], Type.Q5_1: [0, 2],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.IQ3_S: [0], Type.IQ3_XXS: [0], Type.IQ2_XXS: [0], Type.IQ2_XS: [0], Type.IQ2_S: [0],
    Type.IQ1_S: [0], Type.TQ1_0: [52], Type.TQ2_0: [64],
    # A power of two in the first byte.
    Type.MXFP4: [],
}
# Types of matrices by the last part of their names; the others are Q6_K.
MIXES = {
    "UD-Q4_K_M": {
        "attn_q": Type.IQ4_XS, "attn_k": Type.Q5_K, "attn_v": Type.Q8_0, "attn_output": Type.IQ4_NL,
        "ffn_gate": Type.IQ3_S, "ffn_up": Type.IQ4_XS, "ffn_down": Type.Q4_K,
    },
    # Values and downs of half of the layers are Q6_K in files of this name, which is nearly the bytes of Q5_K in all.
    "Q4_K_M": {
        "attn_q": Type.Q4_K, "attn_k": Type.Q4_K, "attn_v": Type.Q5_K, "attn_output": Type.Q4_K, "token_embd": Type.Q4_K,
        "ffn_gate_exps": Type.Q4_K, "ffn_up_exps": Type.Q4_K, "ffn_down_exps": Type.Q5_K,
    },
    "MXFP4_MOE": {"ffn_gate_exps": Type.MXFP4, "ffn_up_exps": Type.MXFP4, "ffn_down_exps": Type.MXFP4},
}
# The type of the other matrices of a mix.
OTHERS = {"MXFP4_MOE": Type.Q8_0}
FLOATS = {Type.F32: np.float32, Type.F16: np.float16}


def blocks(kind, rows, columns, scale, random):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for at in SCALES[kind]:
        values = scale * random.uniform(0.5, 1.5, data.shape[:2])
        if at == 2 and kind in (Type.Q4_1, Type.Q5_1):
            values *= -7.5 if kind == Type.Q4_1 else -15.5
        data[..., at:at + 2] = values.astype(np.float16)[..., None].view(np.uint8)
    if kind == Type.MXFP4:
        data[..., 0] = 127 + int(np.floor(np.log2(scale)))
    if kind in (Type.Q4_K, Type.Q5_K):
        # The minimum of a stretch is half of its largest quant: weights around zero. Others would send every token to the same experts.
        middle = 7.5 if kind == Type.Q4_K else 15.5
        scales = np.ascontiguousarray(data[..., 0:2]).view(np.float16)[..., 0]
        data[..., 2:4] = (middle * scales).astype(np.float16)[..., None].view(np.uint8)
        data[..., 8:12] = data[..., 4:8]
        data[..., 12:16] = data[..., 12:16] & 15 | data[..., 12:16] << 4
    return data.reshape(rows, -1)


def matrix(kind, rows, columns, random):
    """Data of a matrix whose weights deviate by 1 / sqrt(columns)."""
    wanted = columns**-0.5
    if kind not in SCALES:
        weights = wanted * random.standard_normal((rows, columns), dtype=np.float32)
        return weights.astype(FLOATS[kind]) if kind in FLOATS else gguf.quants.quantize(weights, kind)
    scale = 1e-3
    for _ in range(3):
        sample = gguf.quants.dequantize(blocks(kind, 16, columns, scale, random), kind)
        scale *= wanted / sample.std()
    return blocks(kind, rows, columns, scale, random)


def made_up_tokens(count, random):
    """Texts and GGUF's kinds of tokens as SentencePiece writes them: special ones, bytes, characters, and pieces that are two
    earlier ones side by side."""
    texts = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.UNKNOWN] + [gguf.TokenType.BYTE] * 256
    characters = ["▁", *map(chr, range(97, 123)), *map(chr, range(33, 127)), *map(chr, range(0xC0, 0x530)), *map(chr, range(0x4E00, 0x5E00))]
    pieces = list(dict.fromkeys(characters))
    known = set(pieces)
    while len(texts) + len(pieces) < count:
        # Early pieces come up most, so that tokens are some seven letters long and most of them Latin.
        left, right = (pieces[int(at)] for at in len(pieces) * random.random(2) ** 5)
        joined = left + right
        if len(joined) <= 16 and "▁" not in joined[1:] and joined not in known:
            known.add(joined)
            pieces.append(joined)
    return texts + pieces, kinds + [gguf.TokenType.NORMAL] * len(pieces)


class Model:
    def __init__(self, path, family, shape, kind, seed, tokenizer=False, layers=None):
        self.tokenizer = tokenizer
        self.random = np.random.default_rng(seed)
        self.kind = kind
        self.writer = gguf.GGUFWriter(path, family)
        self.hidden, self.inner, self.layers, self.heads, self.kv_heads, self.head_dim, self.vocabulary, self.context = SHAPES[shape]
        self.layers = layers or self.layers
        self.experts = EXPERTS.get(shape) if family in EXPERT_FAMILIES else None
        # Functions that make the tensors, in their order in the file: one is in memory at a time.
        self.tensors = []

    def add(self, name, shape, kind, make):
        dtype = np.dtype(FLOATS[kind]) if kind in FLOATS else np.dtype(np.uint8)
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        if kind not in FLOATS:
            shape = (*shape[:-1], shape[-1] // elements * size)
        self.writer.add_tensor_info(name, shape, dtype, int(np.prod(shape)) * dtype.itemsize, raw_dtype=None if kind in FLOATS else kind)
        self.tensors.append(lambda: make().reshape(shape))

    def mixed(self, name):
        if self.kind not in MIXES:
            return self.kind
        return MIXES[self.kind].get(name.split(".")[-1], OTHERS.get(self.kind, Type.Q6_K))

    def matrix(self, name, rows, columns, bias=False):
        kind = self.mixed(name)
        self.add(f"{name}.weight", (rows, columns), kind, lambda: matrix(kind, rows, columns, self.random))
        if bias:
            self.vector(f"{name}.bias", rows, 0.0)

    def stack(self, name, count, rows, columns, bias=False):
        """A matrix of each expert, in one tensor."""
        kind = self.mixed(name)
        self.add(f"{name}.weight", (count, rows, columns), kind, lambda: matrix(kind, count * rows, columns, self.random))
        if bias:
            self.vector(f"{name}.bias", (count, rows), 0.0)

    def floats(self, name, rows, columns):
        """A matrix that files keep in f32."""
        self.add(name, (rows, columns), Type.F32, lambda: columns**-0.5 * self.random.standard_normal((rows, columns), dtype=np.float32))

    def mixture(self, family, prefix):
        count, _, width = self.experts
        bias = family == "gpt-oss"
        self.floats(f"{prefix}ffn_gate_inp.weight", count, self.hidden)
        if bias:
            self.vector(f"{prefix}ffn_gate_inp.bias", count, 0.0)
        self.stack(f"{prefix}ffn_gate_exps", count, width, self.hidden, bias)
        self.stack(f"{prefix}ffn_up_exps", count, width, self.hidden, bias)
        self.stack(f"{prefix}ffn_down_exps", count, self.hidden, width, bias)
        if family == "qwen35moe":
            self.floats(f"{prefix}ffn_gate_inp_shexp.weight", 1, self.hidden)
            self.matrix(f"{prefix}ffn_gate_shexp", width, self.hidden)
            self.matrix(f"{prefix}ffn_up_shexp", width, self.hidden)
            self.matrix(f"{prefix}ffn_down_shexp", self.hidden, width)

    def recurrent(self, prefix):
        """A Gated DeltaNet."""
        key_heads, value_heads, width, taps = RECURRENT
        values = value_heads * width
        channels = 2 * key_heads * width + values
        self.matrix(f"{prefix}attn_qkv", channels, self.hidden)
        self.matrix(f"{prefix}attn_gate", values, self.hidden)
        self.floats(f"{prefix}ssm_conv1d.weight", channels, taps)
        self.vector(f"{prefix}ssm_dt.bias", value_heads)
        self.vector(f"{prefix}ssm_a", value_heads, -4.0)
        self.matrix(f"{prefix}ssm_beta", value_heads, self.hidden)
        self.matrix(f"{prefix}ssm_alpha", value_heads, self.hidden)
        self.vector(f"{prefix}ssm_norm.weight", width)
        self.matrix(f"{prefix}ssm_out", self.hidden, values)

    def vector(self, name, length, mean=1.0):
        shape = (length,) if isinstance(length, int) else length
        self.add(name, shape, Type.F32, lambda: (mean + 0.1 * self.random.standard_normal(shape)).astype(np.float32))

    def settings(self, family):
        writer = self.writer
        writer.add_block_count(self.layers)
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.inner)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_rope_freq_base(10_000.0)
        writer.add_rope_dimension_count(self.head_dim // {"phi2": 2, "qwen35moe": 4}.get(family, 1))
        (writer.add_layer_norm_eps if family == "phi2" else writer.add_layer_norm_rms_eps)(1e-5)
        writer.add_vocab_size(self.vocabulary)
        if self.experts:
            count, used, width = self.experts
            writer.add_expert_count(count)
            writer.add_expert_used_count(used)
            writer.add_expert_feed_forward_length(width)
        if family == "qwen35moe":
            key_heads, value_heads, head_width, taps = RECURRENT
            writer.add_expert_shared_feed_forward_length(width)
            writer.add_rope_dimension_sections([11, 11, 10, 0])
            writer.add_ssm_conv_kernel(taps)
            writer.add_ssm_state_size(head_width)
            writer.add_ssm_group_count(key_heads)
            writer.add_ssm_time_step_rank(value_heads)
            writer.add_ssm_inner_size(value_heads * head_width)
            writer.add_full_attention_interval(ATTENDS_EVERY)
        if family == "gpt-oss":
            writer.add_sliding_window(128)
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(32.0)
            writer.add_rope_scaling_orig_ctx_len(4096)
        self.tokens()
        if family.startswith("gemma"):
            writer.add_sliding_window(64)
        if family == "gemma2":
            writer.add_attn_logit_softcapping(50.0)
            writer.add_final_logit_softcapping(30.0)

    def tokens(self):
        writer = self.writer
        if not self.tokenizer:
            # llama.cpp wants to be told that there is none.
            writer.add_tokenizer_model("no_vocab")
            return
        texts, kinds = made_up_tokens(self.vocabulary, self.random)
        writer.add_tokenizer_model("llama")
        writer.add_token_list(texts)
        writer.add_token_scores([-float(at) for at in range(len(texts))])
        writer.add_token_types(kinds)
        writer.add_bos_token_id(2)
        writer.add_eos_token_id(1)
        writer.add_unk_token_id(3)
        writer.add_add_space_prefix(False)

    def layer(self, family, index):
        prefix = f"blk.{index}."
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        phi2 = family == "phi2"
        biased = family in ("qwen2", "phi2", "gpt-oss")
        if family == "qwen35moe" and (index + 1) % ATTENDS_EVERY:
            self.recurrent(prefix)
        else:
            if family == "phi3":
                self.matrix(f"{prefix}attn_qkv", query + 2 * kv, self.hidden)
            else:
                # A gate for every value lies beside the queries.
                for part, rows in (("q", query * (1 + (family == "qwen35moe"))), ("k", kv), ("v", kv)):
                    self.matrix(f"{prefix}attn_{part}", rows, self.hidden, bias=biased)
            self.matrix(f"{prefix}attn_output", self.hidden, query, bias=phi2 or family == "gpt-oss")
            if family in ("qwen3", "qwen3moe", "qwen35moe", "gemma3"):
                self.vector(f"{prefix}attn_q_norm.weight", self.head_dim)
                self.vector(f"{prefix}attn_k_norm.weight", self.head_dim)
            if family == "gpt-oss":
                self.vector(f"{prefix}attn_sinks.weight", self.heads, 0.0)
        if self.experts:
            self.mixture(family, prefix)
        else:
            if family == "phi3":
                self.matrix(f"{prefix}ffn_up", 2 * self.inner, self.hidden)
            else:
                if not phi2:
                    self.matrix(f"{prefix}ffn_gate", self.inner, self.hidden)
                self.matrix(f"{prefix}ffn_up", self.inner, self.hidden, bias=phi2)
            self.matrix(f"{prefix}ffn_down", self.hidden, self.inner, bias=phi2)
        norms = {"phi2": ["attn_norm"], "gemma2": ["attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"]}
        norms["gemma3"] = norms["gemma2"]
        norms["qwen35moe"] = norms["gpt-oss"] = ["attn_norm", "post_attention_norm"]
        for norm in norms.get(family, ["attn_norm", "ffn_norm"]):
            self.vector(f"{prefix}{norm}.weight", self.hidden)
        if phi2:
            self.vector(f"{prefix}attn_norm.bias", self.hidden, 0.0)

    def write(self, family):
        self.settings(family)
        self.matrix("token_embd", self.vocabulary, self.hidden)
        for index in range(self.layers):
            self.layer(family, index)
        self.vector("output_norm.weight", self.hidden)
        if family == "phi2":
            self.vector("output_norm.bias", self.hidden, 0.0)
            self.matrix("output", self.vocabulary, self.hidden, bias=True)
        elif family == "phi3" or self.experts:
            self.matrix("output", self.vocabulary, self.hidden)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_ti_data_to_file()
        for make in self.tensors:
            self.writer.write_tensor_data(make())
        self.writer.close()


def write_model(path, family="qwen3", shape="qwen3-0.6b", kind=Type.Q8_0, seed=0, tokenizer=False, layers=None):
    Model(path, family, shape, kind, seed, tokenizer, layers).write(family)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--family", default="qwen3")
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--type", default="Q8_0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", action="store_true")
    given = parser.parse_args()
    kind = given.type if given.type in MIXES else Type[given.type]
    write_model(given.out, given.family, given.shape, kind, given.seed, given.tokenizer, given.layers)


if __name__ == "__main__":
    main()
