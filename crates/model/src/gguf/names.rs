//! Translates tensor names of GGUF files to the families' names.

use super::architecture::Architecture;
use super::header::{Header, Metadata};
use super::settings::largest;
use crate::ModelError;
use crate::weights::{RowOrder, StoredTensor};

/// GGUF's name of a layer's part, and its name in Llama-like models.
const PARTS: &[(&str, &str)] = &[
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
const QWEN35_PARTS: &[(&str, &str)] = &[
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
const QWEN35_PREDICTOR_PARTS: &[(&str, &str)] = &[
    ("nextn.eh_proj", "fc"),
    ("nextn.enorm", "pre_fc_norm_embedding"),
    ("nextn.hnorm", "pre_fc_norm_hidden"),
    ("nextn.shared_head_norm", "norm"),
    ("nextn.embed_tokens", "embed_tokens"),
    ("nextn.shared_head_head", "lm_head"),
];

/// Names that differ if the norm before the feed-forward part is called post-attention.
const NORM_PARTS: &[(&str, &str)] = &[("post_attention_norm", "post_attention_layernorm")];

/// Names that differ in Phi-2.
const PHI2_PARTS: &[(&str, &str)] = &[
    ("attn_output", "self_attn.dense"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
];

/// Names that differ in Phi-3.
const PHI3_PARTS: &[(&str, &str)] = &[("ffn_up", "mlp.gate_up_proj")];

/// Names that differ in Gemma 2 and 3.
const GEMMA_PARTS: &[(&str, &str)] = &[
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Names that differ in Gemma 4 and in Muse Glimmer.
const GEMMA4_PARTS: &[(&str, &str)] = &[
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
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

/// Names that differ in Llama 4.
const LLAMA4_PARTS: &[(&str, &str)] = &[
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
];

/// Names that differ in Afmoe.
const AFMOE_PARTS: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_mlp_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
    ("attn_gate", "self_attn.gate_proj"),
];

/// Names that differ if norms come after attention and after the feed-forward part.
const AFTER_PARTS: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Names that differ in GLM-4, which has all four norms.
const GLM4_PARTS: &[(&str, &str)] = &[
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
    ("ffn_up", "mlp.gate_up_proj"),
];

/// Names that differ in StarCoder2.
const STARCODER2_PARTS: &[(&str, &str)] = &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")];

/// Names that differ in Apertus.
const APERTUS_PARTS: &[(&str, &str)] = &[
    ("attn_norm", "attention_layernorm"),
    ("ffn_norm", "feedforward_layernorm"),
];

/// Names that differ in GLM, whose first models are named ChatGLM.
const CHATGLM_PARTS: &[(&str, &str)] = &[("ffn_up", "mlp.gate_up_proj")];

/// Names that differ in Falcon.
const FALCON_PARTS: &[(&str, &str)] = &[
    ("attn_norm_2", "ln_attn"),
    ("attn_qkv", "self_attention.query_key_value"),
    ("attn_output", "self_attention.dense"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];

/// Names that differ in GPT-NeoX.
const GPT_NEOX_PARTS: &[(&str, &str)] = &[
    ("attn_qkv", "attention.query_key_value"),
    ("attn_output", "attention.dense"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];

/// Names that differ in GPT-2 and in StarCoder.
const GPT2_PARTS: &[(&str, &str)] = &[
    ("attn_norm", "ln_1"),
    ("ffn_norm", "ln_2"),
    ("attn_qkv", "attn.c_attn"),
    ("attn_output", "attn.c_proj"),
    ("ffn_up", "mlp.c_fc"),
    ("ffn_down", "mlp.c_proj"),
];

/// Names that differ in Hunyuan models.
const HUNYUAN_PARTS: &[(&str, &str)] = &[
    ("attn_q_norm", "self_attn.query_layernorm"),
    ("attn_k_norm", "self_attn.key_layernorm"),
];

/// Names that differ in Laguna.
const LAGUNA_PARTS: &[(&str, &str)] = &[("attn_gate", "self_attn.g_proj")];

/// Names of latent attention.
const LATENT_PARTS: &[(&str, &str)] = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
];

/// Names of latent attention and of its indexer.
const INDEXED_PARTS: &[(&str, &str)] = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
    ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("indexer.attn_k", "self_attn.indexer.wk"),
    ("indexer.k_norm", "self_attn.indexer.k_norm"),
    ("indexer.proj", "self_attn.indexer.weights_proj"),
];

/// Names that differ in LFM2.
const LFM2_PARTS: &[(&str, &str)] = &[
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
const GRANITE_HYBRID_PARTS: &[(&str, &str)] = &[
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
    ("ffn_gate", "shared_mlp.gate_proj"),
    ("ffn_up", "shared_mlp.up_proj"),
    ("ffn_down", "shared_mlp.down_proj"),
];

/// Names that differ in Falcon-H1.
const FALCON_H1_PARTS: &[(&str, &str)] = &[
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
const MIXER_PARTS: &[(&str, &str)] = &[
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

/// The tensors of a file or shard under the families' names; `header` is the first file's.
pub(super) fn translate(
    architecture: Architecture,
    header: &Header<'_>,
    tensors: &[StoredTensor],
) -> Result<Vec<(String, StoredTensor, RowOrder)>, ModelError> {
    let predicting = first_predicting(architecture, header)?;
    let mut translated = Vec::with_capacity(tensors.len());
    for stored in tensors {
        let found = &stored.info.name;
        // Names unknown to the families stay unchanged; loading refuses such a model.
        let name = match predictor_name(predicting, found) {
            Some(name) => name,
            None => family_name(architecture, found).unwrap_or_else(|| found.clone()),
        };
        let row_order = if architecture.interleaves() {
            row_order(architecture.prefix(), header, stored)?
        } else {
            RowOrder::Plain
        };
        translated.push((name, stored.clone(), row_order));
    }
    Ok(translated)
}

/// The number of the first layer that predicts further tokens. Such layers are counted with the others and follow
/// them.
fn first_predicting(architecture: Architecture, header: &Header<'_>) -> Result<Option<usize>, ModelError> {
    if !architecture.is_hybrid() {
        return Ok(None);
    }
    let count = |key: &str| {
        let key = format!("{}.{key}", architecture.prefix());
        Ok(header.integer(&key)?.and_then(|count| usize::try_from(count).ok()))
    };
    let (layers, predicting) = (count("block_count")?, count("nextn_predict_layers")?);
    let first = layers.zip(predicting.filter(|predicting| *predicting > 0));
    Ok(first.and_then(|(layers, predicting)| layers.checked_sub(predicting)))
}

/// The directory's name of a tensor in the first predicting layer.
fn predictor_name(predicting: Option<usize>, name: &str) -> Option<String> {
    let (layer, below) = name.strip_prefix("blk.")?.split_once('.')?;
    if layer.parse().ok() != Some(predicting?) {
        return None;
    }
    let (part, kind) = below.rsplit_once('.')?;
    let own = QWEN35_PREDICTOR_PARTS.iter().find(|(found, _)| *found == part);
    match own {
        Some((_, part)) => Some(format!("mtp.{part}.{kind}")),
        None => {
            let (_, part) = QWEN35_PARTS.iter().chain(PARTS).find(|(found, _)| *found == part)?;
            Some(format!("mtp.layers.0.{part}.{kind}"))
        }
    }
}

pub(super) fn family_name(architecture: Architecture, name: &str) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.')?;
    let whole = match (stem, architecture) {
        ("token_embd", _) => "model.embed_tokens".to_owned(),
        ("output", _) => "lm_head".to_owned(),
        ("cls.output", _) => "score".to_owned(),
        ("dense_2" | "dense_3", Architecture::GemmaEmbedding) => stem.to_owned(),
        ("output_norm", Architecture::Phi2 | Architecture::FalconH1) => "model.final_layernorm".to_owned(),
        ("output_norm", Architecture::GptNeoX) => "model.final_layer_norm".to_owned(),
        ("output_norm", Architecture::Falcon | Architecture::Gpt2 | Architecture::StarCoder) => "model.ln_f".to_owned(),
        ("position_embd", Architecture::Gpt2 | Architecture::StarCoder) => "model.wpe".to_owned(),
        ("output_norm", Architecture::Mamba2 | Architecture::NemotronH | Architecture::NemotronHMoe) => {
            "model.norm_f".to_owned()
        }
        ("output_norm" | "token_embd_norm", Architecture::Lfm2 | Architecture::Lfm2Moe) => {
            "model.embedding_norm".to_owned()
        }
        ("per_layer_token_embd", Architecture::Gemma4) => "model.embed_tokens_per_layer".to_owned(),
        ("per_layer_model_proj", Architecture::Gemma4) => "model.per_layer_model_projection".to_owned(),
        ("per_layer_proj_norm", Architecture::Gemma4) => "model.per_layer_projection_norm".to_owned(),
        ("output_norm", _) => "model.norm".to_owned(),
        _ => {
            let below = stem.strip_prefix("blk.")?;
            // Two vectors are not separate modules in the model.
            if architecture.is_hybrid() {
                match (below.split_once('.'), kind) {
                    (None, "ssm_a") => return Some(format!("model.layers.{below}.linear_attn.A")),
                    (Some((layer, "ssm_dt")), "bias") => {
                        return Some(format!("model.layers.{layer}.linear_attn.dt_bias"));
                    }
                    _ => {}
                }
            }
            // Some converters omit its kind.
            if kind == "exp_probs_b" && !below.contains('.') {
                return Some(format!("model.layers.{below}.mlp.exp_probs_b.bias"));
            }
            if let Some(name) = mamba_vector(architecture, below, kind) {
                return Some(name);
            }
            let (layer, part) = below.split_once('.')?;
            let own = own_parts(architecture);
            let (_, part) = own.iter().chain(PARTS).find(|(found, _)| *found == part)?;
            format!("model.layers.{layer}.{part}")
        }
    };
    Some(format!("{whole}.{kind}"))
}

/// Names of the three vectors of a Mamba2, which are not separate modules in the model: `blk.N.ssm_a`, `.ssm_d`,
/// `.ssm_dt.bias`; and of Falcon-H1's `blk.N.ffn_norm`, which llama.cpp's converter writes without its kind.
fn mamba_vector(architecture: Architecture, below: &str, kind: &str) -> Option<String> {
    let mixer = match architecture {
        Architecture::GraniteHybrid | Architecture::FalconH1 => "mamba",
        Architecture::Mamba2 | Architecture::NemotronH | Architecture::NemotronHMoe => "mixer",
        _ => return None,
    };
    if (architecture, kind) == (Architecture::FalconH1, "ffn_norm") {
        return Some(format!("model.layers.{below}.pre_ff_layernorm.weight"));
    }
    let (layer, vector) = match (below.split_once('.'), kind) {
        (None, "ssm_a") => (below, "A"),
        (None, "ssm_d") => (below, "D"),
        (Some((layer, "ssm_dt")), "bias") => (layer, "dt_bias"),
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{mixer}.{vector}"))
}

/// Names that differ in an architecture.
fn own_parts(architecture: Architecture) -> &'static [(&'static str, &'static str)] {
    match architecture {
        Architecture::Qwen35 | Architecture::Qwen35Moe | Architecture::Qwen3Next => QWEN35_PARTS,
        Architecture::GptOss | Architecture::Glm4Moe => NORM_PARTS,
        Architecture::Phi2 => PHI2_PARTS,
        Architecture::Phi3 => PHI3_PARTS,
        Architecture::Gemma2 | Architecture::Gemma3 | Architecture::GemmaEmbedding => GEMMA_PARTS,
        Architecture::Gemma4 | Architecture::MuseGlimmer => GEMMA4_PARTS,
        Architecture::SeedOss | Architecture::Olmo2 | Architecture::Exaone4 => AFTER_PARTS,
        Architecture::Llama4 => LLAMA4_PARTS,
        Architecture::Afmoe => AFMOE_PARTS,
        Architecture::Glm4 => GLM4_PARTS,
        Architecture::Starcoder2 => STARCODER2_PARTS,
        Architecture::Apertus => APERTUS_PARTS,
        Architecture::ChatGlm => CHATGLM_PARTS,
        Architecture::Falcon => FALCON_PARTS,
        Architecture::GptNeoX => GPT_NEOX_PARTS,
        Architecture::Gpt2 | Architecture::StarCoder => GPT2_PARTS,
        Architecture::HunyuanDense | Architecture::HunyuanMoe | Architecture::HunyuanVl => HUNYUAN_PARTS,
        Architecture::MiniCpm3 | Architecture::Deepseek2 | Architecture::Mistral4 => LATENT_PARTS,
        Architecture::Deepseek32 | Architecture::GlmDsa => INDEXED_PARTS,
        Architecture::Laguna => LAGUNA_PARTS,
        Architecture::Lfm2 | Architecture::Lfm2Moe => LFM2_PARTS,
        Architecture::GraniteHybrid => GRANITE_HYBRID_PARTS,
        Architecture::FalconH1 => FALCON_H1_PARTS,
        Architecture::Mamba2 | Architecture::NemotronH | Architecture::NemotronHMoe => MIXER_PARTS,
        _ => &[],
    }
}

/// The GGUF name of a tensor with the family's name `name`; `None` if there is none.
pub(super) fn stored_name(architecture: Architecture, name: &str) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.')?;
    let stored = match stem {
        "model.embed_tokens" => "token_embd".to_owned(),
        "lm_head" => "output".to_owned(),
        "model.norm" | "model.final_layernorm" => "output_norm".to_owned(),
        _ => {
            let (layer, part) = stem.strip_prefix("model.layers.")?.split_once('.')?;
            let mut parts = own_parts(architecture).iter().chain(PARTS);
            let (stored, _) = parts.find(|(_, known)| *known == part)?;
            format!("blk.{layer}.{stored}")
        }
    };
    let stored = format!("{stored}.{kind}");
    // Some names mean another part in some architectures.
    (family_name(architecture, &stored).as_deref() == Some(name)).then_some(stored)
}

/// Files of the Llama architecture and some related ones store rotated pairs adjacently.
fn row_order(prefix: &str, header: &Header<'_>, stored: &StoredTensor) -> Result<RowOrder, ModelError> {
    let name = &stored.info.name;
    let (queries, keys) = (
        format!("{prefix}.attention.head_count"),
        format!("{prefix}.attention.head_count_kv"),
    );
    let setting = if !name.starts_with("blk.") || name.ends_with("scale") {
        return Ok(RowOrder::Plain);
    } else if name.contains(".attn_k.") && header.metadata.contains_key(&keys) {
        &keys
    } else if name.contains(".attn_q.") || name.contains(".attn_k.") {
        &queries
    } else {
        return Ok(RowOrder::Plain);
    };
    let heads = match header.metadata.get(setting) {
        Some(Metadata::List(list)) => largest(list).map_err(|problem| header.error(setting, problem))?,
        _ => u64::try_from(header.integer(setting)?.unwrap_or(0)).unwrap_or(0),
    };
    let heads = usize::try_from(heads).unwrap_or(0);
    let rows = stored.info.shape[0];
    if heads == 0 || !rows.is_multiple_of(heads) || !(rows / heads).is_multiple_of(2) {
        let problem = format!("{heads} heads do not divide the {rows} rows of {name} into pairs");
        return Err(header.error(setting, problem));
    }
    Ok(RowOrder::Interleaved { heads })
}
