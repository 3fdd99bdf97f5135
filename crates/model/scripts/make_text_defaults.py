"""The settings that config.json may leave out, by the classes of transformers.

    python scripts/make_text_defaults.py

Writes src/families/text_defaults.json: for each type of text model the defaults of its configuration class, and the classes around a
text model that tie embeddings or have defaults of their own for it.
"""

import dataclasses
import inspect
import json
import math
import pathlib
import re

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig

OUT = pathlib.Path(__file__).resolve().parent.parent / "src" / "families" / "text_defaults.json"
TYPES = """llama mistral ministral ministral3 smollm3 vaultgemma seed_oss arcee nemotron jais2 olmo olmo2 olmo3 glm glm4 ernie4_5
helium hunyuan_v1_dense apertus apertus1p5_text starcoder2 stablelm cwm gpt_neox persimmon phi qwen2 qwen3 gemma gemma2 gemma3_text cohere cohere2 cohere_compass_text exaone4
granite granite_swa hyperclovax phi3 qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen3_vl_text qwen3_5_text gemma4_text gemma4_unified_text muse_glimmer_text exaone internlm3
iquestcoder falcon gptj nanochat minicpm3 youtu lfm2 lfm3 granitemoehybrid bamba falcon_h1 mamba2 nemotron_h emu3_text_model olmo_hybrid lara_mini
gpt2 gpt_bigcode opt biogpt glm4v_text glm_ocr_text granite4_vision_text granite_docling_text hunyuan_vl_text paddleocr_vl_text
qwen3_vl_moe_text qwen3_5_moe_text qwen4_exp_text qwen3_omni_moe_text glm4v_moe_text ernie4_5_vl_moe_text llama4_text aria_text deepseek_v3 deepseek_v32 glm_moe_dsa mistral4
deepseek_v2 glm4_moe_lite mixtral qwen2_moe qwen3_moe qwen3_next gpt_oss olmoe granitemoe granitemoeshared ernie4_5_moe hunyuan_v1_moe phimoe dots1 glm4_moe kimi_linear minimax
sarvam_mla sarvam_moe axk1 lfm2_moe afmoe cohere2_moe exaone_moe flex_olmo flint granitemoe_swa hy_v3 kolibri1 laguna mellum mimo_v2_flash solar_open minimax_m2""".split()
# Settings that change no logits of a text.
IGNORED = ("initializer", "dropout", "pdrop", "token_id", "chunk_size", "logits_to_keep", "aux_loss", "loss_coefficient", "pretraining_tp", "use_cache", "kernels")


def config_class(name):
    if name in CONFIG_MAPPING:
        return CONFIG_MAPPING[name]
    known = {cls.model_type: cls for cls in map(lambda key: getattr(transformers, key, None), dir(transformers)) if getattr(cls, "model_type", None)}
    return known[name]


def is_setting(name, value):
    known = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    if name in known and name != "tie_word_embeddings" or any(word in name for word in IGNORED):
        return False
    return isinstance(value, (bool, int, str)) or isinstance(value, float) and math.isfinite(value)


def main():
    defaults = {}
    for name in TYPES:
        config = config_class(name)
        # Defaults of the class, because an instance also has derived fields.
        fields = {field.name: field.default for field in dataclasses.fields(config)}
        defaults[name] = {key: value for key, value in fields.items() if is_setting(key, value)}
        theta = getattr(config, "default_theta", 10_000.0)
        if isinstance(theta, (int, float)) and theta != 10_000.0:
            defaults[name]["rope_theta"] = theta
    # Classes around a text model say by themselves if embeddings are tied.
    rows = (OUT.parent / "wrappers.rs").read_text()
    for name in re.findall(r'"(\w+ForConditionalGeneration)"', rows):
        # Some classes are those of a model's own code.
        if not hasattr(transformers, name):
            continue
        config = getattr(transformers, name).config_class
        tied = {field.name: field.default for field in dataclasses.fields(config)}.get("tie_word_embeddings")
        if tied is True:
            defaults[name] = {"tie_word_embeddings": True}
        # Some add settings of their own to a text model that lacks them.
        if '.init_kwargs, **self.text_config' in inspect.getsource(config):
            own = config.sub_configs_defaults["text_config"].init_kwargs
            text = {key: value for key, value in own.items() if key == "rope_parameters" or is_setting(key, value)}
            defaults.setdefault(name, {})["text_config"] = text
    lines = (f"{json.dumps(name)}: {json.dumps(settings, sort_keys=True)}" for name, settings in sorted(defaults.items()))
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
