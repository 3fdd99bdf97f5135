"""Folders of tiny models in the forms in which other programs store quantised weights, with the weights these stand for and logits.

    python crates/model/scripts/make_quantised_folders.py [CASE..]

Needs torch, transformers and compressed-tensors. Codes and scales are random; the weights they stand for are computed by the definitions
of the formats: `compressed_tensors` unpacks what it packed, GPTQ, AWQ and MLX are (code - zero) * scale or code * scale + bias on numpy arrays
before they are packed, 8-bit floats are torch's. `transformers` computes the logits with these weights. Before products with matrices of
whole numbers and 4-bit floats, activations are rounded as crates/linear rounds them: to 8 bits, with a scale for each 32 columns.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "vectors" / "folders"
POSITIONS = 24
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
# Weights of the two that the tests compare to the bit.
COMPARED = ("layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight")


def stream(codes, bits):
    """Codes along the first axis in 32-bit words, from the low bits on: [count, n] -> [count * bits / 32, n]."""
    places = (codes[:, None, :] >> np.arange(bits)[None, :, None]) & 1
    flat = places.reshape(-1, codes.shape[1])
    flat = np.concatenate([flat, np.zeros((-len(flat) % 32, codes.shape[1]), flat.dtype)])
    words = (flat.reshape(-1, 32, codes.shape[1]).astype(np.uint64) << np.arange(32, dtype=np.uint64)[None, :, None]).sum(1)
    return words.astype(np.uint32)


def int32(words):
    return torch.from_numpy(np.ascontiguousarray(words).view(np.int32))


def spread(array, group, columns):
    return np.repeat(array, group, axis=1)[:, :columns]


def integers(random, rows, columns, bits, group, dtype, zero_points=True, lowest_zero=1):
    """Codes [rows, columns], zero points and scales [rows, groups], and the weights."""
    groups = -(-columns // group)
    codes = random.integers(0, 1 << bits, (rows, columns))
    zeros = random.integers(lowest_zero, 1 << bits, (rows, groups)) if zero_points else np.full((rows, groups), 1 << (bits - 1))
    size = 2.0 / columns**0.5 / (1 << bits)
    scales = torch.from_numpy((size * random.uniform(0.5, 1.5, (rows, groups))).astype(np.float32)).to(dtype)
    exact = scales.float().numpy()
    return codes, zeros, scales, (codes - spread(zeros, group, columns)).astype(np.float32) * spread(exact, group, columns)


def gptq(random, rows, columns, bits=4, group=32, act_order=False, offset=1, **_):
    codes, zeros, scales, _ = integers(random, rows, columns, bits, group, torch.float16, lowest_zero=offset)
    of = np.arange(columns) // group
    if act_order:
        of = random.permutation(of)
    weights = (codes - zeros[:, of]).astype(np.float32) * scales.float().numpy()[:, of]
    tensors = dict(qweight=int32(stream(codes.T, bits)), scales=scales.T.contiguous(), qzeros=int32(stream((zeros - offset), bits).T),
                   g_idx=torch.from_numpy(of.astype(np.int32)))
    return tensors, weights, np.argsort(of, kind="stable")


def awq(random, rows, columns, group=32, **_):
    codes, zeros, scales, weights = integers(random, rows, columns, 4, group, torch.float16, lowest_zero=0)
    pack = lambda array: (array.reshape(len(array), -1, 8)[:, :, AWQ_ORDER].astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    return dict(qweight=int32(pack(codes.T)), qzeros=int32(pack(zeros.T)), scales=scales.T.contiguous()), weights, None


def packed(random, rows, columns, bits=4, group=32, zero_points=False, act_order=False, **_):
    group = group or columns
    codes, zeros, scales, weights = integers(random, rows, columns, bits, group, torch.bfloat16, zero_points, lowest_zero=0)
    half = 1 << (bits - 1)
    of = random.permutation(np.arange(columns) // group) if act_order else np.arange(columns) // group
    weights = (codes - zeros[:, of]).astype(np.float32) * scales.float().numpy()[:, of]
    tensors = dict(weight_packed=pack_to_int32(torch.from_numpy((codes - half).astype(np.int8)), bits), weight_scale=scales,
                   weight_shape=torch.tensor([rows, columns]))
    if zero_points:
        tensors["weight_zero_point"] = pack_to_int32(torch.from_numpy((zeros - half).astype(np.int8)), bits, packed_dim=0)
    if act_order:
        tensors["weight_g_idx"] = torch.from_numpy(of.astype(np.int32))
    return tensors, weights, np.argsort(of, kind="stable")


def int8(random, rows, columns, **_):
    codes, _, scales, weights = integers(random, rows, columns, 8, columns, torch.bfloat16, zero_points=False)
    return dict(weight=torch.from_numpy((codes - 128).astype(np.int8)), weight_scale=scales), weights, None


def float8(random, rows, columns, block=None, names=("weight_scale_inv",), dtype=torch.float32, more={}, **_):
    codes = torch.from_numpy(random.normal(0, 60, (rows, columns)).astype(np.float32)).to(torch.float8_e4m3fn)
    codes.view(-1)[:4] = torch.tensor([448.0, -448.0, 2.0**-9, -(2.0**-7)]).to(torch.float8_e4m3fn)
    down, across = block or (rows, columns)
    count = (-(-rows // down), -(-columns // across))
    scales = torch.from_numpy(random.uniform(0.5, 1.5, count).astype(np.float32) / 60 / columns**0.5).to(dtype)
    whole = scales.float().repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :columns]
    weights = (codes.float() * whole).numpy()
    stored = scales if block else scales.reshape(())
    return {"weight": codes, names[0]: stored, **more}, weights, "exact"


def nibbles(codes):
    return torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8))


def nvfp4(random, rows, columns, names=("weight_packed", "weight_global_scale"), **_):
    codes = random.integers(0, 16, (rows, columns)).astype(np.uint8)
    scales = torch.from_numpy(random.uniform(20, 300, (rows, columns // 16)).astype(np.float32)).to(torch.float8_e4m3fn)
    divides = names[1] == "weight_global_scale"
    whole = np.float32(700 * columns**0.5 if divides else 1 / (700 * columns**0.5))
    weights = E2M1[codes] * spread(scales.float().numpy(), 16, columns)
    weights = weights / whole if divides else weights * whole
    return {names[0]: nibbles(codes), "weight_scale": scales, names[1]: torch.tensor([whole]) if divides else torch.tensor(whole),
            "input_scale": torch.tensor(1.0)}, weights.astype(np.float32), None


def mxfp4(random, rows, columns, **_):
    codes = random.integers(0, 16, (rows, columns)).astype(np.uint8)
    scales = random.integers(119, 124, (rows, columns // 32)).astype(np.uint8)
    weights = E2M1[codes] * spread(2.0 ** (scales.astype(np.float32) - 127), 32, columns)
    return dict(weight_packed=nibbles(codes), weight_scale=torch.from_numpy(scales)), weights.astype(np.float32), None


def mlx(random, rows, columns, bits=4, group=64, **_):
    codes = random.integers(0, 1 << bits, (rows, columns))
    size = 2.0 / columns**0.5 / (1 << bits)
    draw = lambda low, high: torch.from_numpy(random.uniform(low, high, (rows, columns // group)).astype(np.float32) * np.float32(size)).to(torch.bfloat16)
    scales, biases = draw(0.5, 1.5), draw(-0.7 * (1 << bits), -0.3 * (1 << bits))
    weights = codes.astype(np.float32) * spread(scales.float().numpy(), group, columns) + spread(biases.float().numpy(), group, columns)
    words = torch.from_numpy(stream(codes.T, bits).T.copy())
    return dict(weight=words, scales=scales, biases=biases), weights, None


def settings(method, **more):
    return dict(quantization_config=dict(quant_method=method, **more))


def compressed(form, **weights):
    return settings("compressed-tensors", format=form, quantization_status="compressed", ignore=["lm_head"],
                    config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)))


SMALL = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2)
WIDE = dict(hidden_size=192, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
ODD = dict(hidden_size=72, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, head_dim=18)
# case -> class, sizes, how a matrix is quantised, settings, and how some matrices differ: None for those that are left as they are.
CASES = {
    "fp8-block": ("Qwen3", WIDE, (float8, dict(block=(128, 128))), settings("fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128], modules_to_not_convert=["lm_head"]), {"v_proj": None}),
    "fp8-channel": ("Llama", ODD, (float8, dict(block="rows", names=("weight_scale",), dtype=torch.bfloat16)), compressed("float-quantized", num_bits=8, type="float", strategy="channel"), {}),
    "fp8-tensor": ("Llama", SMALL, (float8, dict(names=("weight_scale",), more=dict(input_scale=torch.tensor(0.5), k_scale=torch.tensor(0.25)))), settings("modelopt", quant_algo="FP8"), {}),
    "packed": ("Phi3", SMALL, (packed, {}), compressed("pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group", group_size=32), {}),
    "packed-order": ("Llama", SMALL, (packed, dict(zero_points=True, act_order=True)), compressed("pack-quantized", num_bits=4, type="int", symmetric=False, strategy="group", group_size=32, actorder="group"),
                     {"up_proj": (packed, dict(bits=8, zero_points=True)), "v_proj": (packed, dict(bits=8, group=None))}),
    "int8": ("Llama", SMALL, (int8, {}), compressed("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"), {}),
    "gptq": ("Llama", SMALL, (gptq, dict(act_order=True)), settings("gptq", bits=4, group_size=32, desc_act=True, sym=False), {"up_proj": (gptq, dict(bits=8)), "v_proj": (gptq, dict(bits=3)), "k_proj": (gptq, dict(bits=2))}),
    "gptq-v2": ("Llama", ODD, (gptq, dict(group=24, offset=0, act_order=True)), settings("gptq", bits=4, group_size=24, desc_act=True, sym=False, checkpoint_format="gptq_v2"), {"down_proj": (gptq, dict(group=56, offset=0))}),
    "awq": ("Llama", dict(SMALL, hidden_size=128), (awq, {}), settings("awq", bits=4, group_size=32, zero_point=True, version="gemm"), {"up_proj": (awq, dict(group=64)), "gate_proj": (awq, dict(group=128))}),
    "nvfp4": ("Llama", dict(SMALL, intermediate_size=112), (nvfp4, {}), compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16), {}),
    "nvfp4-modelopt": ("Llama", SMALL, (nvfp4, dict(names=("weight", "weight_scale_2"))), settings("modelopt", quant_algo="NVFP4"), {}),
    "mxfp4": ("Llama", SMALL, (mxfp4, {}), compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32), {}),
    "mlx": ("Llama", dict(SMALL, intermediate_size=128), (mlx, {}), dict(quantization=dict(group_size=64, bits=4, **{
        "model.layers.0.self_attn.q_proj": dict(group_size=64, bits=8), "model.layers.0.mlp.up_proj": dict(group_size=32, bits=6), "model.layers.0.self_attn.v_proj": dict(group_size=32, bits=3)})),
        {"q_proj": (mlx, dict(bits=8)), "up_proj": (mlx, dict(group=32, bits=6)), "v_proj": (mlx, dict(group=32, bits=3)), "embed_tokens": (mlx, {}), "lm_head": (mlx, {})}),
}


# How near an activation came to the middle between two steps, where programs may round it differently.
nearest = [1.0]


def rounded(order):
    def round_input(module, inputs):
        columns = torch.arange(inputs[0].shape[-1]) if order is None else torch.from_numpy(order)
        values = inputs[0][..., columns].unflatten(-1, (-1, 32))
        largest = values.abs().amax(-1, keepdim=True)
        steps = values * (127 / largest)
        nearest[0] = min(nearest[0], ((steps - steps.floor()) - 0.5).abs().min().item())
        turned = (steps.round() * (largest / 127)).flatten(-2)
        result = torch.empty_like(turned)
        result[..., columns] = turned
        return result
    return round_input


def main():
    for seed, (case, (family, sizes, usual, config_more, differing)) in enumerate(CASES.items()):
        if sys.argv[1:] and case not in sys.argv[1:]:
            continue
        random = np.random.default_rng([7, seed])
        torch.manual_seed(seed)
        tied = family == "Qwen3"
        config = getattr(transformers, f"{family}Config")(vocab_size=32, num_hidden_layers=1, max_position_embeddings=128, tie_word_embeddings=tied, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes)
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval().float()
        tensors, compared = {}, {}
        for name, parameter in model.named_parameters():
            module, part = name.rsplit(".", 1)[0], name.split(".")[-2]
            default = usual if part.endswith("_proj") else None
            way = differing.get(part, default)
            if parameter.dim() != 2 or way is None:
                # Quotients of bf16 embeddings lie in the middle between two steps too often.
                stored = parameter.data if part == "embed_tokens" else parameter.data.to(torch.bfloat16)
                parameter.data = stored.float()
                tensors[name] = stored.clone()
                continue
            make, options = way
            rows, columns = parameter.shape
            if options.get("block") == "rows":
                options = dict(options, block=(1, columns))
            parts, weights, order = make(random, rows, columns, **options)
            assert weights.shape == (rows, columns)
            parameter.data = torch.from_numpy(np.ascontiguousarray(weights))
            tensors.update({f"{module}.{end}": tensor.clone() for end, tensor in parts.items()})
            if any(name.endswith(end) for end in COMPARED):
                compared[name] = parameter.data.clone()
            exact = isinstance(order, str) or options.get("group") in (24, 56) or make is nvfp4 and columns % 64
            if not exact and part != "embed_tokens":
                model.get_submodule(module).register_forward_pre_hook(rounded(None if order is None else order))
        folder = OUT / case
        folder.mkdir(parents=True, exist_ok=True)
        written = json.loads(config.to_json_string(use_diff=False))
        keep = ["architectures", "model_type", "vocab_size", "num_hidden_layers", "max_position_embeddings", "tie_word_embeddings", "hidden_size", "intermediate_size", "num_attention_heads",
                "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_parameters", "hidden_act", "attention_bias", "mlp_bias", "bos_token_id", "eos_token_id", "original_max_position_embeddings"]
        written = {name: written[name] for name in keep if written.get(name) is not None}
        written.update(architectures=[f"{family}ForCausalLM"], **config_more)
        (folder / "config.json").write_text(json.dumps(written, indent=1) + "\n")
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        if tied:
            # Two shards, with codes and scales apart.
            shards = {"model-00001-of-00002.safetensors": {n: t for n, t in tensors.items() if "scale" not in n}, "model-00002-of-00002.safetensors": {n: t for n, t in tensors.items() if "scale" in n}}
            for shard, held in shards.items():
                save_file(held, folder / shard)
            index = dict(weight_map={n: shard for shard, held in shards.items() for n in held})
            (folder / "model.safetensors.index.json").write_text(json.dumps(index) + "\n")
        else:
            save_file(tensors, folder / "model.safetensors")
        for attempt in range(10000):
            nearest[0] = 1.0
            tokens = torch.randint(3, 32, (POSITIONS,), generator=torch.Generator().manual_seed(attempt))
            with torch.no_grad():
                logits = model(tokens[None], use_cache=False).logits[0]
            if nearest[0] > 5e-5:
                break
        else:
            raise RuntimeError(f"{case}: every text has an activation between two steps")
        save_file(dict(tokens=tokens, logits=logits.contiguous(), **compared), folder / "expected.safetensors")
        print(case, float(logits.abs().max()), sum(path.stat().st_size for path in folder.iterdir()))


if __name__ == "__main__":
    main()
