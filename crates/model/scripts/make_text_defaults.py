"""The settings of text models that config.json of a picture or sound model may leave out, by the classes of transformers.

    python scripts/make_text_defaults.py

Writes src/families/text_defaults.json: for each type of text model the defaults of its configuration class.
"""

import json
import pathlib

from transformers import CONFIG_MAPPING

OUT = pathlib.Path(__file__).resolve().parent.parent / "src" / "families" / "text_defaults.json"
TYPES = """llama mistral ministral ministral3 smollm3 vaultgemma seed_oss arcee nemotron jais2 olmo olmo2 olmo3 glm glm4 ernie4_5
helium hunyuan_v1_dense apertus starcoder2 stablelm cwm gpt_neox persimmon phi qwen2 qwen3 gemma gemma2 gemma3_text cohere cohere2 exaone4 granite hyperclovax phi3
qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen3_vl_text qwen3_5_text gemma4_text gemma4_unified_text muse_glimmer_text
qwen3_vl_moe_text qwen3_5_moe_text qwen3_omni_moe_text glm4v_moe_text ernie4_5_vl_moe_text llama4_text aria_text deepseek_v3 mistral4""".split()
NAMES = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
max_position_embeddings rms_norm_eps layer_norm_eps hidden_act hidden_activation attention_bias mlp_bias sliding_window
use_sliding_window max_window_layers query_pre_attn_scalar num_experts_per_tok
moe_intermediate_size n_shared_experts first_k_dense_replace norm_topk_prob routed_scaling_factor n_group topk_group q_lora_rank kv_lora_rank
qk_nope_head_dim qk_rope_head_dim v_head_dim moe_topk moe_num_shared_experts moe_k intermediate_size_mlp""".split()


def config_class(name):
    if name in CONFIG_MAPPING:
        return CONFIG_MAPPING[name]
    import transformers

    known = {cls.model_type: cls for cls in map(lambda key: getattr(transformers, key, None), dir(transformers)) if getattr(cls, "model_type", None)}
    return known[name]


def main():
    defaults = {}
    for name in TYPES:
        config = config_class(name)
        # Those of the class: an instance also has some that follow from others.
        defaults[name] = {key: getattr(config, key) for key in NAMES if getattr(config, key, None) is not None}
        theta = getattr(config, "default_theta", 10_000.0)
        if isinstance(theta, (int, float)) and theta != 10_000.0:
            defaults[name]["rope_theta"] = theta
    lines = (f"{json.dumps(name)}: {json.dumps(settings, sort_keys=True)}" for name, settings in sorted(defaults.items()))
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
