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
COMMON = dict(vocab_size=41, num_hidden_layers=2, max_position_embeddings=1024, bos_token_id=0, eos_token_id=1, pad_token_id=None)

# family -> [(configuration class, settings, weight type)]; the seed is the case's place in the list.
FAMILIES = {
    "llama": [
        ("LlamaConfig", dict(hidden_size=48, intermediate_size=72, num_attention_heads=3, num_key_value_heads=1, head_dim=32), torch.float32),
        ("LlamaConfig", dict(hidden_size=40, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, attention_bias=True,
                             mlp_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-5,
                             rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=256)),
         torch.bfloat16),
    ],
}


def randomise(model, seed):
    """Weights large enough that every part of the model shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            is_bias = name.endswith("bias")
            # Norms of the Gemma kind multiply by 1 + weight.
            centre = 0.0 if is_bias or "Gemma" in type(model).__name__ else 1.0
            parameter.data = centre + 0.2 * noise
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
