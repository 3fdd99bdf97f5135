"""Random LoRA adapters of the tiny models in tests/vectors, with the logits `peft` computes, for the tests of this crate.

    python scripts/make_adapter_vectors.py LLAMA_CPP

Needs torch, transformers, peft and safetensors, and the source of llama.cpp for `convert_lora_to_gguf.py`; runs on a CPU in a minute. Every
case is a folder of tests/vectors/adapters as PEFT writes it, with an `expected.safetensors` of `tokens` [48] and `logits` [48, vocab_size]
of the base that `base.txt` names, and of some bases the same adapter as a GGUF file. `shipped-q8_0` is an adapter of fixtures/model: `adapter.gguf`
in q8_0, and `plain.gguf` with the same weights in f32, as the `gguf` package unpacks them.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import peft
import torch
import transformers
from safetensors.torch import save_file

VECTORS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "vectors"
OUT = VECTORS / "adapters"
POSITIONS = 48

# case -> (base, settings of LoraConfig, whether a GGUF file is made)
CASES = {
    "llama-all": ("llama-0", dict(r=4, lora_alpha=8, target_modules="all-linear"), True),
    "llama-rs": ("llama-1", dict(r=6, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"]), False),
    "qwen3-patterns": (
        "qwen3-0",
        dict(
            r=4,
            lora_alpha=6,
            target_modules=["q_proj", "k_proj", "o_proj", "up_proj"],
            rank_pattern={"model.layers.0.self_attn.q_proj": 3, "up_proj": 17},
            alpha_pattern={"layers.1.*.k_proj": 11, "o_proj": 2},
        ),
        False,
    ),
    "phi3-fused": ("phi3-0", dict(r=5, lora_alpha=10, target_modules=["qkv_proj", "gate_up_proj", "o_proj", "down_proj"]), True),
    "qwen3_5-states": ("qwen3_5-0", dict(r=3, lora_alpha=3, target_modules=["in_proj_qkv", "out_proj", "q_proj", "gate_proj"]), False),
}


def load(base):
    # In f32 from the values as they are stored.
    return transformers.AutoModelForCausalLM.from_pretrained(VECTORS / base, dtype=torch.float32, attn_implementation="eager").eval()


def adapted(model, settings, seed, name="default"):
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings), adapter_name=name)
    randomise(model, seed, name)
    return model.eval()


def randomise(model, seed, name):
    """Parts of about the size of the weights, so that each shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    for parameter_name, parameter in model.named_parameters():
        if f".lora_A.{name}" in parameter_name or f".lora_B.{name}" in parameter_name:
            parameter.data = 0.7 * torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5


def logits(model, tokens):
    with torch.no_grad():
        return model(tokens[None]).logits[0].contiguous()


def to_gguf(llama_cpp, base, folder):
    with tempfile.TemporaryDirectory() as place:
        for file in (VECTORS / base).glob("*.json"):
            shutil.copy(file, place)
        script = pathlib.Path(llama_cpp) / "convert_lora_to_gguf.py"
        subprocess.run([sys.executable, script, "--base", place, "--outtype", "f32", "--outfile", folder / "adapter.gguf", folder], check=True)


def quantised():
    folder = OUT / "shipped-q8_0"
    folder.mkdir(parents=True)
    random = np.random.default_rng(60)
    # Keys of the first layer: [rank, inputs] and [outputs, rank].
    parts = {"lora_a": (32, 128), "lora_b": (128, 32)}
    packed = {part: gguf.quants.quantize(random.standard_normal(shape, np.float32) / 8, gguf.GGMLQuantizationType.Q8_0) for part, shape in parts.items()}
    for name in ("adapter", "plain"):
        writer = gguf.GGUFWriter(folder / f"{name}.gguf", "llama")
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", 32.0)
        for part, data in packed.items():
            kind = gguf.GGMLQuantizationType.Q8_0
            tensor = f"blk.0.attn_k.weight.{part}"
            if name == "adapter":
                writer.add_tensor(tensor, data, raw_dtype=kind)
            else:
                writer.add_tensor(tensor, gguf.quants.dequantize(data, kind))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for seed, (case, (base, settings, has_gguf)) in enumerate(CASES.items()):
        folder = OUT / case
        model = adapted(load(base), settings, 50 + seed)
        model.save_pretrained(folder)
        tokens = torch.randint(0, model.config.get_text_config().vocab_size, (POSITIONS,), generator=torch.Generator().manual_seed(seed))
        with_adapter = logits(model, tokens)
        with model.disable_adapter():
            without = logits(model, tokens)
        expected = {"tokens": tokens.int(), "logits": with_adapter, "without": without}
        if case == "llama-all":
            # A second adapter beside the first, at half its strength.
            second = adapted(load(base), dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "gate_proj"]), 90)
            second.save_pretrained(OUT / "llama-second")
            (OUT / "llama-second" / "README.md").unlink(missing_ok=True)
            (OUT / "llama-second" / "base.txt").write_text(base)
            model.load_adapter(OUT / "llama-second", adapter_name="second")
            model.base_model.set_adapter(["default", "second"])
            for module in model.modules():
                if isinstance(module, peft.tuners.lora.LoraLayer) and "second" in module.scaling:
                    module.scaling["second"] *= 0.5
            expected["both"] = logits(model, tokens)
        save_file(expected, folder / "expected.safetensors")
        (folder / "base.txt").write_text(base)
        (folder / "README.md").unlink(missing_ok=True)
        if has_gguf:
            to_gguf(sys.argv[1], base, folder)
        settings = json.loads((folder / "adapter_config.json").read_text())
        settings["base_model_name_or_path"] = base
        (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1, sort_keys=True))
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{case}: {size} bytes, logits move by {(with_adapter - without).std():.2f} of {without.std():.2f}")
    quantised()


if __name__ == "__main__":
    main()
