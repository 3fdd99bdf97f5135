//! Metadata keys of GGUF files: read, without effect on text, or refused.
//!
//! Every key of the model's architecture has a row in [`SETTINGS`]. A key without a row may change the computation, so
//! it is refused. A value that its row does not allow is refused too.

use super::architecture::Architecture;
use super::header::{Header, Metadata};
use crate::ModelError;

/// The required kind of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    /// An integer from 1.
    Size,
    /// An integer from 0.
    Count,
    /// An integer from 0, or a list of them.
    Counts,
    /// A finite number.
    Number,
    /// A finite number from 0.
    NotNegative,
    /// A finite number above 0.
    Positive,
    Flag,
    Text,
    List,
    /// A value that the reader of the key checks.
    Any,
}

/// The architectures for which any value of the right kind is accepted.
#[derive(Debug, Clone, Copy)]
enum For {
    All,
    Only(&'static [Architecture]),
    None,
}

use Architecture::{
    Afmoe, Bert, Cohere2, Cohere2Moe, CommandR, Deepseek2, Deepseek32, Dots1, Ernie45Moe, Exaone4, ExaoneMoe, FalconH1,
    Gemma2, Gemma3, Gemma3n, Gemma4, GemmaEmbedding, Glm4Moe, GlmDsa, GptNeoX, GptOss, Granite, GraniteHybrid,
    GraniteMoe, GraniteSwa, HunyuanMoe, HunyuanVl, HyV3, KimiLinear, Laguna, Lfm2, Lfm2Moe, Llama, Llama4, Mamba2,
    Mellum, MiniCpm, MiniCpm3, MiniMaxM2, Mistral3, Mistral4, MuseGlimmer, NemotronH, NemotronHMoe, Olmo2, Olmoe,
    PaddleOcr, Phi2, PhiMoe, Qwen2Moe, Qwen2Vl, Qwen3Moe, Qwen3Next, Qwen3Vl, Qwen3VlMoe, Qwen4Exp, Qwen35, Qwen35Moe,
    StableLm,
};
use For::{All, None as NoOne, Only};
use KeyKind::{Any, Count, Counts, Flag, List, NotNegative, Number, Positive, Size, Text};

/// Architectures with latent attention.
const LATENT: &[Architecture] = &[Deepseek2, MiniCpm3, Deepseek32, GlmDsa, Mistral4, KimiLinear];

/// Architectures whose layers read an indexer's selection.
const INDEXED: &[Architecture] = &[Deepseek32, GlmDsa, Qwen4Exp];

/// Architectures with layers that have a memory matrix per head.
const RECURRENT: &[Architecture] = &[
    Qwen35,
    Qwen35Moe,
    Qwen3Next,
    GraniteHybrid,
    FalconH1,
    Mamba2,
    NemotronH,
    NemotronHMoe,
    KimiLinear,
    Qwen4Exp,
];

/// Architectures that may have experts.
const EXPERTS: &[Architecture] = &[
    Llama,
    Qwen2Moe,
    Qwen3Moe,
    Qwen3VlMoe,
    Qwen35Moe,
    Qwen3Next,
    GptOss,
    Olmoe,
    GraniteMoe,
    Ernie45Moe,
    HunyuanMoe,
    Dots1,
    Glm4Moe,
    MiniMaxM2,
    Deepseek2,
    Deepseek32,
    GlmDsa,
    GraniteHybrid,
    Lfm2Moe,
    NemotronHMoe,
    Gemma4,
    Llama4,
    Afmoe,
    Cohere2Moe,
    ExaoneMoe,
    HyV3,
    Mellum,
    Mistral4,
    Laguna,
    PhiMoe,
    KimiLinear,
    Qwen4Exp,
];

/// Architectures with recurrent layers.
const HYBRID: &[Architecture] = &[Qwen35, Qwen35Moe, Qwen3Next, Qwen4Exp];

/// A key below the architecture's name, with its kind and the architectures that use or ignore it. For other
/// architectures, the values without effect.
const SETTINGS: &[(&str, KeyKind, For, &[f64])] = &[
    // Sizes.
    ("vocab_size", Size, All, &[]),
    ("context_length", Size, All, &[]),
    ("embedding_length", Size, All, &[]),
    ("block_count", Size, All, &[]),
    ("feed_forward_length", Counts, All, &[]),
    ("attention.head_count", Counts, All, &[]),
    ("attention.head_count_kv", Counts, All, &[]),
    ("attention.key_length", Size, All, &[]),
    ("attention.value_length", Size, All, &[]),
    ("attention.key_length_swa", Size, Only(&[Gemma4]), &[]),
    ("attention.value_length_swa", Size, Only(&[Gemma4]), &[]),
    ("attention.shared_kv_layers", Count, Only(&[Gemma3n, Gemma4]), &[0.0]),
    (
        "embedding_length_per_layer_input",
        Count,
        Only(&[Gemma3n, Gemma4, Qwen4Exp]),
        &[0.0],
    ),
    // Parallel streams, and sparse gates.
    ("altup.active_idx", Count, Only(&[Gemma3n]), &[]),
    ("altup.num_inputs", Size, Only(&[Gemma3n]), &[]),
    ("activation_sparsity_scale", List, Only(&[Gemma3n]), &[]),
    ("hyper_connection.count", Size, Only(&[Qwen4Exp]), &[]),
    ("hyper_connection.low_rank", Size, Only(&[Qwen4Exp]), &[]),
    // Tables of n-grams. The token of an image never occurs in a text.
    ("ple.layers", List, Only(&[Qwen4Exp]), &[]),
    ("ple.ngram_size", Size, Only(&[Qwen4Exp]), &[]),
    ("ple.heads_per_ngram", Size, Only(&[Qwen4Exp]), &[]),
    ("ple.conv_kernel", Size, Only(&[Qwen4Exp]), &[]),
    ("ple.eos_token_id", Count, Only(&[Qwen4Exp]), &[]),
    ("ple.image_token_id", Count, Only(&[Qwen4Exp]), &[]),
    ("ple.layer_multipliers", List, Only(&[Qwen4Exp]), &[]),
    ("ple.head_offsets", List, Only(&[Qwen4Exp]), &[]),
    ("ple.head_vocab_sizes", List, Only(&[Qwen4Exp]), &[]),
    // Norms, activations, logits.
    ("attention.layer_norm_epsilon", Positive, All, &[]),
    ("attention.layer_norm_rms_epsilon", Positive, All, &[]),
    ("hidden_activation", Text, All, &[]),
    ("attention.scale", NotNegative, All, &[]),
    ("attn_logit_softcapping", NotNegative, Only(&[Gemma2, Gemma3]), &[0.0]),
    (
        "final_logit_softcapping",
        NotNegative,
        Only(&[Gemma2, Gemma3, Gemma3n, Gemma4, MuseGlimmer]),
        &[0.0],
    ),
    // Windows. `settings` compares the window with the context if no layer has one.
    ("attention.sliding_window", Count, All, &[]),
    (
        "attention.sliding_window_pattern",
        Any,
        Only(&[
            Gemma2,
            Gemma3,
            GemmaEmbedding,
            Exaone4,
            Olmo2,
            Gemma4,
            MuseGlimmer,
            Cohere2Moe,
            GraniteSwa,
            ExaoneMoe,
            Mellum,
            Laguna,
            Gemma3n,
        ]),
        &[],
    ),
    ("attention.rope_pattern", List, Only(&[GraniteSwa]), &[]),
    // Rotation.
    ("rope.freq_base", Positive, All, &[]),
    (
        "rope.freq_base_swa",
        Positive,
        Only(&[Gemma3, Gemma3n, GemmaEmbedding, Gemma4, Olmo2, Mellum, Laguna]),
        &[],
    ),
    ("rope.dimension_count_swa", Size, Only(&[Gemma4, Laguna]), &[]),
    ("rope.dimension_count", Size, All, &[]),
    ("rope.scale_linear", NotNegative, All, &[]),
    ("rope.scaling.type", Text, All, &[]),
    ("rope.scaling.factor", NotNegative, All, &[]),
    ("rope.scaling.original_context_length", Size, All, &[]),
    ("rope.scaling.attn_factor", Positive, All, &[]),
    ("rope.scaling.yarn_beta_fast", Positive, All, &[]),
    ("rope.scaling.yarn_beta_slow", Positive, All, &[]),
    ("rope.scaling.yarn_ext_factor", Number, NoOne, &[1.0, -1.0]),
    ("rope.scaling.yarn_attn_factor", Number, NoOne, &[1.0]),
    (
        "rope.scaling.yarn_log_multiplier",
        Number,
        Only(&[Mistral3, Mistral4, Deepseek2, Deepseek32]),
        &[0.0],
    ),
    (
        "attention.temperature_scale",
        Number,
        Only(&[Mistral3, Mistral4]),
        &[0.0],
    ),
    ("rope.scaling.alpha", Number, NoOne, &[0.0]),
    // Recurrent layers, and layers that predict further tokens.
    ("ssm.conv_kernel", Size, Only(RECURRENT), &[]),
    ("ssm.state_size", Size, Only(RECURRENT), &[]),
    ("ssm.group_count", Size, Only(RECURRENT), &[]),
    ("ssm.time_step_rank", Size, Only(RECURRENT), &[]),
    ("ssm.inner_size", Size, Only(RECURRENT), &[]),
    ("full_attention_interval", Size, Only(HYBRID), &[]),
    ("attention.recurrent_layers", List, Only(HYBRID), &[]),
    (
        "nextn_predict_layers",
        Count,
        Only(&[Qwen35, Qwen35Moe, Qwen3Next, Glm4Moe, ExaoneMoe, Deepseek32, GlmDsa]),
        &[0.0],
    ),
    // Settings of other kinds of models. Only values that disable the settings are allowed.
    ("attention.causal", Flag, Only(&[GemmaEmbedding, Bert]), &[1.0]),
    ("attention.clamp_kqv", Number, NoOne, &[0.0]),
    ("attention.max_alibi_bias", Number, NoOne, &[0.0]),
    ("use_parallel_residual", Flag, Only(&[Phi2, StableLm, GptNeoX]), &[0.0]),
    (
        "logit_scale",
        Number,
        Only(&[
            Granite,
            GraniteHybrid,
            GraniteMoe,
            GraniteSwa,
            CommandR,
            Cohere2,
            Cohere2Moe,
            MiniCpm,
            MuseGlimmer,
        ]),
        &[0.0, 1.0],
    ),
    (
        "residual_scale",
        Number,
        Only(&[Granite, GraniteHybrid, GraniteMoe, GraniteSwa, MiniCpm]),
        &[0.0, 1.0],
    ),
    (
        "embedding_scale",
        Number,
        Only(&[Granite, GraniteHybrid, GraniteMoe, GraniteSwa, MiniCpm]),
        &[0.0, 1.0],
    ),
    // Experts: `mixed` refuses layers with experts in families without. `experts` takes widths, and the layers with
    // experts, from tensors.
    ("expert_count", Count, Only(EXPERTS), &[0.0]),
    ("expert_used_count", Count, Only(EXPERTS), &[0.0]),
    ("expert_shared_count", Count, Only(EXPERTS), &[0.0]),
    ("expert_feed_forward_length", Count, Only(EXPERTS), &[0.0]),
    ("expert_shared_feed_forward_length", Count, Only(EXPERTS), &[0.0]),
    ("expert_weights_scale", NotNegative, Only(EXPERTS), &[0.0]),
    ("expert_weights_norm", Flag, Only(EXPERTS), &[0.0]),
    ("expert_gating_func", Count, Only(EXPERTS), &[0.0]),
    ("expert_group_count", Count, Only(EXPERTS), &[0.0, 1.0]),
    ("expert_group_used_count", Count, Only(EXPERTS), &[0.0, 1.0]),
    ("leading_dense_block_count", Count, Only(EXPERTS), &[0.0]),
    ("interleave_moe_layer_step", Count, Only(EXPERTS), &[0.0, 1.0]),
    // Latent attention, and short convolutions.
    ("attention.q_lora_rank", Size, Only(LATENT), &[]),
    ("attention.kv_lora_rank", Size, Only(LATENT), &[]),
    ("attention.key_length_mla", Size, Only(LATENT), &[]),
    ("attention.value_length_mla", Size, Only(LATENT), &[]),
    ("attention.indexer.head_count", Size, Only(INDEXED), &[]),
    ("attention.indexer.key_length", Size, Only(INDEXED), &[]),
    ("attention.indexer.top_k", Size, Only(INDEXED), &[]),
    ("attention.indexer.types", List, Only(&[GlmDsa]), &[]),
    ("attention.compress_ratios", List, Only(&[Qwen4Exp]), &[]),
    ("kda.head_dim", Size, Only(&[KimiLinear]), &[]),
    ("shortconv.l_cache", Size, Only(&[Lfm2, Lfm2Moe]), &[]),
    // No effect on the logits of text: all sections of a position are equal, and pooling comes after the model.
    (
        "rope.dimension_sections",
        Any,
        Only(&[
            Qwen35, Qwen35Moe, Qwen4Exp, Qwen2Vl, Qwen3Vl, Qwen3VlMoe, Glm4Moe, PaddleOcr, HunyuanVl,
        ]),
        &[],
    ),
    ("n_deepstack_layers", Count, Only(&[Qwen3Vl, Qwen3VlMoe]), &[0.0]),
    ("rope.scaling.finetuned", Flag, All, &[]),
    ("tensor_data_layout", Text, All, &[]),
    ("pooling_type", Count, All, &[]),
    ("dense_2_feat_in", Size, Only(&[GemmaEmbedding]), &[]),
    ("dense_2_feat_out", Size, Only(&[GemmaEmbedding]), &[]),
    ("dense_3_feat_in", Size, Only(&[GemmaEmbedding]), &[]),
    ("dense_3_feat_out", Size, Only(&[GemmaEmbedding]), &[]),
    ("classifier.output_labels", List, All, &[]),
    ("classifier.pooling_type", Count, All, &[]),
];

/// Parts of multimodal files below the architecture's name; the text model ignores them.
const NOT_OF_THE_TEXT_MODEL: &[&str] = &["vision.", "audio.", "mm."];

/// Keys outside the architecture that describe a file; `tokenizer` checks the tokenizer's keys.
const GENERAL: &[(&str, KeyKind)] = &[
    ("general.architecture", Text),
    ("general.type", Text),
    ("split.no", Count),
    ("split.count", Count),
    ("split.tensors.count", Count),
];

/// Checks the keys of a file, or of one shard, outside the architecture.
pub(super) fn check_general(header: &Header<'_>) -> Result<(), ModelError> {
    for (key, kind) in GENERAL {
        if let Some(value) = header.metadata.get(*key) {
            check_kind(header, key, *kind, value)?;
        }
    }
    match header.text("general.type")? {
        None | Some("model") => Ok(()),
        Some("adapter") => Err(header.error(
            "general.type",
            "is \"adapter\": the file holds an adapter and no model; give a model, and add this with `adapters`",
        )),
        Some(other) => Err(header.error("general.type", format!("is {other:?}; give the file of a whole model"))),
    }
}

/// Checks every key of the architecture `prefix`: it must be used or have no effect.
pub(super) fn check_settings(header: &Header<'_>, architecture: Architecture, prefix: &str) -> Result<(), ModelError> {
    // Keys are checked in a fixed order, so that the same file gives the same error.
    let mut keys: Vec<(&String, &Metadata<'_>)> = header.metadata.iter().collect();
    keys.sort_by_key(|(key, _)| *key);
    for (key, value) in keys {
        let own = key.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
        let Some(name) = own.filter(|name| !NOT_OF_THE_TEXT_MODEL.iter().any(|part| name.starts_with(part))) else {
            continue;
        };
        let row = SETTINGS.iter().find(|(known, ..)| *known == name);
        let Some((_, kind, computed, neutral)) = row else {
            let problem = format!(
                "is {}, a setting this version does not know; it may change what the model computes",
                value.show()
            );
            return Err(header.error(key, problem));
        };
        check_kind(header, key, *kind, value)?;
        let computed = match computed {
            All => true,
            Only(architectures) => architectures.contains(&architecture),
            NoOne => false,
        };
        if !computed && !as_number(value).is_some_and(|number| neutral.contains(&number)) {
            let problem = format!(
                "is {}, which is not supported for architecture {prefix:?}",
                value.show()
            );
            return Err(header.error(key, problem));
        }
    }
    Ok(())
}

fn check_kind(header: &Header<'_>, key: &str, kind: KeyKind, value: &Metadata<'_>) -> Result<(), ModelError> {
    let whole = |least: i128| match value {
        Metadata::Integer(number) => *number >= least,
        Metadata::Float(number) => number.fract() == 0.0 && *number >= least as f64,
        _ => false,
    };
    let number = match value {
        Metadata::Flag(_) => None,
        other => as_number(other).filter(|number| number.is_finite()),
    };
    let (right, expected) = match kind {
        Size => (whole(1), "a whole number from 1"),
        Count => (whole(0), "a whole number from 0"),
        Counts => (
            whole(0) || matches!(value, Metadata::List(_)),
            "a whole number from 0 or a list of them",
        ),
        Number => (number.is_some(), "a finite number"),
        NotNegative => (number.is_some_and(|number| number >= 0.0), "a finite number from 0"),
        Positive => (number.is_some_and(|number| number > 0.0), "a finite number above 0"),
        Flag => (matches!(value, Metadata::Flag(_)), "true or false"),
        Text => (matches!(value, Metadata::Text(_)), "a text"),
        List => (matches!(value, Metadata::List(_)), "a list"),
        Any => (true, ""),
    };
    if right {
        Ok(())
    } else {
        Err(header.error(key, format!("must be {expected}, found {}", value.show())))
    }
}

fn as_number(value: &Metadata<'_>) -> Option<f64> {
    match value {
        Metadata::Integer(number) => Some(*number as f64),
        Metadata::Float(number) => Some(*number),
        Metadata::Flag(flag) => Some(f64::from(u8::from(*flag))),
        Metadata::Text(_) | Metadata::List(_) => None,
    }
}
