//! Names of the parts of layers in GGUF files, and the families' names of the same parts.

use super::architecture::Architecture;

/// GGUF's names of parts, and the families' names.
type Names = &'static [(&'static str, &'static str)];

/// Names that differ in an architecture; the first table with a name counts.
pub(super) fn own_parts(architecture: Architecture) -> &'static [Names] {
    match architecture {
        Architecture::Qwen35 | Architecture::Qwen35Moe | Architecture::Qwen3Next => &[QWEN35_PARTS],
        Architecture::GptOss | Architecture::Glm4Moe => &[NORM_PARTS],
        Architecture::Phi2 => &[PHI2_PARTS],
        Architecture::Phi3 => &[PHI3_PARTS],
        Architecture::Gemma2 | Architecture::Gemma3 | Architecture::GemmaEmbedding => &[GEMMA_PARTS],
        Architecture::Gemma3n => &[GEMMA3N_PARTS, LAYER_INPUT_PARTS, GEMMA_PARTS],
        Architecture::Gemma4 | Architecture::MuseGlimmer => &[GEMMA4_PARTS, LAYER_INPUT_PARTS, GEMMA_PARTS],
        Architecture::SeedOss | Architecture::Olmo2 | Architecture::Exaone4 => &[AFTER_PARTS],
        Architecture::Llama4 => &[LLAMA4_PARTS],
        Architecture::Afmoe => &[AFMOE_PARTS],
        Architecture::Glm4 => &[GLM4_PARTS],
        Architecture::Bert => &[BERT_PARTS],
        Architecture::Starcoder2 => &[STARCODER2_PARTS],
        Architecture::Apertus => &[APERTUS_PARTS],
        Architecture::ChatGlm => &[CHATGLM_PARTS],
        Architecture::Falcon => &[FALCON_PARTS],
        Architecture::GptNeoX => &[GPT_NEOX_PARTS],
        Architecture::Gpt2 | Architecture::StarCoder => &[GPT2_PARTS],
        Architecture::HunyuanDense | Architecture::HunyuanMoe | Architecture::HunyuanVl => &[HUNYUAN_PARTS],
        Architecture::MiniCpm3 | Architecture::Deepseek2 | Architecture::Mistral4 => &[LATENT_PARTS],
        Architecture::Deepseek32 | Architecture::GlmDsa => &[INDEXED_PARTS, LATENT_PARTS],
        Architecture::Laguna => &[LAGUNA_PARTS],
        Architecture::KimiLinear => &[KIMI_PARTS, LATENT_PARTS],
        Architecture::Qwen4Exp => &[QWEN4_PARTS, QWEN35_PARTS],
        Architecture::Lfm2 | Architecture::Lfm2Moe => &[LFM2_PARTS],
        Architecture::GraniteHybrid => &[GRANITE_HYBRID_PARTS],
        Architecture::FalconH1 => &[FALCON_H1_PARTS],
        Architecture::Mamba2 | Architecture::NemotronH | Architecture::NemotronHMoe => &[MIXER_PARTS],
        _ => &[],
    }
}

/// Names in BERT.
const BERT_PARTS: Names = &[
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
];

/// GGUF's name of a layer's part, and its name in Llama-like models.
pub(super) const PARTS: Names = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("attn_sinks", "self_attn.sinks"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ("exp_probs_b", "mlp.exp_probs_b"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

/// Names that differ in Qwen3.5.
pub(super) const QWEN35_PARTS: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

/// Additional parts of the predicting layer after the others, and their names in directories.
pub(super) const QWEN35_PREDICTOR_PARTS: Names = &[
    ("nextn.eh_proj", "fc"),
    ("nextn.enorm", "pre_fc_norm_embedding"),
    ("nextn.hnorm", "pre_fc_norm_hidden"),
    ("nextn.shared_head_norm", "norm"),
    ("nextn.embed_tokens", "embed_tokens"),
    ("nextn.shared_head_head", "lm_head"),
];

/// Names that differ if the norm before the feed-forward part is called post-attention.
const NORM_PARTS: Names = &[("post_attention_norm", "post_attention_layernorm")];

/// Names that differ in Phi-2.
const PHI2_PARTS: Names = &[
    ("attn_output", "self_attn.dense"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
];

/// Names that differ in Phi-3.
const PHI3_PARTS: Names = &[("ffn_up", "mlp.gate_up_proj")];

/// Names that differ in Gemma 2 and 3.
const GEMMA_PARTS: Names = &[
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Names of the per-layer inputs of Gemma.
const LAYER_INPUT_PARTS: Names = &[
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
];

/// Names that differ in Gemma 4 and in Muse Glimmer.
const GEMMA4_PARTS: Names = &[
    ("layer_output_scale", "layer_scalar"),
    ("attn_gate", "self_attn.gate_proj"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("ffn_gate_inp", "router.proj"),
    ("ffn_gate_exps", "experts.gate_proj"),
    ("ffn_up_exps", "experts.up_proj"),
    ("ffn_down_exps", "experts.down_proj"),
    ("ffn_gate_up_exps", "experts.gate_up_proj"),
];

/// Names that differ in Gemma 3n.
const GEMMA3N_PARTS: Names = &[
    ("altup_correct_coef", "altup.correction_coefs"),
    ("altup_predict_coef", "altup.prediction_coefs"),
    ("altup_router", "altup.modality_router"),
    ("altup_router_norm", "altup.router_norm"),
    ("laurel_l", "laurel.linear_left"),
    ("laurel_r", "laurel.linear_right"),
    ("laurel_post_norm", "laurel.post_laurel_norm"),
];

/// Names that differ in Llama 4.
const LLAMA4_PARTS: Names = &[
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
];

/// Names that differ in Afmoe.
const AFMOE_PARTS: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_mlp_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
    ("attn_gate", "self_attn.gate_proj"),
];

/// Names that differ if norms come after attention and after the feed-forward part.
const AFTER_PARTS: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Names that differ in GLM-4, which has all four norms.
const GLM4_PARTS: Names = &[
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
    ("ffn_up", "mlp.gate_up_proj"),
];

/// Names that differ in StarCoder2.
const STARCODER2_PARTS: Names = &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")];

/// Names that differ in Apertus.
const APERTUS_PARTS: Names = &[
    ("attn_norm", "attention_layernorm"),
    ("ffn_norm", "feedforward_layernorm"),
];

/// Names that differ in GLM, whose first models are named ChatGLM.
const CHATGLM_PARTS: Names = &[("ffn_up", "mlp.gate_up_proj")];

/// Names that differ in Falcon.
const FALCON_PARTS: Names = &[
    ("attn_norm_2", "ln_attn"),
    ("attn_qkv", "self_attention.query_key_value"),
    ("attn_output", "self_attention.dense"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];

/// Names that differ in GPT-NeoX.
const GPT_NEOX_PARTS: Names = &[
    ("attn_qkv", "attention.query_key_value"),
    ("attn_output", "attention.dense"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];

/// Names that differ in GPT-2 and in StarCoder.
const GPT2_PARTS: Names = &[
    ("attn_norm", "ln_1"),
    ("ffn_norm", "ln_2"),
    ("attn_qkv", "attn.c_attn"),
    ("attn_output", "attn.c_proj"),
    ("ffn_up", "mlp.c_fc"),
    ("ffn_down", "mlp.c_proj"),
];

/// Names that differ in Hunyuan models.
const HUNYUAN_PARTS: Names = &[
    ("attn_q_norm", "self_attn.query_layernorm"),
    ("attn_k_norm", "self_attn.key_layernorm"),
];

/// Names that differ in Laguna.
const LAGUNA_PARTS: Names = &[("attn_gate", "self_attn.g_proj")];

/// Names of latent attention.
const LATENT_PARTS: Names = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
];

/// Names of the indexer of latent attention.
const INDEXED_PARTS: Names = &[
    ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("indexer.attn_k", "self_attn.indexer.wk"),
    ("indexer.k_norm", "self_attn.indexer.k_norm"),
    ("indexer.proj", "self_attn.indexer.weights_proj"),
];

/// Names that differ in LFM2.
const LFM2_PARTS: Names = &[
    ("attn_norm", "operator_norm"),
    ("attn_output", "self_attn.out_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
];

/// Names that differ in hybrid Granite models.
const GRANITE_HYBRID_PARTS: Names = &[
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
    ("ffn_gate", "shared_mlp.gate_proj"),
    ("ffn_up", "shared_mlp.up_proj"),
    ("ffn_down", "shared_mlp.down_proj"),
];

/// Names that differ in Falcon-H1.
const FALCON_H1_PARTS: Names = &[
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
    ("ffn_norm", "pre_ff_layernorm"),
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
];

/// Names of Mamba2 and Nemotron-H, whose layers have one part each.
const MIXER_PARTS: Names = &[
    ("attn_norm", "norm"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
];

/// Names of Kimi Delta Attention.
const KIMI_PARTS: Names = &[
    ("ssm_conv1d_q", "self_attn.q_conv1d"),
    ("ssm_conv1d_k", "self_attn.k_conv1d"),
    ("ssm_conv1d_v", "self_attn.v_conv1d"),
    ("ssm_f_a", "self_attn.f_a_proj"),
    ("ssm_f_b", "self_attn.f_b_proj"),
    ("ssm_g_a", "self_attn.g_a_proj"),
    ("ssm_g_b", "self_attn.g_b_proj"),
    ("ssm_beta", "self_attn.b_proj"),
    ("ssm_norm", "self_attn.o_norm"),
];

/// Names of Qwen4-Exp's connections, indexer and n-grams.
const QWEN4_PARTS: Names = &[
    ("hc_attn_norm", "attn_hyper_connection.hc_norm"),
    ("hc_attn_down", "attn_hyper_connection.input_mix_weight_down"),
    ("hc_attn_up", "attn_hyper_connection.input_mix_weight_up"),
    ("hc_attn_inject", "attn_hyper_connection.block_inject_weight"),
    ("hc_ffn_norm", "mlp_hyper_connection.hc_norm"),
    ("hc_ffn_down", "mlp_hyper_connection.input_mix_weight_down"),
    ("hc_ffn_up", "mlp_hyper_connection.input_mix_weight_up"),
    ("hc_ffn_inject", "mlp_hyper_connection.block_inject_weight"),
    ("indexer.q_proj", "self_attn.indexer.index_q_proj"),
    ("indexer.k_proj", "self_attn.indexer.index_k_proj"),
    ("indexer.q_norm", "self_attn.indexer.q_layernorm"),
    ("indexer.k_norm", "self_attn.indexer.k_layernorm"),
    ("ple_key", "ple.key_proj"),
    ("ple_value", "ple.value_proj"),
    ("ple_norm_key", "ple.norm_key"),
    ("ple_norm_query", "ple.norm_query"),
    ("ple_norm_conv", "ple.norm_conv"),
    ("ple_conv1d", "ple.conv1d"),
];
