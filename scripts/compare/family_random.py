"""Random settings of a family, and config.json written in other words with the same meaning or another."""

import dataclasses
import json

# Settings that change no logits, or that other settings determine.
LEFT = {
    "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "model_type", "num_labels", "chunk_size", "mamba_chunk_size", "mamba_expand",
    "expand", "time_step_rank", "time_step_max", "time_step_floor", "num_logits_to_keep", "head_dim", "layer_types", "rope_parameters", "mamba_hidden_act",
    "vocab_size_per_layer_input", "query_pre_attn_scalar", "layers_block_type", "attn_layer_indices", "mlp_layer_types", "first_k_dense_replace", "num_mtp_layers",
    "num_nextn_predict_layers", "full_attn_idxs", "num_experts_per_tok", "is_decoder", "add_cross_attention", "use_cache", "return_dict", "output_attentions", "torchscript",
    "output_hidden_states", "is_encoder_decoder", "chunk_size_feed_forward", "embedding_initializer_range", "num_local_experts", "n_routed_experts", "enable_moe_block",
    "num_experts", "top_k_experts", "moe_intermediate_size", "hidden_size_per_layer_input", "original_max_position_embeddings", "mamba_d_head", "mamba_d_ssm", "num_ln_in_parallel_attn",
    "mamba_head_dim", "mamba_num_heads", "expand", "num_heads", "residual_in_fp32", "rescale_prenorm_residual", "use_mamba_kernels", "n_embd", "n_head", "n_layer", "n_positions",
    "n_shared_experts", "n_group", "topk_group", "output_router_logits", "norm_topk_prob", "moe_shared_expert_intermediate_size", "moe_latent_size", "routed_scaling_factor",
    "topk_method", "moe_shared_expert_overlap", "router_aux_loss_coef", "z_loss_coefficient", "linear_num_value_heads", "no_rope_layers", "pretraining_tp", "use_hidden",
}
ACTIVATIONS = ["silu", "silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "relu", "relu2", "quick_gelu", "tanh"]
CHOICES = {
    "vocab_size": [31, 33, 64, 257],
    "hidden_size": [32, 32, 40, 48, 64],
    "intermediate_size": [24, 48, 56, 33],
    "num_attention_heads": [1, 2, 3, 4, 4, 6, 8],
    "num_hidden_layers": [1, 2, 3, 4, 5, 6, 7],
    "sliding_window": [None, 1, 2, 7, 37, 64, 150, 199, 200, 400],
    "max_window_layers": [0, 1, 2, 3, 9],
    "attn_logit_softcapping": [None, 2.0, 5.0, 50.0],
    "final_logit_softcapping": [None, 2.0, 15.0],
    "clip_qkv": [None, 0.7, 8.0],
    "kv_lora_rank": [16, 24, 32, 48],
    "q_lora_rank": [None, 12, 20, 32],
    "qk_nope_head_dim": [8, 12, 16, 20],
    "qk_rope_head_dim": [8, 16, 24],
    "v_head_dim": [8, 12, 20],
    "linear_head_dim": [8, 16, 72],
    "linear_num_heads": [1, 2, 3],
    "block_size": [16, 64, 256],
    "linear_attn_alpha_factor": [1, 0.5, 3.5],
    "full_attn_alpha_factor": [1, 0.5, 3.5],
    "mlp_alpha_factor": [1, 0.5, 3.5],
    "linear_attn_beta_factor": [1, 0.5, 1.5],
    "full_attn_beta_factor": [1, 0.5, 1.5],
    "mlp_beta_factor": [1, 0.5, 1.5],
    "index_topk": [1, 7, 33, 64, 150, 250],
    "index_head_dim": [24, 32, 40],
    "index_n_heads": [16, 17, 20],
    "conv_L_cache": [2, 3, 4, 7],
    "block_multiple_of": [8, 12, 256],
    "mamba_d_state": [4, 8, 12],
    "mamba_n_groups": [1, 2, 4],
    "mamba_d_conv": [2, 3, 4, 5],
    "n_groups": [1, 2, 4],
    "state_size": [4, 8, 12],
    "ssm_state_size": [4, 8, 12],
    "conv_kernel": [2, 3, 4, 5],
    "time_step_min": [0.001, 0.3],
    "time_step_limit": [(0.0, float("inf")), (0.1, 1.5), (0.2, float("inf"))],
    "mlp_multipliers": [None, [0.9, 0.5]],
    "ssm_multipliers": [None, [0.7, 0.9, 1.2, 0.8, 1.1]],
    "rotary_dim": [4, 8],
    "no_rope_layer_interval": [1, 2, 3, 4],
    "sliding_window_pattern": [2, 3, 4],
    "position_embedding_type": [None, "rope", "nope"],
    "num_kv_shared_layers": [0, 1, 2],
    "num_global_key_value_heads": [None, 1, 2],
    "global_head_dim": [8, 16, 24],
    "use_bidirectional_attention": [None, False, True, "vision", "all"],
    "linear_conv_kernel_dim": [2, 3, 4],
    "linear_key_head_dim": [8, 16],
    "linear_value_head_dim": [8, 16],
    "linear_num_key_heads": [1, 2],
    "ffn_hidden_size": [None, 40],
    "n_inner": [None, 40],
    "num_kv_heads": [None, 1, 2, 4],
    "scale_depth": [None, 1.1],
    "dim_model_base": [None, 20],
    "attention_multiplier": [1.0, 0.2, 0.4],
}


def rope(rng, head_dim, allowed=("default", "linear", "llama3", "yarn", "longrope", "dynamic")):
    kind = rng.choice(("default", "default", *(kind for kind in allowed if kind != "dynamic" or rng.random() < 0.2)))
    own = dict(rope_type=kind, rope_theta=rng.choice([100.0, 10000.0, 500000.0]))
    part = 1.0
    if rng.random() < 0.2:
        part = own["partial_rotary_factor"] = rng.choice([0.25, 0.5, 0.75, 1.0, 0.4, 0.3])
    if kind != "default":
        own["factor"] = rng.choice([1.0, 2.0, 3.5, 8.0])
    if kind == "llama3":
        own.update(low_freq_factor=rng.choice([1.0, 0.5]), high_freq_factor=rng.choice([4.0, 6.0]))
    if kind in ("llama3", "yarn", "longrope") and rng.random() < 0.8:
        own["original_max_position_embeddings"] = rng.choice([32, 64, 256])
    if kind == "yarn":
        for name, values in dict(beta_fast=[16.0, 32.0], beta_slow=[1.0, 2.0], mscale=[0.7, 1.0], mscale_all_dim=[0.5, 1.0], attention_factor=[0.8, 1.3], truncate=[True, False]).items():
            if rng.random() < 0.3:
                own[name] = rng.choice(values)
    if kind == "longrope":
        pairs = int(head_dim * part) // 2
        own.update(short_factor=[round(rng.uniform(0.9, 2.0), 2) for _ in range(pairs)], long_factor=[round(rng.uniform(1.0, 9.0), 2) for _ in range(pairs)])
        if rng.random() < 0.3:
            own["attention_factor"] = 1.2
        if rng.random() < 0.3:
            own.pop("factor")
    return own


def defaults(config_class):
    found = {}
    for field in dataclasses.fields(config_class):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def draw(rng, config_class, start, kinds, change=0.4):
    """Settings near those of `start`; `kinds` are the types of layers that the family has."""
    settings, known = dict(start), defaults(config_class)
    for name, default in known.items():
        if name in LEFT or name.startswith("_") or rng.random() > change or "dropout" in name or "initializer" in name or "pdrop" in name:
            continue
        if name in ("hidden_size",) and ("mamba_n_heads" in settings or "num_heads" in settings or "mamba_num_heads" in settings):
            continue
        if name in ("mamba_n_heads",):
            continue
        if name == "alibi" and rng.random() < 0.8 or name == "hidden_act" and any(key.startswith("mamba_") or key == "num_heads" for key in known) and rng.random() < 0.7:
            continue
        if name in CHOICES:
            settings[name] = rng.choice(CHOICES[name])
        elif name in ("hidden_act", "hidden_activation", "activation", "activation_function", "mlp_hidden_act"):
            settings[name] = rng.choice([*ACTIVATIONS, default, default])
        elif name.endswith(("eps", "epsilon")):
            settings[name] = rng.choice([1e-3, 1e-5, 1e-6, 1e-8, 1e-12])
        elif isinstance(default, bool):
            settings[name] = rng.random() < 0.5
        elif isinstance(default, float):
            settings[name] = round(default * rng.uniform(0.3, 2.0), 3)
    heads = settings.get("num_attention_heads", 4)
    if "num_key_value_heads" in known and rng.random() < 0.6:
        settings["num_key_value_heads"] = rng.choice([count for count in range(1, heads + 1) if heads % count == 0])
    if heads % (settings.get("num_key_value_heads") or heads):
        settings["num_key_value_heads"] = 1
    head_dim = None
    if "head_dim" in known and config_class.model_type not in ("mamba2",):
        head_dim = rng.choice([8, 16, 16, 24, 32, settings.get("head_dim", known["head_dim"])])
        settings["head_dim"] = head_dim
    layers = settings.get("num_hidden_layers", 4)
    if "query_pre_attn_scalar" in known:
        settings["query_pre_attn_scalar"] = rng.choice([8, 16, 20, 256])
    if "layer_types" in known:
        settings["layer_types"] = None if not kinds or rng.random() < 0.3 else [rng.choice(sorted(kinds)) for _ in range(layers)]
    if "layer_rope_theta" in known:
        settings["layer_rope_theta"] = rng.choice([None, [rng.choice([0, 500.0]) for _ in range(layers)], [10000.0] * layers])
    if "no_rope_layers" in known and rng.random() < 0.4:
        settings["no_rope_layers"] = [rng.choice([0, 1]) for _ in range(layers)]
    if "attn_layer_indices" in known:
        settings["attn_layer_indices"] = [layer for layer in range(layers) if rng.random() < 0.5]
    if "full_attn_idxs" in known and settings.get("layer_types") is None:
        settings["full_attn_idxs"] = [layer for layer in range(layers) if rng.random() < 0.5]
    if "layers_block_type" in known:
        settings["layers_block_type"] = [rng.choice(["linear_attention", "mlp", "full_attention"]) for _ in range(layers)]
        settings.pop("num_hidden_layers", None)
    if "first_k_dense_replace" in known:
        settings["first_k_dense_replace"] = layers
    if "mlp_layer_types" in known:
        settings["mlp_layer_types"] = ["dense"] * layers
    if "rope_parameters" in known and rng.random() < 0.7:
        width = settings.get("qk_rope_head_dim") or head_dim or settings.get("hidden_size", 32) // heads
        if kinds and "sliding_attention" in kinds and rng.random() < (0.8 if isinstance(known.get("rope_parameters"), dict) else 0.3):
            settings["rope_parameters"] = {kind: rope(rng, width) for kind in ("full_attention", "sliding_attention")}
        else:
            settings["rope_parameters"] = rope(rng, width)
        if "original_max_position_embeddings" in known:
            settings["original_max_position_embeddings"] = rng.choice([64, 256])
    return settings


def rewrite(rng, directory, config_class):
    """Leaves out what the class has by default, and spells rotations as older files do."""
    file = directory / "config.json"
    config = json.loads(file.read_text())
    whole, config = config, config.get("text_config", config)
    known = json.loads(json.dumps(defaults(config_class), default=str))
    for name in list(config):
        if name in ("model_type", "architectures", "dtype", "layer_types"):
            continue
        if name in known and config[name] == known[name] and rng.random() < 0.7:
            del config[name]
        elif name in known and config[name] is None and rng.random() < 0.3:
            del config[name]
    if "tie_word_embeddings" in whole and rng.random() < 0.15:
        # A file with a head of its own is not tied.
        whole["tie_word_embeddings"] = True
    rotation = config.get("rope_parameters")
    if isinstance(rotation, dict) and rng.random() < 0.1:
        for part in (rotation, *rotation.values()):
            if isinstance(part, dict):
                part.pop("rope_theta", None)
    if isinstance(rotation, dict) and "full_attention" not in rotation and "sliding_attention" not in rotation and rng.random() < 0.4:
        rotation = dict(config.pop("rope_parameters"))
        config["rope_theta"] = rotation.pop("rope_theta", 10000.0)
        if "partial_rotary_factor" in rotation and rng.random() < 0.7:
            config["partial_rotary_factor"] = rotation.pop("partial_rotary_factor")
        kind = rotation.pop("rope_type", "default")
        if kind != "default" or rotation:
            rotation[rng.choice(["type", "rope_type"])] = kind
            config["rope_scaling"] = rotation
        elif rng.random() < 0.5:
            config["rope_scaling"] = None
    if whole is config and rng.random() < 0.1:
        config.pop("architectures", None)
    file.write_text(json.dumps(whole))
