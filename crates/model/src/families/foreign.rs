//! Unsupported settings of config.json: a model that enables one is refused.
//!
//! config.json has many fields without effect on the computation, so the effective ones are listed here. A family
//! checks the settings that it reads. Settings that a family's reference implementation ignores are ignored here too.

use serde_json::Value;

use super::Family;
use crate::fields::{Fields, show};
use crate::{ModelConfig, ModelError, StateShape};

/// A setting and the values with which it has no effect. Booleans count as 0 and 1.
struct Foreign {
    name: &'static str,
    neutral: &'static [f64],
    /// Architectures that support the setting.
    but_for: &'static [&'static str],
}

const fn foreign(name: &'static str, neutral: &'static [f64]) -> Foreign {
    Foreign {
        name,
        neutral,
        but_for: &[],
    }
}

const GEMMA: &[&str] = &["Gemma2ForCausalLM", "Gemma3ForCausalLM"];
const BENT: &[&str] = &["Gemma2ForCausalLM"];
const HYBRID: &[&str] = &["Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen3NextForCausalLM"];

const FOREIGN: &[Foreign] = &[
    // Experts.
    foreign("num_experts", &[0.0]),
    foreign("num_local_experts", &[0.0]),
    foreign("n_routed_experts", &[0.0]),
    // Settings for the tokens that attention reads.
    foreign("is_causal", &[1.0]),
    foreign("use_bidirectional_attention", &[0.0]),
    foreign("attention_chunk_size", &[]),
    foreign("alibi", &[0.0]),
    foreign("no_rope_layer_interval", &[0.0]),
    Foreign {
        name: "attn_output_gate",
        neutral: &[0.0],
        but_for: HYBRID,
    },
    // Factors and caps.
    Foreign {
        name: "attn_logit_softcapping",
        neutral: &[],
        but_for: BENT,
    },
    Foreign {
        name: "final_logit_softcapping",
        neutral: &[],
        but_for: GEMMA,
    },
    foreign("attention_multiplier", &[]),
    foreign("embedding_multiplier", &[1.0]),
    foreign("residual_multiplier", &[1.0]),
    foreign("logits_scaling", &[1.0]),
    foreign("logit_scale", &[1.0]),
    foreign("clip_qkv", &[]),
];

/// Refuses settings that change the computation and that the family does not read.
pub(crate) fn refuse(fields: &Fields, family: &Family, architecture: &str) -> Result<(), ModelError> {
    for foreign in FOREIGN {
        let Some(value) = fields.get(foreign.name) else {
            continue;
        };
        let number = match value {
            Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
            other => other.as_f64(),
        };
        let neutral = number.is_some_and(|number| foreign.neutral.contains(&number));
        let read = foreign.but_for.contains(&architecture) || family.settings.contains(&foreign.name);
        if !neutral && !read {
            let problem = format!("is {}, which is not supported for {architecture}", show(value));
            return Err(fields.error(foreign.name, problem));
        }
    }
    if HYBRID.contains(&architecture) && !fields.flag("attn_output_gate", true)? {
        return Err(fields.error("attn_output_gate", "is false, which is not supported"));
    }
    refuse_part_of_a_rotation(fields, family, architecture)?;
    refuse_unrounded_kinds(fields)?;
    refuse_two_rotations(fields)
}

/// In most families the default rotation covers whole heads, despite `partial_rotary_factor`.
fn refuse_part_of_a_rotation(fields: &Fields, family: &Family, architecture: &str) -> Result<(), ModelError> {
    if family.rotates_partly {
        return Ok(());
    }
    let inner = match fields.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => fields.object("rope_scaling")?,
    };
    let mut places = Vec::new();
    if let Some(inner) = &inner {
        for kind in ["full_attention", "sliding_attention"] {
            places.extend(inner.object(kind)?);
        }
    }
    if places.is_empty() {
        places.extend(inner);
    }
    let is_default = |place: &Fields| -> Result<bool, ModelError> {
        let kind = place.text("rope_type")?.or(place.text("type")?);
        Ok(matches!(kind, None | Some("default" | "mrope")))
    };
    if places.is_empty() {
        places.push(fields.clone());
    }
    for rotation in &places {
        if !is_default(rotation)? {
            continue;
        }
        for place in [rotation, fields] {
            if let Some(part) = place
                .optional_number("partial_rotary_factor")?
                .filter(|part| *part != 1.0)
            {
                let problem =
                    format!("is {part}, which the default rotation of {architecture} does not read; leave it out");
                return Err(place.error("partial_rotary_factor", problem));
            }
        }
    }
    Ok(())
}

/// transformers reads `truncate` only beside the rotations of layer kinds, not within them.
fn refuse_unrounded_kinds(fields: &Fields) -> Result<(), ModelError> {
    let Some(parameters) = fields.object("rope_parameters")? else {
        return Ok(());
    };
    let kinds = ["full_attention", "sliding_attention"].map(|kind| parameters.object(kind));
    for rotation in kinds.into_iter().filter_map(Result::transpose) {
        for place in [&rotation?, &parameters] {
            if !place.flag("truncate", true)? {
                let problem = "is false, which is not supported where kinds of layers have rotations of their own";
                return Err(place.error("truncate", problem));
            }
        }
    }
    Ok(())
}

/// The rotation may be given in several places; they must agree.
fn refuse_two_rotations(fields: &Fields) -> Result<(), ModelError> {
    let (current, older) = (fields.object("rope_parameters")?, fields.object("rope_scaling")?);
    if let (Some(current), Some(older)) = (&current, &older)
        && let Some((name, _)) = older
            .values()
            .iter()
            .find(|(name, value)| *name != "type" && current.get(name) != Some(*value))
    {
        let problem = format!("{name} is not the same in rope_parameters; keep one of the two");
        return Err(fields.error("rope_scaling", problem));
    }
    let Some(inner) = current.or(older) else {
        return Ok(());
    };
    for name in ["rope_theta", "partial_rotary_factor"] {
        if let (Some(outer), Some(inner)) = (fields.optional_number(name)?, inner.optional_number(name)?)
            && outer != inner
        {
            let problem = format!("is {outer} but {inner} among the parameters of the rotation; keep one of the two");
            return Err(fields.error(name, problem));
        }
    }
    match (inner.text("rope_type")?, inner.text("type")?) {
        (Some(kind), Some(older)) if kind != older => Err(inner.error(
            "type",
            format!("is {older:?} but rope_type is {kind:?}; keep one of the two"),
        )),
        _ => Ok(()),
    }
}

/// Refuses a list of layer types that contradicts the configured model.
pub(crate) fn check_layer_types(fields: &Fields, config: &ModelConfig) -> Result<(), ModelError> {
    let types = fields.texts("layer_types")?;
    // A table of n-grams is a layer of its own, which no list names.
    let is_named = |layer: &usize| !matches!(config.state_of(*layer), Some(StateShape::Ngrams(_)));
    let layers: Vec<usize> = (0..config.layers).filter(is_named).collect();
    if !types.is_empty() && types.len() != layers.len() {
        let problem = format!("lists {} layers, the model has {}", types.len(), layers.len());
        return Err(fields.error("layer_types", problem));
    }
    for (named, layer) in types.iter().zip(layers) {
        let slides = config.windows.get(layer).is_some_and(Option::is_some);
        let found = match (config.state_of(layer), config.is_attention(layer)) {
            (Some(_), true) => "hybrid",
            (Some(shape), false) => shape.layer_type(),
            (None, true) if slides => "sliding_attention",
            (None, true) => "full_attention",
            (None, false) => "mlp",
        };
        // Older files have other names for two kinds.
        let named = match named.as_str() {
            "mamba" => "linear_attention",
            "attention" => "full_attention",
            "moe" => "mlp",
            // Only one chunk is ever read, so it is equal to full attention.
            "chunked_attention" if config.architecture == "Llama4ForCausalLM" => "full_attention",
            // An indexer selects among all tokens that the layer sees.
            "indexed_attention" if config.indexer_of(layer).is_some() => "full_attention",
            // If a model of the family has a window, all its attention layers have the window.
            "full_attention" if slides && config.architecture == "MiniMaxForCausalLM" => "sliding_attention",
            named => named,
        };
        if named != found {
            let problem = format!("layer {layer} is {named:?}, by the other settings it is {found}");
            return Err(fields.error("layer_types", problem));
        }
    }
    Ok(())
}
