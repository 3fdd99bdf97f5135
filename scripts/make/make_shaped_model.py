#!/usr/bin/env python3
"""Writes a GGUF file of random weights in the shape of a released model of few layers, by transformers and llama.cpp's converter.

    scripts/make/make_shaped_model.py LLAMA_CPP OUT.gguf gemma4-e4b|lfm2-1.2b|deepseek-v2-lite [--layers 8]

For shapes that scripts/make/make_model.py does not know. Widths are those of the model; the vocabulary has 32,768 tokens. The feed-forward parts of the
shape of DeepSeek-V2-Lite are dense, as wide as its first,
and its queries go through a matrix of rank 768, without which llama.cpp takes 26 or 27 layers alone. Files hold bf16: `llama-quantize OUT.gguf Q4.gguf Q4_K_M` quantises them.
Needs torch, transformers and what llama.cpp's converter needs.
"""

import argparse
import importlib.machinery
import importlib.util
import pathlib
import shutil
import sys
import tempfile

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

SCRIPTS = pathlib.Path(__file__).resolve().parent
VOCABULARY = 32_768


def gemma4(layers):
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(layers)]
    kinds[-1] = "full_attention"
    return CONFIG_MAPPING["gemma4_text"](
        hidden_size=2560, intermediate_size=10_240, num_attention_heads=8, num_key_value_heads=2, head_dim=256, global_head_dim=512, sliding_window=512,
        num_hidden_layers=layers, layer_types=kinds, num_kv_shared_layers=min(2, layers - 2), hidden_size_per_layer_input=256, vocab_size=VOCABULARY,
        vocab_size_per_layer_input=VOCABULARY, max_position_embeddings=131_072,
    )


def lfm2(layers):
    kinds = ["full_attention" if layer % 3 == 2 else "conv" for layer in range(layers)]
    return CONFIG_MAPPING["lfm2"](
        hidden_size=2048, intermediate_size=12_288, num_attention_heads=32, num_key_value_heads=8, num_hidden_layers=layers, layer_types=kinds,
        vocab_size=VOCABULARY, max_position_embeddings=128_000,
    )


def deepseek(layers):
    return CONFIG_MAPPING["deepseek_v2"](
        hidden_size=2048, intermediate_size=10_944, num_attention_heads=16, num_key_value_heads=16, q_lora_rank=768, kv_lora_rank=512,
        qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, num_hidden_layers=layers, first_k_dense_replace=layers, num_experts_per_tok=6, vocab_size=VOCABULARY,
        max_position_embeddings=163_840,
    )


SHAPES = {"gemma4-e4b": gemma4, "lfm2-1.2b": lfm2, "deepseek-v2-lite": deepseek}


def spread_attention(model):
    """Gives normed queries the logits of a trained model, about 1 apart. Otherwise a token sees one other alone, and most weights are subnormal numbers."""
    for name, weights in model.named_parameters():
        if name.endswith("q_norm.weight"):
            weights.data /= len(weights) ** 0.5


def family_matrix():
    """The script beside this one, which knows how to call the converter."""
    loader = importlib.machinery.SourceFileLoader("family_matrix", str(SCRIPTS.parent / "compare/family-matrix"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("family_matrix", loader))
    sys.modules["family_matrix"] = module
    loader.exec_module(module)
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="LLAMA_CPP")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=8)
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(dir=given.out.resolve().parent) as temporary:
        folder = pathlib.Path(temporary) / "model"
        model = AutoModelForCausalLM.from_config(SHAPES[given.shape](given.layers), dtype=torch.bfloat16)
        spread_attention(model)
        model.save_pretrained(folder)
        del model
        file = family_matrix().convert(given.source, folder, torch.bfloat16)
        shutil.move(file, given.out)


if __name__ == "__main__":
    main()
