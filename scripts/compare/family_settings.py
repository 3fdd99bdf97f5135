"""Settings of the tiny models of family-matrix: by model_type, or by class for those that wrap a text model.

With `gguf=False` a GGUF file does not hold all of the settings, so none is compared.
"""


def base():
    return dict(
        vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=None,
    )


def rope(kind="default", **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=more.pop("theta", 10000.0), **more))


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
LINEAR = rope("linear", factor=3.0)
WINDOW = dict(sliding_window=37)
GEMMA4_UNIFIED = dict(num_hidden_layers=6, head_dim=16, global_head_dim=24, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2, **WINDOW)
GEMMA4 = dict(GEMMA4_UNIFIED, vocab_size_per_layer_input=31, hidden_size_per_layer_input=8)
# A vector of the tests beside the first of its name.
WITH_EXPERTS = dict(stored="experts")
HALF, B16 = dict(dtype="float16"), dict(dtype="bfloat16")
SECTIONS = rope("default", mrope_section=[2, 1, 1])


def like(*settings, **own):
    """Settings of which later ones take the place of earlier ones."""
    return {name: value for some in (*settings, own) for name, value in some.items()}


# With few heads many scores are zero, and torch chooses among equal ones in no order.
INDEXER = dict(index_topk=24, index_head_dim=32, index_n_heads=16)
KIMI = dict(linear_head_dim=16, linear_num_heads=3, linear_conv_kernel_dim=4)
LATENT = dict(kv_lora_rank=32, q_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=16, v_head_dim=20, num_key_value_heads=4)
MAMBA = dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2)
GRANITE = dict(embedding_multiplier=7.0, residual_multiplier=0.3, attention_multiplier=0.2, logits_scaling=5.0, num_local_experts=0, shared_intermediate_size=40)
NEMOTRON_EXPERTS = dict(n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, moe_intermediate_size=12, moe_shared_expert_intermediate_size=20, routed_scaling_factor=1.7)
NEMOTRON = dict(mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=8, head_dim=16)

DENSE = {
    "smollm3": [
        dict(B16, num_hidden_layers=5, tie_word_embeddings=True),
        dict(no_rope_layers=[1, 0, 0, 1], attention_bias=True, mlp_bias=True, tie_word_embeddings=False, **YARN),
        dict(no_rope_layer_interval=2, num_key_value_heads=4),
        dict(use_sliding_window=True, no_rope_layer_interval=2, layer_types=["full_attention", "sliding_attention"] * 2, **WINDOW),
    ],
    "gemma": [dict(B16, head_dim=16), dict(head_dim=8, num_key_value_heads=1, hidden_act="gelu", attention_bias=True), dict(head_dim=16, tie_word_embeddings=False)],
    "vaultgemma": [dict(B16, head_dim=12, query_pre_attn_scalar=12, **WINDOW), dict(head_dim=16, query_pre_attn_scalar=20, attn_logit_softcapping=5.0, final_logit_softcapping=4.0, **WINDOW)],
    "seed_oss": [dict(B16, head_dim=16), dict(head_dim=8, attention_bias=False, attention_out_bias=True, mlp_bias=True, **YARN)],
    "granite": [
        dict(B16, embedding_multiplier=7.0, residual_multiplier=0.3, attention_multiplier=0.2, logits_scaling=5.0),
        dict(embedding_multiplier=2.0, residual_multiplier=1.5, attention_multiplier=0.4, logits_scaling=0.5, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-3, **LLAMA3),
    ],
    "granite_swa": [
        dict(B16, embedding_multiplier=7.0, residual_multiplier=0.3, attention_multiplier=0.2, logits_scaling=5.0, **WINDOW),
        dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=False, layer_rope_theta=[0, 500.0, 500.0, 0], layer_types=["sliding_attention", "full_attention"] * 2, **WINDOW),
    ],
    "hyperclovax": [
        dict(B16, embedding_multiplier=5.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=3.0),
        dict(use_post_norm=False, residual_multiplier=0.7, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    ],
    "arcee": [dict(B16), dict(attention_bias=True, mlp_bias=True, head_dim=16, **YARN), dict(hidden_act="silu")],
    "nemotron": [dict(B16), dict(attention_bias=True, mlp_bias=True, head_dim=16, tie_word_embeddings=True, **rope(partial_rotary_factor=0.25))],
    "jais2": [dict(B16), dict(attention_bias=False, mlp_bias=False, head_dim=16)],
    "olmo": [dict(B16), dict(attention_bias=True, tie_word_embeddings=True, num_key_value_heads=4)],
    "olmo2": [dict(B16), dict(attention_bias=True, num_key_value_heads=1, tie_word_embeddings=True, **YARN)],
    "olmo3": [
        dict(B16, rope_parameters=dict(full_attention=YARN["rope_parameters"], sliding_attention=rope()["rope_parameters"]), **WINDOW),
        dict(layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention"], attention_bias=True, **WINDOW),
    ],
    "exaone": [dict(B16), dict(attention_bias=True, mlp_bias=True, head_dim=16, tie_word_embeddings=True, **LLAMA3)],
    "exaone4": [
        dict(B16, head_dim=16, **WINDOW),
        dict(sliding_window=None, layer_types=["full_attention"] * 4, tie_word_embeddings=True, **LLAMA3),
        dict(layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"], num_key_value_heads=1, **WINDOW),
    ],
    "glm": [dict(B16, head_dim=16), dict(head_dim=24, attention_bias=False, tie_word_embeddings=True, **rope(partial_rotary_factor=0.25)), dict(head_dim=8, rms_norm_eps=1e-5, **rope(partial_rotary_factor=1.0))],
    "glm4": [dict(B16, head_dim=16), dict(head_dim=24, attention_bias=False, num_key_value_heads=1, **rope(partial_rotary_factor=0.25))],
    "ernie4_5": [dict(B16, head_dim=16), dict(head_dim=8, use_bias=True, tie_word_embeddings=False, **YARN)],
    "helium": [dict(B16, head_dim=8, num_key_value_heads=4), dict(head_dim=8, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)],
    "hunyuan_v1_dense": [
        dict(B16, head_dim=16, **rope("dynamic", factor=1.0, alpha=50.0)),
        dict(head_dim=8, attention_bias=True, tie_word_embeddings=True, num_key_value_heads=1),
    ],
    "apertus": [dict(B16), dict(attention_bias=True, tie_word_embeddings=True, **YARN)],
    "apertus1p5_text": [dict(B16), dict(attention_bias=True, tie_word_embeddings=True, output_vocab_size=20)],
    "emu3_text_model": [dict(B16, pad_token_id=0), dict(pad_token_id=0, tie_word_embeddings=True, num_key_value_heads=1, **YARN)],
    "cohere_compass_text": [
        dict(B16, layer_types=["sliding_attention", "full_attention"] * 2, rope_parameters=dict(sliding_attention=dict(SECTIONS["rope_parameters"]), full_attention=None), **WINDOW),
        dict(logit_scale=0.3, attention_bias=True, layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention"], rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=500.0, mrope_section=[2, 1, 1]), full_attention=dict(YARN["rope_parameters"], mrope_section=[2, 1, 1])), **WINDOW),
        dict(rope_parameters=dict(full_attention=dict(SECTIONS["rope_parameters"]))),
    ],
    "olmo_hybrid": [
        dict(B16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=24),
        dict(layer_types=["linear_attention", "full_attention"] * 2, linear_allow_neg_eigval=False, attention_bias=True, num_key_value_heads=1, linear_conv_kernel_dim=3, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=None)),
    ],
    "cohere": [dict(B16, logit_scale=0.5), dict(use_qk_norm=True, attention_bias=True, tie_word_embeddings=False), dict(use_qk_norm=True, num_key_value_heads=1)],
    "cohere2": [dict(B16, logit_scale=0.25, **WINDOW), dict(layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"], attention_bias=True, **WINDOW)],
    "starcoder2": [dict(B16, **WINDOW), dict(use_bias=False, tie_word_embeddings=False, sliding_window=None), dict(hidden_act="gelu")],
    "stablelm": [dict(B16, use_qkv_bias=True), dict(qk_layernorm=True, use_parallel_residual=True, tie_word_embeddings=True), dict(qk_layernorm=True, **rope(partial_rotary_factor=0.5))],
    "cwm": [dict(B16, head_dim=16, **WINDOW), dict(head_dim=8, mlp_bias=True, layer_types=["sliding_attention", "full_attention"] * 2, **WINDOW)],
    "ministral": [dict(B16, head_dim=16, **WINDOW), dict(layer_types=["full_attention", "sliding_attention"] * 2, **WINDOW)],
    "ministral3": [
        dict(B16, head_dim=16, **rope("yarn", factor=8.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)),
        dict(head_dim=8, tie_word_embeddings=True, **WINDOW, **rope("yarn", factor=8.0, original_max_position_embeddings=64, mscale=1.0, llama_4_scaling_beta=0.1)),
    ],
    "gpt_neox": [dict(B16), dict(use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True, **rope(partial_rotary_factor=0.5)), dict(hidden_act="gelu_new")],
    "persimmon": [dict(B16), dict(qk_layernorm=False, tie_word_embeddings=True, **rope(partial_rotary_factor=0.25))],
    "falcon": [
        dict(B16, new_decoder_architecture=True, num_kv_heads=2, bias=True),
        dict(multi_query=True, ffn_hidden_size=40, **LINEAR),
        dict(multi_query=False, parallel_attn=False, bias=True),
        dict(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, activation="gelu_new"),
        dict(alibi=True),
    ],
    "gemma3n_text": [
        dict(B16, head_dim=16, num_kv_shared_layers=2, vocab_size_per_layer_input=96, hidden_size_per_layer_input=8, laurel_rank=6, altup_num_inputs=4, pad_token_id=0, activation_sparsity_pattern=[0.8, 0.0, 0.5, 0.0], layer_types=["sliding_attention", "full_attention"] * 2, **WINDOW),
        dict(head_dim=8, num_hidden_layers=5, num_kv_shared_layers=0, vocab_size_per_layer_input=128, hidden_size_per_layer_input=12, laurel_rank=8, altup_num_inputs=4, altup_active_idx=1, pad_token_id=0, attention_bias=True, intermediate_size=[40, 24, 56, 40, 48], **WINDOW),
        dict(gguf=False, head_dim=16, num_hidden_layers=12, num_kv_shared_layers=5, vocab_size_per_layer_input=128, hidden_size_per_layer_input=8, laurel_rank=6, altup_num_inputs=2, altup_correct_scale=False, pad_token_id=0, final_logit_softcapping=5.0, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 4, **WINDOW),
    ],
    "gemma4_text": [
        dict(B16, **(GEMMA4 | dict(head_dim=16, global_head_dim=32)), num_kv_shared_layers=2, attention_k_eq_v=True, num_global_key_value_heads=1, use_double_wide_mlp=True, final_logit_softcapping=6.0),
        GEMMA4 | dict(hidden_size_per_layer_input=0, attention_k_eq_v=False, num_global_key_value_heads=1),
        GEMMA4 | dict(num_hidden_layers=7, layer_types=None, num_kv_shared_layers=0, global_head_dim=8, attention_bias=True),
        GEMMA4 | dict(num_kv_shared_layers=4, layer_types=["sliding_attention", "full_attention"] * 3, rope_parameters=dict(full_attention=dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=50000.0), sliding_attention=dict(rope_type="default", rope_theta=900.0))),
        # The converter drops the factor.
        GEMMA4 | dict(gguf=False, rope_parameters=dict(full_attention=dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=50000.0, factor=2.0), sliding_attention=dict(rope_type="default", rope_theta=900.0))),
        GEMMA4 | dict(use_bidirectional_attention="vision", attention_k_eq_v=True, num_kv_shared_layers=1, use_double_wide_mlp=True),
        GEMMA4 | WITH_EXPERTS | dict(enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=12, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1),
        GEMMA4 | dict(enable_moe_block=True, num_experts=8, top_k_experts=3, moe_intermediate_size=20, num_kv_shared_layers=2, use_double_wide_mlp=True),
    ],
    "gemma4_unified_text": [dict(B16, **GEMMA4_UNIFIED), dict(**GEMMA4_UNIFIED, attention_k_eq_v=True, num_global_key_value_heads=1, num_kv_shared_layers=2, use_double_wide_mlp=True)],
    "nanochat": [dict(B16), dict(head_dim=16, attention_bias=True, final_logit_softcapping=4.0, num_key_value_heads=1, **rope(theta=500.0)), dict(hidden_act="silu", tie_word_embeddings=True)],
    "gpt2": [dict(B16, n_positions=256, n_embd=32, n_layer=4, n_head=4), dict(n_positions=200, n_embd=32, n_layer=4, n_head=2, n_inner=40, tie_word_embeddings=False, activation_function="gelu")],
    "gpt_bigcode": [dict(B16, n_positions=256, n_embd=32, n_layer=4, n_head=4), dict(n_positions=256, n_embd=32, n_layer=4, n_head=2, n_inner=40, multi_query=False, tie_word_embeddings=False)],
    "opt": [dict(B16, ffn_dim=48, max_position_embeddings=256), dict(ffn_dim=40, max_position_embeddings=256, enable_bias=False, layer_norm_elementwise_affine=False, tie_word_embeddings=False, activation_function="gelu"), dict(do_layer_norm_before=False), dict(word_embed_proj_dim=16)],
    "biogpt": [dict(B16, max_position_embeddings=256), dict(max_position_embeddings=256, scale_embedding=False, tie_word_embeddings=False, hidden_act="relu")],
    "gptj": [dict(B16, rotary_dim=4), dict(hidden_size=48, num_attention_heads=2, rotary_dim=16, n_inner=40)],
    "minicpm3": [
        like(B16, LATENT),
        like(LATENT, gguf=False, q_lora_rank=None, v_head_dim=12, attention_bias=True, mlp_bias=True, tie_word_embeddings=False, scale_emb=5.0, scale_depth=None, dim_model_base=None, **rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.8)),
        like(LATENT, gguf=False, scale_depth=1.1, dim_model_base=20, kv_lora_rank=24, qk_rope_head_dim=8, **rope("longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.5, 2.5, 3.5, 4.5], original_max_position_embeddings=256)),
    ],
    "deepseek_v2": [
        like(B16, LATENT, first_k_dense_replace=4),
        like(LATENT, q_lora_rank=None, v_head_dim=12, first_k_dense_replace=4, attention_bias=True, mlp_bias=True, **rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=0.7)),
    ],
    "deepseek_v3": [
        like(B16, LATENT, first_k_dense_replace=4, **rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0)),
        like(LATENT, q_lora_rank=None, v_head_dim=12, first_k_dense_replace=4, attention_bias=True, tie_word_embeddings=True),
        like(LATENT, gguf=False, first_k_dense_replace=4, rope_interleave=False),
    ],
    "glm4_moe_lite": [
        like(B16, LATENT, mlp_layer_types=["dense"] * 4),
        like(LATENT, gguf=False, q_lora_rank=None, attention_bias=True, rope_interleave=False, mlp_layer_types=["dense"] * 4),
    ],
    "deepseek_v32": [
        like(B16, LATENT, INDEXER, first_k_dense_replace=4),
        like(LATENT, INDEXER, gguf=False, first_k_dense_replace=4, attention_bias=True, tie_word_embeddings=True, index_topk=70, index_head_dim=16, **rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0)),
        like(LATENT, INDEXER, first_k_dense_replace=4, index_topk=1, qk_rope_head_dim=8),
    ],
    "glm_moe_dsa": [
        like(B16, LATENT, INDEXER, first_k_dense_replace=4),
        like(LATENT, INDEXER, gguf=False, first_k_dense_replace=4, attention_bias=True, index_topk=50, indexer_types=["full", "shared", "full", "shared"]),
        like(LATENT, INDEXER, gguf=False, first_k_dense_replace=4, num_hidden_layers=6, indexer_types=["full", "full", "shared", "shared", "full", "shared"]),
    ],
    "lfm2": [
        dict(B16, head_dim=16, layer_types=["conv", "full_attention", "conv", "conv"], block_multiple_of=8),
        dict(layer_types=["full_attention", "conv", "conv", "full_attention"], conv_bias=True, conv_L_cache=4, block_auto_adjust_ff_dim=False, tie_word_embeddings=False, **YARN),
        dict(layer_types=None, full_attn_idxs=[1, 3], block_multiple_of=8, block_ffn_dim_multiplier=1.3),
    ],
    "youtu": [dict(B16, **LATENT), like(LATENT, gguf=False, q_lora_rank=None, tie_word_embeddings=False, attention_bias=True, rope_interleave=False)],
    "lfm3": [
        dict(B16, head_dim=16, num_hidden_layers=6, **WINDOW),
        dict(head_dim=16, layer_types=["full_attention", "conv", "sliding_attention", "conv"], conv_bias=True, conv_L_cache=3, use_sandwich_norm=False, use_attention_gate=False, attention_bias=True, tie_word_embeddings=False, **WINDOW),
    ],
    "granitemoehybrid": [
        like(B16, GRANITE, MAMBA, num_attention_heads=2, num_key_value_heads=1, layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"]),
        like(GRANITE, MAMBA, gguf=False, mamba_d_head="auto", position_embedding_type="rope", attention_bias=True, mamba_proj_bias=True, mamba_conv_bias=False, mamba_n_groups=2, time_step_limit=(0.1, 1.5), tie_word_embeddings=True, layer_types=["full_attention", "linear_attention"] * 2),
        like(GRANITE, MAMBA, gguf=False, position_embedding_type="nope", layer_types=["full_attention"] * 4),
        like(WITH_EXPERTS, GRANITE, MAMBA, num_local_experts=4, num_experts_per_tok=2, intermediate_size=20, layer_types=["linear_attention", "full_attention"] * 2),
        like(GRANITE, MAMBA, num_local_experts=6, num_experts_per_tok=3, intermediate_size=12, position_embedding_type="rope", attention_bias=True, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True, gguf=False, layer_types=["full_attention", "linear_attention"] * 2),
    ],
    "bamba": [
        like(B16, MAMBA, head_dim=16, attn_layer_indices=[1, 3]),
        like(MAMBA, attn_layer_indices=[0], mamba_n_groups=2, mamba_proj_bias=True, attention_bias=True, mlp_bias=True, time_step_limit=(0.2, 1.0), tie_word_embeddings=True),
    ],
    "falcon_h1": [
        like(MAMBA, head_dim=16, mamba_d_ssm=64, embedding_multiplier=3.0, lm_head_multiplier=0.3, key_multiplier=0.5, attention_in_multiplier=0.8, attention_out_multiplier=0.6, ssm_in_multiplier=1.3, ssm_out_multiplier=0.4, ssm_multipliers=[0.7, 0.9, 1.2, 0.8, 1.1], mlp_multipliers=[0.9, 0.5]),
        like(MAMBA, mamba_d_ssm=48, mamba_n_heads=3, mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_proj_bias=True, projectors_bias=True, attention_bias=True, mlp_bias=True, head_dim=16, key_multiplier=0.4, attention_in_multiplier=1.5, ssm_multipliers=[0.7, 0.9, 1.2, 0.8, 1.1], mlp_multipliers=[0.8, 1.4], ssm_in_multiplier=0.9, ssm_out_multiplier=1.2, attention_out_multiplier=1.1, tie_word_embeddings=True),
        like(MAMBA, gguf=False, mamba_d_ssm=64, mamba_n_groups=2, mamba_rms_norm=True, mamba_norm_before_gate=True, mamba_conv_bias=False, projectors_bias=True),
    ],
    "mamba2": [
        dict(B16, num_heads=4, head_dim=16, expand=2, n_groups=1, state_size=8),
        dict(gguf=False, num_heads=4, head_dim=16, n_groups=2, state_size=12, use_bias=True, use_conv_bias=False, conv_kernel=3, time_step_limit=(0.1, 1.5), tie_word_embeddings=True),
    ],
    "nemotron_h": [
        like(B16, NEMOTRON, layers_block_type=["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"]),
        like(NEMOTRON, gguf=False, layers_block_type=["full_attention", "linear_attention", "mlp"], use_bias=True, use_conv_bias=False, mlp_bias=True, head_dim=8, time_step_min=0.3, mlp_hidden_act="silu", tie_word_embeddings=True),
        like(WITH_EXPERTS, NEMOTRON, NEMOTRON_EXPERTS, layers_block_type=["linear_attention", "moe", "full_attention", "moe"]),
        like(NEMOTRON, NEMOTRON_EXPERTS, gguf=False, layers_block_type=["moe", "linear_attention", "mlp", "full_attention"], mlp_bias=True, norm_topk_prob=False),
        like(NEMOTRON, NEMOTRON_EXPERTS, layers_block_type=["linear_attention", "moe", "full_attention", "moe"], moe_latent_size=24),
    ],
}

# Mixtures of experts: two layers, so that files stay small.
FEW = dict(num_hidden_layers=2)
QWEN35_SIZES = dict(head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
SIX = dict(num_experts=6, moe_intermediate_size=12)
NOAUX = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=12, routed_scaling_factor=1.7)
QWEN4 = dict(
    head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, num_experts=6, num_experts_per_tok=3,
    moe_intermediate_size=12, shared_expert_intermediate_size=20, hc_count=2, hc_lowrank=8, ple_layer_ids=[1], heads_per_ngram=2, ngram_vocab_size_base=20,
    make_ngram_vocab_size_divisible_by=8, split_ngram_parts=4, indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=32, indexer_budget=24, indexer_compress_ratio=4,
)
SMALL_QWEN4 = dict(num_hidden_layers=2, num_experts=3, num_experts_per_tok=2, shared_expert_intermediate_size=12, layer_types=["linear_attention", "full_attention"])

EXPERTS = {
    "mixtral": [
        dict(B16, **FEW, num_local_experts=5, num_experts_per_tok=2, intermediate_size=20, head_dim=16),
        dict(num_local_experts=8, num_experts_per_tok=1, head_dim=16, **WINDOW),
        dict(num_local_experts=3, num_experts_per_tok=3, head_dim=8, tie_word_embeddings=True, hidden_act="gelu", **YARN),
    ],
    "qwen2_moe": [
        dict(B16, **FEW, **SIX, num_experts_per_tok=3, shared_expert_intermediate_size=20),
        dict(num_experts=7, moe_intermediate_size=20, num_experts_per_tok=2, shared_expert_intermediate_size=64, norm_topk_prob=True, decoder_sparse_step=2),
        dict(**SIX, num_experts_per_tok=2, shared_expert_intermediate_size=12, qkv_bias=False, mlp_only_layers=[1], use_sliding_window=True, max_window_layers=3, **WINDOW),
    ],
    "qwen3_moe": [
        dict(B16, **FEW, **SIX, num_experts_per_tok=3, head_dim=16, norm_topk_prob=True),
        dict(num_experts=16, moe_intermediate_size=24, num_experts_per_tok=8, attention_bias=True, mlp_only_layers=[0, 2], norm_topk_prob=True, **YARN),
        dict(**SIX, num_experts_per_tok=2, head_dim=8, tie_word_embeddings=True, use_sliding_window=True, **WINDOW),
    ],
    "qwen3_5_moe_text": [
        dict(B16, **QWEN35_SIZES, **SIX, num_experts_per_tok=3, shared_expert_intermediate_size=20, layer_types=["linear_attention", "full_attention"], **FEW),
        dict(QWEN35_SIZES, num_experts=9, moe_intermediate_size=20, num_experts_per_tok=2, shared_expert_intermediate_size=12, tie_word_embeddings=True),
    ],
    "qwen3_next": [
        dict(B16, **QWEN35_SIZES, **SIX, num_experts_per_tok=3, shared_expert_intermediate_size=20, layer_types=["linear_attention", "full_attention"], **FEW),
        dict(QWEN35_SIZES, num_experts=9, moe_intermediate_size=20, num_experts_per_tok=2, shared_expert_intermediate_size=12, decoder_sparse_step=2),
        dict(QWEN35_SIZES, **SIX, num_experts_per_tok=2, shared_expert_intermediate_size=12, mlp_only_layers=[1], norm_topk_prob=False),
    ],
    "qwen4_exp_text": [
        # Files have one table of n-grams, and llama.cpp opens gates by sigmoids.
        like(QWEN4, B16, SMALL_QWEN4, output_gate_type="sigmoid", **rope(partial_rotary_factor=0.5)),
        like(QWEN4, gguf=False, num_hidden_layers=6, ple_layer_ids=[5, 2], hc_count=4, ple_embed_dim=24, ple_conv_kernel_size=3, layer_types=["indexed_attention", "linear_attention", "full_attention"] * 2, indexer_n_heads=3, indexer_compress_ratio=8, indexer_budget=48, attention_bias=True, tie_word_embeddings=True, output_gate_type="sigmoid", norm_topk_prob=False, **rope(partial_rotary_factor=0.5)),
        # Texts of the comparison begin with token 3, so only this setting has ends of texts.
        like(QWEN4, gguf=False, ple_layer_ids=[1, 3], ngram_size=4, heads_per_ngram=1, ple_embed_dim=30, ple_conv_kernel_size=2, split_ngram_parts=1, seed=7, indexer_n_heads=1, indexer_head_dim=48, indexer_compress_ratio=5, indexer_budget=35, linear_num_value_heads=2, linear_conv_kernel_dim=3, num_key_value_heads=1, eos_token_id=[5, 1], **YARN),
        like(QWEN4, ple_layer_ids=None, output_gate_type="sigmoid", **rope(partial_rotary_factor=0.25), layer_types=["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"], indexer_compress_ratio=2, indexer_budget=2, num_experts_per_tok=6, rms_norm_eps=1e-3, hc_lowrank=1),
        like(QWEN4, gguf=False, ple_layer_ids=[2], ngram_size=2, ngram_vocab_size_base=2, layer_types=["indexed_attention", "linear_attention"] * 2, indexer_compress_ratio=1, indexer_budget=30, indexer_n_heads=16, **LINEAR),
    ],
    "gpt_oss": [
        dict(B16, **FEW, num_local_experts=5, num_experts_per_tok=2, head_dim=16, intermediate_size=20, **WINDOW, **rope("yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, truncate=False)),
        dict(num_local_experts=8, num_experts_per_tok=4, head_dim=8, intermediate_size=32, num_key_value_heads=4, **WINDOW, **rope("yarn", factor=4.0, original_max_position_embeddings=64, truncate=False)),
        # Files do not hold the limit.
        dict(num_local_experts=8, num_experts_per_tok=4, head_dim=16, intermediate_size=32, swiglu_limit=0.7, gguf=False, **WINDOW, **rope("yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, truncate=False)),
    ],
    "olmoe": [dict(B16, **FEW, num_experts=6, num_experts_per_tok=3, intermediate_size=12), dict(num_experts=8, num_experts_per_tok=2, intermediate_size=20, attention_bias=True), dict(num_experts=8, num_experts_per_tok=2, intermediate_size=20, norm_topk_prob=True, num_key_value_heads=4), dict(num_experts=4, num_experts_per_tok=2, clip_qkv=0.5, num_key_value_heads=4)],
    "granitemoe": [dict(B16, **FEW, num_local_experts=6, num_experts_per_tok=3, intermediate_size=12, embedding_multiplier=7.0, residual_multiplier=0.3, attention_multiplier=0.2, logits_scaling=5.0), dict(num_local_experts=4, num_experts_per_tok=1, attention_bias=True, tie_word_embeddings=True)],
    "granitemoeshared": [dict(B16, **FEW, num_local_experts=6, num_experts_per_tok=3, intermediate_size=12, shared_intermediate_size=20, residual_multiplier=0.4), dict(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=0)],
    "ernie4_5_moe": [
        dict(B16, **FEW, moe_num_experts=6, moe_k=3, moe_intermediate_size=12, moe_num_shared_experts=2, moe_layer_start_index=1),
        dict(moe_num_experts=8, moe_k=2, moe_intermediate_size=20, moe_num_shared_experts=0, moe_layer_start_index=0, moe_layer_interval=2, tie_word_embeddings=False, head_dim=16),
        dict(moe_num_experts=8, moe_k=2, moe_intermediate_size=20, moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=2),
    ],
    "hunyuan_v1_moe": [dict(B16, **FEW, num_experts=6, moe_topk=[3, 3], intermediate_size=20, moe_intermediate_size=[20, 20], num_shared_expert=[1, 1], head_dim=16), dict(num_experts=4, moe_topk=[2, 2, 2, 2], intermediate_size=12, head_dim=8, attention_bias=True, tie_word_embeddings=True)],
    "phimoe": [
        dict(B16, **FEW, num_local_experts=6, num_experts_per_tok=2, intermediate_size=12, attention_bias=True, lm_head_bias=True, rope_parameters=dict(rope_type="default", rope_theta=5000.0, original_max_position_embeddings=256)),
        # Files lack the noise of the router.
        dict(gguf=False, num_local_experts=4, num_experts_per_tok=2, intermediate_size=20, tie_word_embeddings=True, router_jitter_noise=0.3),
        dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=20, rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.5, 2.5, 3.5, 4.5], short_mscale=1.243163121016122, long_mscale=1.243163121016122, original_max_position_embeddings=4096), max_position_embeddings=131072),
    ],
    "dots1": [dict(B16, **FEW, **NOAUX, n_group=4, topk_group=2, n_shared_experts=2, first_k_dense_replace=1, norm_topk_prob=True), like(NOAUX, n_group=1, topk_group=1, n_shared_experts=1, attention_bias=True), like(NOAUX, n_group=1, topk_group=1, n_shared_experts=1, num_key_value_heads=4, scoring_func="sigmoid", sliding_window=37, max_window_layers=2)],
    "glm4_moe": [dict(B16, **FEW, **NOAUX, n_group=4, topk_group=2, head_dim=16, use_qk_norm=True, num_mtp_layers=0), like(NOAUX, n_shared_experts=2, first_k_dense_replace=2, attention_bias=True, norm_topk_prob=False, num_mtp_layers=0)],
    "deepseek_v2": [
        like(WITH_EXPERTS, B16, FEW, LATENT, NOAUX, first_k_dense_replace=1, n_shared_experts=2, topk_method="group_limited_greedy", n_group=4, topk_group=2),
        like(LATENT, NOAUX, q_lora_rank=None, n_shared_experts=1, topk_method="greedy", attention_bias=True, num_experts_per_tok=2, n_group=4, topk_group=1),
        like(LATENT, NOAUX, gguf=False, n_shared_experts=1, mlp_bias=True),
    ],
    "deepseek_v3": [
        like(WITH_EXPERTS, B16, FEW, LATENT, NOAUX, first_k_dense_replace=1, n_group=4, topk_group=2),
        like(LATENT, NOAUX, first_k_dense_replace=2, q_lora_rank=None, n_shared_experts=2, n_group=1, topk_group=1, norm_topk_prob=False, tie_word_embeddings=True, **rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0)),
        like(LATENT, NOAUX, gguf=False, first_k_dense_replace=0, n_group=2, topk_group=1, rope_interleave=False),
    ],
    "deepseek_v32": [
        like(WITH_EXPERTS, B16, FEW, LATENT, INDEXER, NOAUX, first_k_dense_replace=1, n_group=4, topk_group=2),
        like(LATENT, INDEXER, NOAUX, first_k_dense_replace=2, n_shared_experts=2, n_group=1, topk_group=1, norm_topk_prob=False, index_topk=60),
    ],
    "glm_moe_dsa": [
        like(WITH_EXPERTS, B16, FEW, LATENT, INDEXER, NOAUX, first_k_dense_replace=1, indexer_types=["full", "shared"]),
        like(LATENT, INDEXER, NOAUX, gguf=False, mlp_layer_types=["sparse", "dense", "sparse", "sparse"], indexer_types=["full", "full", "shared", "shared"], attention_bias=True),
    ],
    "kimi_linear": [
        like(WITH_EXPERTS, B16, LATENT, KIMI, q_lora_rank=None, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, num_hidden_layers=2, linear_num_heads=4, linear_head_dim=8, layer_types=["linear_attention", "full_attention"]),
        # The converter drops groups of experts and weights that are not divided.
        like(B16, LATENT, KIMI, gguf=False, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=12, num_hidden_layers=3, n_group=4, topk_group=2, layer_types=["linear_attention", "full_attention", "linear_attention"]),
        like(LATENT, KIMI, gguf=False, q_lora_rank=None, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=2, norm_topk_prob=False, attention_bias=True, mlp_layer_types=["sparse", "dense", "sparse", "sparse"], linear_conv_kernel_dim=3, layer_types=["full_attention", "linear_attention"] * 2),
        like(LATENT, KIMI, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, num_hidden_layers=6, linear_num_heads=1, linear_head_dim=72, gguf=False),
    ],
    "minimax": [
        dict(WITH_EXPERTS, gguf=False, **B16, **FEW, block_size=16, num_local_experts=5, num_experts_per_tok=2, intermediate_size=20, head_dim=16, layer_types=["linear_attention", "full_attention"], linear_attn_alpha_factor=1.3, full_attn_beta_factor=0.7, mlp_alpha_factor=3.5),
        dict(gguf=False, num_local_experts=8, num_experts_per_tok=1, head_dim=8, intermediate_size=20, hidden_act="gelu", mlp_beta_factor=0.6, linear_attn_beta_factor=1.4, tie_word_embeddings=True, block_size=16, **YARN),
        dict(gguf=False, num_local_experts=3, num_experts_per_tok=3, head_dim=16, intermediate_size=12, num_hidden_layers=5, layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention"], full_attn_alpha_factor=0.5, **WINDOW),
    ],
    "sarvam_mla": [like(LATENT, NOAUX), like(LATENT, NOAUX, first_k_dense_replace=2, n_group=4, topk_group=2, q_lora_rank=20, norm_topk_prob=False)],
    "sarvam_moe": [like(NOAUX, head_dim=16, n_shared_experts=1), like(NOAUX, head_dim=8, n_shared_experts=2, use_qk_norm=False, attention_bias=True, n_group=4, topk_group=2, first_k_dense_replace=2, tie_word_embeddings=True)],
    "glm4_moe_lite": [like(WITH_EXPERTS, B16, FEW, LATENT, NOAUX), like(LATENT, NOAUX, gguf=False, q_lora_rank=None, n_group=4, topk_group=2, n_shared_experts=2, mlp_layer_types=["sparse", "dense", "sparse", "dense"], attention_bias=True, norm_topk_prob=False)],
    "axk1": [like(B16, FEW, LATENT, NOAUX, n_group=4, topk_group=2), like(LATENT, NOAUX, n_group=1, topk_group=1, mlp_layer_types=["sparse", "dense", "sparse", "sparse"], attention_bias=True, rope_interleave=False, tie_word_embeddings=True)],
    "lfm2_moe": [
        dict(B16, num_hidden_layers=3, **SIX, num_experts_per_tok=3, num_dense_layers=1, layer_types=["conv", "full_attention", "conv"]),
        dict(num_experts=8, moe_intermediate_size=20, num_experts_per_tok=2, num_dense_layers=2, conv_bias=True, conv_L_cache=4, use_expert_bias=False, norm_topk_prob=False, routed_scaling_factor=1.4, tie_word_embeddings=False, layer_types=["full_attention", "conv", "full_attention", "conv"]),
    ],
    "llama4_text": [
        dict(B16, num_local_experts=5, num_experts_per_tok=1, head_dim=16, intermediate_size=20, intermediate_size_mlp=24),
        dict(num_hidden_layers=2, num_local_experts=5, num_experts_per_tok=1, head_dim=16, intermediate_size=20, intermediate_size_mlp=24, no_rope_layers=[1, 0], floor_scale=16, attn_scale=0.3, gguf=False),
        dict(num_local_experts=4, num_experts_per_tok=2, head_dim=8, intermediate_size=16, intermediate_size_mlp=40, interleave_moe_layer_step=2, use_qk_norm=False, attention_bias=True, tie_word_embeddings=True, attn_temperature_tuning=False, gguf=False, **LLAMA3),
        dict(num_local_experts=4, num_experts_per_tok=1, head_dim=16, intermediate_size=20, intermediate_size_mlp=24, no_rope_layer_interval=2, moe_layers=[0, 3], attention_chunk_size=None, gguf=False),
        # Texts end with a chunk.
        dict(num_local_experts=4, num_experts_per_tok=1, head_dim=16, intermediate_size=20, intermediate_size_mlp=24, attention_chunk_size=64, gguf=False),
    ],
    "afmoe": [
        like(B16, SIX, num_experts_per_tok=3, head_dim=16, num_shared_experts=2, route_scale=1.3, mup_enabled=True, route_norm=True, **WINDOW),
        dict(num_experts=8, moe_intermediate_size=20, num_experts_per_tok=2, head_dim=8, num_shared_experts=1, num_dense_layers=2, global_attn_every_n_layers=3, attention_bias=True, tie_word_embeddings=True, **WINDOW),
    ],
    "aria_text": [dict(B16, **FEW, moe_num_experts=6, moe_topk=3, intermediate_size=20, moe_num_shared_experts=2), dict(moe_num_experts=4, moe_topk=2, intermediate_size=16, moe_num_shared_experts=1, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=16)],
    "cohere2_moe": [
        dict(B16, num_hidden_layers=4, num_experts=6, num_experts_per_tok=3, intermediate_size=12, head_dim=16, num_shared_experts=2, logit_scale=0.4, first_k_dense_replace=1, prefix_dense_intermediate_size=40, **WINDOW),
        dict(num_experts=4, num_experts_per_tok=2, intermediate_size=16, head_dim=8, num_shared_experts=1, shared_expert_combination_strategy="sum", expert_selection_fn="sigmoid", rms_norm_eps=1e-4, tie_word_embeddings=False, attention_bias=True, sliding_window_pattern=2, **WINDOW),
        dict(num_experts=4, num_experts_per_tok=2, intermediate_size=16, head_dim=8, expert_selection_fn="sigmoid", norm_topk_prob=False, first_k_dense_replace=2, prefix_dense_sliding_window_pattern=2, prefix_dense_intermediate_size=24, **WINDOW),
    ],
    "exaone_moe": [
        like(B16, FEW, SIX, num_experts_per_tok=3, head_dim=16, num_shared_experts=2, layer_types=["sliding_attention", "full_attention"], **WINDOW),
        dict(num_experts=8, moe_intermediate_size=20, num_experts_per_tok=2, n_group=4, topk_group=2, first_k_dense_replace=2, norm_topk_prob=False, tie_word_embeddings=True, **WINDOW),
        like(SIX, num_experts_per_tok=2, head_dim=8, layer_types=["full_attention"] * 4, mlp_layer_types=["sparse", "dense", "sparse", "sparse"], gguf=False),
    ],
    "flex_olmo": [dict(B16, **FEW, num_experts=6, num_experts_per_tok=3, intermediate_size=12), dict(num_experts=5, num_experts_per_tok=2, intermediate_size=20, norm_topk_prob=True, attention_bias=True, tie_word_embeddings=True, **YARN)],
    "flint": [
        like(B16, SIX, num_hidden_layers=3, num_experts_per_tok=3, head_dim=16, shared_expert_intermediate_size=20, mlp_only_layers=[0], layer_types=["full_attention", "sliding_attention", "full_attention"], **WINDOW),
        dict(num_hidden_layers=5, num_experts=8, moe_intermediate_size=20, num_experts_per_tok=2, head_dim=8, shared_expert_intermediate_size=12, norm_topk_prob=False, attention_bias=True, decoder_sparse_step=2, tie_word_embeddings=True, **WINDOW),
    ],
    "granitemoe_swa": [
        like(B16, FEW, num_local_experts=6, num_experts_per_tok=3, intermediate_size=12, shared_intermediate_size=20, residual_multiplier=0.3, embedding_multiplier=3.0, attention_multiplier=0.2, logits_scaling=2.0, layer_rope_theta=[0, 5000.0], **WINDOW),
        dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=16, attention_bias=True, tie_word_embeddings=True, layer_types=["sliding_attention", "full_attention"] * 2, **WINDOW),
    ],
    "hy_v3": [like(B16, FEW, SIX, num_experts_per_tok=3, head_dim=16), dict(num_experts=8, moe_intermediate_size=20, num_experts_per_tok=2, head_dim=8, num_shared_experts=2, router_scaling_factor=1.4, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, mlp_layer_types=["sparse", "dense", "sparse", "sparse"], **YARN)],
    "kolibri1": [like(B16, FEW, SIX, num_experts_per_tok=3, head_dim=16, shared_expert_intermediate_size=20, layer_types=["sliding_attention", "full_attention"], **WINDOW), dict(num_hidden_layers=5, num_experts=8, moe_intermediate_size=20, num_experts_per_tok=2, head_dim=8, shared_expert_intermediate_size=12, norm_topk_prob=True, tie_word_embeddings=True, **WINDOW)],
    "laguna": [
        like(B16, FEW, SIX, num_experts_per_tok=3, head_dim=16, num_attention_heads_per_layer=[2, 6], shared_expert_intermediate_size=20, moe_routed_scaling_factor=1.6, layer_types=["full_attention", "sliding_attention"], rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=50000.0, partial_rotary_factor=0.5), sliding_attention=dict(rope_type="default", rope_theta=900.0, partial_rotary_factor=1.0)), **WINDOW),
        dict(gguf=False, num_experts=8, moe_intermediate_size=20, num_experts_per_tok=2, head_dim=8, shared_expert_intermediate_size=12, gating="per-element", attention_bias=True, tie_word_embeddings=True, mlp_layer_types=["sparse", "dense", "sparse", "sparse"], layer_types=["full_attention", "sliding_attention"] * 2, **WINDOW),
    ],
    "lara_mini": [
        like(B16, SIX, num_hidden_layers=5, num_experts_per_tok=3, head_dim=16, shared_expert_intermediate_size=20, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=24, tie_word_embeddings=True, **WINDOW),
        dict(num_experts=8, moe_intermediate_size=20, num_experts_per_tok=2, head_dim=8, shared_expert_intermediate_size=12, norm_topk_prob=False, attention_bias=True, tie_word_embeddings=False, layer_types=["full_attention", "linear_attention", "sliding_attention", "linear_attention"], linear_num_key_heads=1, linear_num_value_heads=3, linear_key_head_dim=8, linear_value_head_dim=16, linear_conv_kernel_dim=3, **YARN, **WINDOW),
        dict(num_experts=4, moe_intermediate_size=12, num_experts_per_tok=4, head_dim=16, shared_expert_intermediate_size=12, layer_types=["linear_attention", "full_attention"] * 2, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16),
    ],
    "mellum": [
        like(B16, FEW, SIX, num_experts_per_tok=3, head_dim=16, layer_types=["sliding_attention", "full_attention"], rope_parameters=dict(full_attention=YARN["rope_parameters"], sliding_attention=rope()["rope_parameters"]), **WINDOW),
        dict(num_experts=8, moe_intermediate_size=20, num_experts_per_tok=2, head_dim=8, norm_topk_prob=False, attention_bias=True, tie_word_embeddings=True, mlp_layer_types=["sparse", "dense", "sparse", "dense"]),
    ],
    "mimo_v2_flash": [
        like(B16, FEW, NOAUX, head_dim=24, v_head_dim=16, num_key_value_heads=1, layer_types=["sliding_attention", "full_attention"], rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=50000.0, partial_rotary_factor=0.5), sliding_attention=dict(rope_type="default", rope_theta=900.0, partial_rotary_factor=0.5)), **WINDOW),
        like(NOAUX, head_dim=16, v_head_dim=8, num_key_value_heads=2, attention_bias=True, attention_value_scale=0.6, n_group=4, topk_group=2, mlp_layer_types=["sparse", "dense", "sparse", "sparse"], tie_word_embeddings=True, rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=50000.0, partial_rotary_factor=1.0), sliding_attention=dict(rope_type="default", rope_theta=900.0, partial_rotary_factor=1.0)), **WINDOW),
    ],
    "solar_open": [like(B16, FEW, NOAUX, head_dim=16, n_group=4, topk_group=2), like(NOAUX, head_dim=8, n_shared_experts=2, attention_bias=True, norm_topk_prob=False, tie_word_embeddings=True, **YARN)],
    "minimax_m2": [dict(B16, **FEW, num_local_experts=6, num_experts_per_tok=3, intermediate_size=12, head_dim=16, rotary_dim=8), dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=20, head_dim=8, tie_word_embeddings=True, **rope(partial_rotary_factor=0.5))],
}

# Families with and without experts.
for _name in set(DENSE) & set(EXPERTS):
    DENSE[_name] += EXPERTS.pop(_name)

OLDER = {
    "llama": [dict(head_dim=16), dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, **YARN), dict(rope(partial_rotary_factor=0.5))],
    "mistral": [dict(WINDOW), dict(sliding_window=None, head_dim=16)],
    "qwen2": [dict(), dict(use_sliding_window=True, max_window_layers=1, tie_word_embeddings=True, **WINDOW)],
    "qwen3": [dict(head_dim=16), dict(attention_bias=True, **YARN)],
    "qwen3_5_text": [dict(head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)],
    "phi": [dict(), dict(qk_layernorm=True)],
    "phi3": [dict(), dict(rope(partial_rotary_factor=0.5), **WINDOW), dict(HALF, original_max_position_embeddings=64, **rope("longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.5, 2.5, 3.5, 4.5]))],
    "gemma2": [dict(head_dim=12, query_pre_attn_scalar=12, attn_logit_softcapping=5.0, final_logit_softcapping=6.0, **WINDOW)],
    "gemma3_text": [dict(head_dim=16, query_pre_attn_scalar=16, **WINDOW), dict(head_dim=16, attn_logit_softcapping=5.0, **WINDOW)],
    "internlm3": [dict()],
    "iquestcoder": [dict()],
}


def around(text_type, **more):
    return [dict(text_type=text_type, **more)]


# Pictures of classes whose vectors are stored are small.
SMALL_MUSE = dict(
    vision_config=dict(hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1, patch_size=2, pos_emb_height=2, pos_emb_width=2),
    out_hidden_size=32, projector_hidden_size=8,
)
SMALL_SIGLIP = dict(vision_config=dict(model_type="siglip_vision_model", hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=1, image_size=28, patch_size=14))
# Classes whose first setting is a vector of the tests, and its folder.
STORED_WRAPPERS = {"MuseGlimmerForConditionalGeneration": "muse_glimmer"}
# Names whose first setting is a GGUF file of the tests too.
STORED_GGUF = (
    "gemma4_text", "MuseGlimmerForConditionalGeneration", "minicpm3", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "lfm2_moe", "lfm2", "granitemoehybrid", "falcon_h1", "nemotron_h",
    "gemma3n_text", "phimoe", "kimi_linear", "qwen4_exp_text",
)

QWEN35 = dict(head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
WRAPPERS = {
    "Gemma3ForConditionalGeneration": around("gemma3_text", head_dim=16, query_pre_attn_scalar=16, **WINDOW),
    "Gemma4ForConditionalGeneration": around("gemma4_text", **GEMMA4, num_kv_shared_layers=2, pad_token_id=0, config=dict(vision_config=None, audio_config=None)) + around("gemma4_text", **GEMMA4 | dict(hidden_size_per_layer_input=0), enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=12, pad_token_id=0, config=dict(vision_config=None, audio_config=None)),
    "Gemma4UnifiedForConditionalGeneration": around("gemma4_unified_text", **GEMMA4_UNIFIED, pad_token_id=0),
    "MuseGlimmerForConditionalGeneration": [
        dict(B16, text_type="muse_glimmer_text", num_hidden_layers=5, head_dim=16, config=SMALL_MUSE, **WINDOW),
        dict(text_type="muse_glimmer_text", head_dim=8, config=SMALL_MUSE, layer_rope_theta=[0, 10000.0, 10000.0, 0], qk_scale_factor=1.5, output_multiplier=0.5, final_logit_softcapping=5.0, post_norm_eps=1e-3, layer_types=["sliding_attention", "full_attention"] * 2, **WINDOW),
        dict(text_type="muse_glimmer_text", head_dim=8, config=SMALL_MUSE, tie_word_embeddings=True, attention_bias=True, **WINDOW),
    ],
    "Mistral3ForConditionalGeneration": around("mistral", head_dim=16, sliding_window=None) + around("ministral3", head_dim=16, rope_parameters=DENSE["ministral3"][0]["rope_parameters"]) + around("mistral4", **LATENT | NOAUX, n_group=4, topk_group=2, rope_parameters=DENSE["ministral3"][0]["rope_parameters"]) + around("mistral4", **like(LATENT, NOAUX, first_k_dense_replace=2, q_lora_rank=None, norm_topk_prob=False, attention_bias=True, **rope("yarn", factor=4.0, original_max_position_embeddings=64, llama_4_scaling_beta=0.1))),
    "LlavaForConditionalGeneration": around("llama") + around("mistral", **WINDOW) + around("qwen2"),
    "LlavaNextForConditionalGeneration": around("llama") + around("mistral", sliding_window=None),
    "LlavaNextVideoForConditionalGeneration": around("llama"),
    "LlavaOnevisionForConditionalGeneration": around("qwen2"),
    "VideoLlavaForConditionalGeneration": around("llama"),
    "VipLlavaForConditionalGeneration": around("llama"),
    "InternVLForConditionalGeneration": around("qwen2") + around("qwen3", head_dim=16),
    "Idefics2ForConditionalGeneration": around("mistral", sliding_window=None),
    "Idefics3ForConditionalGeneration": around("llama"),
    "SmolVLMForConditionalGeneration": around("llama"),
    "VoxtralForConditionalGeneration": around("llama", head_dim=16),
    "Qwen2VLForConditionalGeneration": around("qwen2_vl_text", **SECTIONS),
    "Qwen2_5_VLForConditionalGeneration": around("qwen2_5_vl_text", **SECTIONS),
    "Qwen3VLForConditionalGeneration": around("qwen3_vl_text", head_dim=8, **SECTIONS),
    "Qwen2_5OmniThinkerForConditionalGeneration": around("qwen2_5_omni_text", **SECTIONS),
    "Qwen2AudioForConditionalGeneration": around("qwen2"),
    "Qwen3ASRForConditionalGeneration": around("qwen3", head_dim=16),
    "Qwen3_5ForConditionalGeneration": around("qwen3_5_text", **QWEN35),
    "Qwen4ExpForConditionalGeneration": around("qwen4_exp_text", **QWEN4),
    "Qwen3_5MoeForConditionalGeneration": around("qwen3_5_moe_text", **QWEN35, **SIX, num_experts_per_tok=2, shared_expert_intermediate_size=12),
    "NemotronH_Omni_Reasoning_V3": around("nemotron_h", **NEMOTRON | NEMOTRON_EXPERTS, layers_block_type=["linear_attention", "moe", "full_attention"]),
    "AriaForConditionalGeneration": around("aria_text", moe_num_experts=6, moe_topk=2, intermediate_size=20),
    "Glm4vMoeForConditionalGeneration": around("glm4v_moe_text", **NOAUX, n_group=4, topk_group=2, **rope("default", partial_rotary_factor=0.5, mrope_section=[1, 1, 0])),
    "Kimi_K25ForConditionalGeneration": around("deepseek_v3", **LATENT | NOAUX, n_group=4, topk_group=2, first_k_dense_replace=1),
    "Qwen3OmniMoeThinkerForConditionalGeneration": around("qwen3_omni_moe_text", head_dim=8, **SIX, num_experts_per_tok=2, **SECTIONS),
    "Qwen3VLMoeForConditionalGeneration": around("qwen3_vl_moe_text", head_dim=8, **SIX, num_experts_per_tok=2, **SECTIONS),
    "MiniCPMOcrForConditionalGeneration": around("qwen3_5_text", **QWEN35),
    "MiniCPMV4_6ForConditionalGeneration": around("qwen3_5_text", **QWEN35),
    "MiniCPMV4_7ForConditionalGeneration": around("qwen3_5_text", **QWEN35),
    "PaliGemmaForConditionalGeneration": around("gemma", head_dim=16) + around("gemma2", head_dim=16, query_pre_attn_scalar=16, **WINDOW),
    "AudioFlamingo3ForConditionalGeneration": around("qwen2"),
    "AyaVisionForConditionalGeneration": around("cohere2", config=SMALL_SIGLIP, **WINDOW),
    "Cohere2VisionForConditionalGeneration": around("cohere2", **WINDOW),
    "DeepseekVLForConditionalGeneration": around("llama"),
    "DeepseekVLHybridForConditionalGeneration": around("llama"),
    "Ernie4_5_VLMoeForConditionalGeneration": around("ernie4_5_vl_moe_text", head_dim=16, moe_num_experts=6, moe_k=3, moe_intermediate_size=[20, 12], moe_num_shared_experts=2, **rope("default", mrope_section=[3, 3, 2])) + around("ernie4_5_vl_moe_text", head_dim=8, moe_num_experts=4, moe_k=2, moe_intermediate_size=[12, 12], moe_num_shared_experts=0, use_bias=True, mlp_layer_types=["sparse", "dense", "sparse", "sparse"], **rope("default", mrope_section=[1, 1, 2])),
    "Exaone4_5_ForConditionalGeneration": around("exaone4", **WINDOW),
    "FastVlmForConditionalGeneration": around("qwen2"),
    "FunAsrNanoForConditionalGeneration": around("qwen3", head_dim=16, config=dict(adaptor_config=dict(hidden_size=32, intermediate_size=8))),
    "GlmAsrForConditionalGeneration": around("llama"),
    "GotOcr2ForConditionalGeneration": around("qwen2"),
    "GraniteSpeechForConditionalGeneration": around("granite", residual_multiplier=0.5, logits_scaling=2.0),
    "GraniteSpeechPlusForConditionalGeneration": around("granite", residual_multiplier=0.5, logits_scaling=2.0),
    "HyperCLOVAXVisionV2ForConditionalGeneration": around("hyperclovax", residual_multiplier=0.5),
    "JanusForConditionalGeneration": around("llama"),
    "LightOnOcrForConditionalGeneration": around("qwen3", head_dim=16),
    "MossTranscribeDiarizeForConditionalGeneration": around("qwen3", head_dim=16),
    "MusicFlamingoForConditionalGeneration": around("qwen2"),
    "OmniASRForConditionalGeneration": around("llama"),
    "Ovis2ForConditionalGeneration": around("qwen2"),
    "Apertus1p5ForConditionalGeneration": around("apertus1p5_text", vocab_size=64, config=dict(image_token_offset=40, audio_token_offset=48, image_token_id=30, audio_token_id=31, vision_config=dict(codebook_size=8), audio_config=dict(model_type="wavtokenizer_encoder", codebook_size=8))),
    "CohereCompassForConditionalGeneration": around("cohere_compass_text", **DENSE["cohere_compass_text"][1]),
    "Emu3ForConditionalGeneration": around("emu3_text_model", pad_token_id=0, config=dict(vocabulary_map={"<image>": 5, "<|extra_200|>": 6, "<|visual token 000000|>": 7})),
    "Glm46VForConditionalGeneration": around("glm4v_text", **SECTIONS),
    "Glm4vForConditionalGeneration": around("glm4v_text", **rope("default", mrope_section=[1, 1, 0], partial_rotary_factor=0.5)),
    "GlmOcrForConditionalGeneration": around("glm_ocr_text", **SECTIONS),
    "Granite4VisionForConditionalGeneration": around("granite4_vision_text", residual_multiplier=0.5, logits_scaling=2.0, config=dict(deepstack_layer_map=[[-1, 0]], spatial_target_layers=[0, 1, 2, 3], downsample_rate="1/2", image_grid_pinpoints=[[336, 336]])),
    "GraniteDoclingForConditionalGeneration": around("granite_docling_text", config=dict(vision_config=dict(out_hidden_size=32))),
    "HunYuanVLForConditionalGeneration": around("hunyuan_vl_text", head_dim=8, **rope("default", mrope_section=[1, 1, 1, 1])),
    "Lfm2VlForConditionalGeneration": around("lfm2", **DENSE["lfm2"][1]),
    "Lfm3VlForConditionalGeneration": around("lfm3", **DENSE["lfm3"][1]),
    "PaddleOCRVLForConditionalGeneration": around("paddleocr_vl_text", head_dim=8, **SECTIONS),
    "PerceptionLMForConditionalGeneration": around("llama", config=dict(vision_config=dict(model_type="timm_wrapper", architecture="vit_pe_core_tiny_patch16_384", model_args=dict(embed_dim=192, depth=1)))),
    "QianfanOCRForConditionalGeneration": around("qwen3", head_dim=16),
    "VibeVoiceForConditionalGeneration": around("qwen2", config=dict(eos_token_id=1)),
    "VibeVoiceAsrForConditionalGeneration": around("qwen2"),
    "VideoLlama3ForConditionalGeneration": around("qwen2"),
}
