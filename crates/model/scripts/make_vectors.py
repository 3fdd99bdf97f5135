"""Tiny random models of each family with the logits `transformers` computes, for the tests of this crate.

    python scripts/make_vectors.py [family ...]

Needs torch, transformers and safetensors; runs on a CPU in a minute. Every case is a Hugging Face directory under
tests/vectors with an `expected.safetensors` of `tokens` [512] and `logits` [512, vocab_size].
"""

import copy
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "vectors"
POSITIONS = 512
COMMON = dict(vocab_size=31, num_hidden_layers=2, max_position_embeddings=1024, bos_token_id=0, eos_token_id=1, pad_token_id=None)

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def rope(kind, **more):
    return dict(rope_type=kind, rope_theta=10000.0, **more)


def shape(hidden, inner, heads, kv_heads, **more):
    return dict(hidden_size=hidden, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=kv_heads, **more)


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=256)
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
LONG = dict(short_factor=[1.0 + 0.1 * i for i in range(6)], long_factor=[1.5 + 0.7 * i for i in range(6)], partial_rotary_factor=0.75)

# family -> [(configuration class, settings, weight type)]; the seed is the case's place in the list.
FAMILIES = {
    "llama": [
        ("LlamaConfig", shape(33, 48, 3, 1, head_dim=16), F32),
        ("LlamaConfig", shape(40, 56, 4, 2, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-5, rope_parameters=YARN), BF16),
        ("LlamaConfig", shape(32, 24, 2, 1, head_dim=32, rope_parameters=LLAMA3), F16),
    ],
    "mistral": [
        ("MistralConfig", shape(32, 56, 4, 2, sliding_window=61), F32),
        ("MistralConfig", shape(36, 40, 3, 3, head_dim=20, sliding_window=None, tie_word_embeddings=True), F16),
    ],
    "qwen2": [
        ("Qwen2Config", shape(42, 32, 7, 1, tie_word_embeddings=True), F32),
        ("Qwen2Config", shape(40, 48, 5, 5, num_hidden_layers=3, use_sliding_window=True, sliding_window=37, max_window_layers=1), BF16),
    ],
    "qwen3": [
        ("Qwen3Config", shape(40, 56, 4, 2, head_dim=24, tie_word_embeddings=True, rope_parameters=YARN), BF16),
        ("Qwen3Config", shape(36, 44, 3, 1, head_dim=32, attention_bias=True), F16),
    ],
    "qwen3_5": [
        ("Qwen3_5TextConfig", shape(33, 48, 3, 1, head_dim=32, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=12, linear_value_head_dim=20), F32),
        ("Qwen3_5TextConfig", shape(40, 56, 4, 2, head_dim=64, num_hidden_layers=3, layer_types=["full_attention", "linear_attention", "linear_attention"], attention_bias=True, tie_word_embeddings=True,
                                    linear_conv_kernel_dim=3, linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=16, linear_value_head_dim=72), F16),
        ("Qwen3_5TextConfig", shape(36, 40, 4, 4, head_dim=16, num_hidden_layers=5, layer_types=["linear_attention", "full_attention"] * 2 + ["linear_attention"],
                                    rope_parameters=rope("default", partial_rotary_factor=0.5), linear_num_key_heads=1, linear_num_value_heads=3, linear_key_head_dim=24, linear_value_head_dim=8), BF16),
    ],
    "phi3": [
        ("Phi3Config", shape(48, 56, 3, 1, original_max_position_embeddings=600, rope_parameters=rope("longrope", **LONG)), BF16),
        ("Phi3Config", shape(48, 40, 3, 3, original_max_position_embeddings=256, sliding_window=99, rope_parameters=rope("longrope", **LONG)), F16),
    ],
    "phi": [
        ("PhiConfig", shape(24, 96, 3, 3), F32),
        ("PhiConfig", shape(40, 36, 2, 1, partial_rotary_factor=0.4, qk_layernorm=True), F16),
    ],
    "gemma2": [
        ("Gemma2Config", shape(32, 40, 4, 2, head_dim=12, query_pre_attn_scalar=12, sliding_window=33, attn_logit_softcapping=5.0, final_logit_softcapping=6.0), F32),
        ("Gemma2Config", shape(32, 56, 2, 1, head_dim=20, query_pre_attn_scalar=28, num_hidden_layers=3, sliding_window=80, tie_word_embeddings=False), BF16),
    ],
    "gemma3": [
        ("Gemma3TextConfig", shape(36, 48, 3, 1, head_dim=24, query_pre_attn_scalar=24, num_hidden_layers=3, sliding_window=40, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                   rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=50000.0, factor=4.0), sliding_attention=rope("default"))), BF16),
        ("Gemma3TextConfig", shape(24, 32, 4, 4, head_dim=8, query_pre_attn_scalar=8, num_hidden_layers=6, sliding_window=70), BF16),
    ],
}

def randomise(model, seed):
    """Weights large enough that every part of the model shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            is_bias = name.endswith("bias")
            # Norms of the Gemma and Qwen3.5 kind multiply by 1 + weight.
            centre_zero = "Gemma" in type(model).__name__ or ("Qwen3_5" in type(model).__name__ and "linear_attn.norm" not in name)
            centre = 0.0 if is_bias or centre_zero else 1.0
            parameter.data = centre + 0.2 * noise
            if name.endswith("A_log"):
                # Memories that last from a few tokens to a few hundred.
                parameter.data = 2.0 * noise - 3.0
        elif "embed" in name:
            parameter.data = noise
        else:
            parameter.data = 1.3 * noise / parameter.shape[1] ** 0.5


def main():
    wanted = sys.argv[1:] or list(FAMILIES)
    for family in wanted:
        for seed, (config_class, settings, dtype) in enumerate(FAMILIES[family]):
            config = getattr(transformers, config_class)(**{**COMMON, **settings})
            config._attn_implementation = "eager"
            model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
            randomise(model, 1000 + seed)
            # Computed in f32 from the values as they are stored; buffers such as rotary frequencies stay exact.
            for parameter in model.parameters():
                parameter.data = parameter.data.to(dtype).float()
            directory = OUT / f"{family}-{seed}"
            copy.deepcopy(model).to(dtype).save_pretrained(directory)
            tokens = torch.randint(0, config.get_text_config().vocab_size, (POSITIONS,), generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                logits = model(tokens[None]).logits[0]
            save_file({"tokens": tokens.int(), "logits": logits.contiguous()}, directory / "expected.safetensors")
            (directory / "generation_config.json").unlink(missing_ok=True)
            size = sum(file.stat().st_size for file in directory.iterdir())
            print(f"{directory.name}: {size} bytes, logits deviate by {logits.std():.2f}")


if __name__ == "__main__":
    main()
