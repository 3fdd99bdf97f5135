//! Translates tensor names of GGUF files to the families' names.

use super::architecture::Architecture;
use super::header::{Header, Metadata};
use super::own_keys::largest;
use super::parts::{PARTS, QWEN35_PARTS, QWEN35_PREDICTOR_PARTS, own_parts};
use crate::ModelError;
use crate::weights::{RowOrder, StoredTensor};

/// The table of n-grams, of which a file has one. The setting `ple_layer_ids` names its layer.
pub(super) const NGRAM_TABLE: &str = "model.ngram_table";

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
        ("token_embd_norm", Architecture::Bert) => "model.embeddings.LayerNorm".to_owned(),
        ("position_embd", Architecture::Bert) => "model.embeddings.position_embeddings".to_owned(),
        ("token_types", Architecture::Bert) => "model.embeddings.token_type_embeddings".to_owned(),
        ("cls", Architecture::Bert) => "classifier.dense".to_owned(),
        ("cls.output", Architecture::Bert) => "classifier.out_proj".to_owned(),
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
        ("per_layer_token_embd", Architecture::Gemma3n | Architecture::Gemma4) => {
            "model.embed_tokens_per_layer".to_owned()
        }
        ("per_layer_model_proj", Architecture::Gemma3n | Architecture::Gemma4) => {
            "model.per_layer_model_projection".to_owned()
        }
        ("per_layer_proj_norm", Architecture::Gemma3n | Architecture::Gemma4) => {
            "model.per_layer_projection_norm".to_owned()
        }
        ("altup_proj", Architecture::Gemma3n) => "model.altup_projections".to_owned(),
        ("altup_unembd_proj", Architecture::Gemma3n) => "model.altup_unembed_projections".to_owned(),
        ("output_hc_norm", Architecture::Qwen4Exp) => "model.hyper_connection_mixer.hc_norm".to_owned(),
        ("output_hc_down", Architecture::Qwen4Exp) => "model.hyper_connection_mixer.input_mix_weight_down".to_owned(),
        ("output_hc_up", Architecture::Qwen4Exp) => "model.hyper_connection_mixer.input_mix_weight_up".to_owned(),
        ("per_layer_token_embd", Architecture::Qwen4Exp) => NGRAM_TABLE.to_owned(),
        ("output_norm", _) => "model.norm".to_owned(),
        _ => return layer_name(architecture, stem.strip_prefix("blk.")?, kind),
    };
    Some(format!("{whole}.{kind}"))
}

/// The family's name of a layer's tensor, `blk.{below}.{kind}` in the file.
fn layer_name(architecture: Architecture, below: &str, kind: &str) -> Option<String> {
    // Some converters omit `.bias` at the end of this tensor's name.
    if kind == "exp_probs_b" && !below.contains('.') {
        return Some(format!("model.layers.{below}.mlp.exp_probs_b.bias"));
    }
    if let Some(name) = mixer_vector(architecture, below, kind) {
        return Some(name);
    }
    let (layer, part) = below.split_once('.')?;
    if (architecture, part) == (Architecture::Gemma3n, "altup_correct_scale") {
        return Some(format!("model.layers.{layer}.altup.correct_output_scale"));
    }
    let mut parts = own_parts(architecture).iter().copied().flatten().chain(PARTS);
    let (_, part) = parts.find(|(found, _)| *found == part)?;
    Some(format!("model.layers.{layer}.{part}.{kind}"))
}

/// Names of the vectors of a recurrent mixer, which are not separate modules in the model: `blk.N.ssm_a`, `.ssm_d`,
/// `.ssm_dt.bias`; and of Falcon-H1's `blk.N.ffn_norm`, which llama.cpp's converter writes without its kind.
fn mixer_vector(architecture: Architecture, below: &str, kind: &str) -> Option<String> {
    let mixer = match architecture {
        Architecture::GraniteHybrid | Architecture::FalconH1 => "mamba",
        Architecture::Mamba2 | Architecture::NemotronH | Architecture::NemotronHMoe => "mixer",
        Architecture::KimiLinear => "self_attn",
        _ if architecture.is_hybrid() => "linear_attn",
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

/// The GGUF name of a tensor with the family's name `name`; `None` if there is none.
pub(super) fn stored_name(architecture: Architecture, name: &str) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.')?;
    let stored = match stem {
        "model.embed_tokens" => "token_embd".to_owned(),
        "lm_head" => "output".to_owned(),
        "model.norm" | "model.final_layernorm" => "output_norm".to_owned(),
        _ => {
            let (layer, part) = stem.strip_prefix("model.layers.")?.split_once('.')?;
            let mut parts = own_parts(architecture).iter().copied().flatten().chain(PARTS);
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
