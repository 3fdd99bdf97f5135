//! The settings of mixtures of experts, from metadata and from the sizes of tensors.

use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::own_keys::OwnKeys;
use crate::ModelError;
use crate::config::LARGEST_COUNT;
use crate::weights::Checkpoint;

/// Keys, and the settings that they become unless they are 0.
const KEYS: &[(&str, &str)] = &[
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("expert_weights_scale", "routed_scaling_factor"),
];
/// Numbers of the functions from logits to scores: unspecified, softmax, sigmoid, softmax over the chosen.
const ANY: f64 = 0.0;
const SOFTMAX: f64 = 1.0;
const SIGMOID: f64 = 2.0;
const SOFTMAX_OF_CHOSEN: f64 = 3.0;

/// Adds the expert settings of a file; `layers` are the model's own.
pub(super) fn experts(
    architecture: Architecture,
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    layers: usize,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    let Some(count) = keys.json("expert_count")?.filter(|count| count.as_f64() != Some(0.0)) else {
        return Ok(());
    };
    // The tensors show which layers have experts, and how wide these are.
    let router = |layer: &usize| format!("model.layers.{layer}.{}.weight", architecture.router());
    let is_sparse = |layer: &usize| weights.info(&router(layer)).is_some();
    let sparse: Vec<usize> = (0..layers.min(LARGEST_COUNT)).filter(is_sparse).collect();
    if sparse.is_empty() {
        // Dense files of DeepSeek's architecture have the key too.
        return match architecture {
            Architecture::Deepseek2 | Architecture::Deepseek32 | Architecture::GlmDsa | Architecture::Mistral4 => {
                Ok(())
            }
            _ => Err(keys.error("expert_count", "is not 0, but no layer has a router of experts")),
        };
    }
    settings.insert("num_experts".into(), count);
    for (key, setting) in KEYS {
        if let Some(value) = keys.json(key)?.filter(|value| value.as_f64() != Some(0.0)) {
            settings.insert((*setting).to_owned(), value);
        }
    }
    check_scores(architecture, keys)?;
    let divides = match keys.json("expert_weights_norm")? {
        Some(divides) => divides,
        // Files of this architecture lack this setting.
        None => json!(architecture.divides_weights()),
    };
    settings.insert("norm_topk_prob".into(), divides);
    let rows = |layer: usize, part: &str, dimension: usize| {
        let info = weights.info(&format!("model.layers.{layer}.{part}.weight"))?;
        info.shape.get(dimension).copied()
    };
    let of_experts = |layer: usize, part: &str| rows(layer, &format!("{}.{part}", architecture.experts()), 1);
    let width = sparse.first().and_then(|layer| {
        let fused = || Some(of_experts(*layer, "gate_up_proj")? / 2);
        of_experts(*layer, "up_proj").or_else(fused)
    });
    let shared = sparse
        .first()
        .and_then(|layer| rows(*layer, "mlp.shared_expert.up_proj", 0));
    if let Some(width) = width {
        settings.insert("moe_intermediate_size".into(), width.into());
        // Models without dense layers may omit the width.
        settings.entry("intermediate_size").or_insert_with(|| width.into());
    }
    settings.insert("shared_expert_intermediate_size".into(), shared.unwrap_or(0).into());
    let kind = |layer| if sparse.contains(&layer) { "sparse" } else { "dense" };
    let kinds: Vec<&str> = (0..layers.min(LARGEST_COUNT)).map(kind).collect();
    settings.insert("mlp_layer_types".into(), kinds.into());
    let dense = (0..layers.min(LARGEST_COUNT)).find(|layer| !sparse.contains(layer));
    let dense = dense.and_then(|layer| rows(layer, "mlp.gate_proj", 0));
    of_architecture(architecture, keys, weights, settings, (width, dense))
}

/// Adds settings that families name differently, or that files of their architecture lack; `width` is an expert's,
/// `dense` a dense block's.
fn of_architecture(
    architecture: Architecture,
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    settings: &mut Map<String, Value>,
    (width, dense): (Option<usize>, Option<usize>),
) -> Result<(), ModelError> {
    let count = settings.get("num_experts").cloned().unwrap_or(Value::Null);
    let scale = settings.get("routed_scaling_factor").cloned().unwrap_or(json!(1.0));
    let mut insert = |own: Value| settings.extend(own.as_object().cloned().unwrap_or_default());
    match architecture {
        Architecture::GraniteHybrid => insert(json!({"num_local_experts": count})),
        Architecture::Gemma4 => insert(json!({"enable_moe_block": true})),
        Architecture::Deepseek2 => {
            let layers = settings.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
            let version = deepseek(keys, weights, layers as usize)?;
            // In the second version a group's score is its best expert's; its files lack this setting.
            settings.insert("topk_method".into(), "group_limited_greedy".into());
            settings.insert("architectures".into(), json!([version]));
            settings.insert("n_routed_experts".into(), count);
            for name in ["n_group", "topk_group"] {
                settings.entry(name).or_insert(1.into());
            }
        }
        Architecture::Deepseek32 | Architecture::GlmDsa | Architecture::Mistral4 => {
            settings.insert("n_routed_experts".into(), count);
            for name in ["n_group", "topk_group"] {
                settings.entry(name).or_insert(1.into());
            }
        }
        Architecture::Laguna => insert(json!({"moe_routed_scaling_factor": scale})),
        Architecture::HyV3 => insert(json!({"router_scaling_factor": scale})),
        Architecture::Afmoe if keys.json("expert_weights_norm")? != Some(true.into()) => {
            let problem = "is missing or false: such files are read in two ways; use the directory";
            return Err(keys.error("expert_weights_norm", problem));
        }
        // Embeddings are scaled by the square root of their width, as llama.cpp does for all files.
        Architecture::Afmoe => insert(json!({"route_scale": scale, "mup_enabled": true})),
        Architecture::Cohere2Moe => {
            let shared = keys.json("expert_shared_count")?.unwrap_or(0.into());
            let function = match keys.number("expert_gating_func")? {
                Some(SOFTMAX) => "softmax",
                _ => "sigmoid",
            };
            insert(json!({
                "intermediate_size": width, "prefix_dense_intermediate_size": dense, "num_shared_experts": shared,
                "expert_selection_fn": function,
            }));
        }
        Architecture::Llama4 => {
            let dense = settings.get("intermediate_size").cloned();
            // Files with 128 experts have no head norms.
            let has_norms = count.as_f64() != Some(128.0);
            let insert = json!({
                "num_local_experts": count, "intermediate_size": width, "intermediate_size_mlp": dense,
                "use_qk_norm": has_norms,
            });
            settings.extend(insert.as_object().cloned().unwrap_or_default());
            // Without chunks all layers carry positions.
            if keys.number("attention.sliding_window")? == Some(0.0) {
                let layers = settings.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
                settings.insert("attention_chunk_size".into(), Value::Null);
                settings.insert("no_rope_layers".into(), vec![1; layers.min(LARGEST_COUNT)].into());
            }
        }
        _ => {}
    }
    Ok(())
}

/// The class of a file of DeepSeek's architecture: sigmoids and a bias for the choice mean the third version. Files
/// of related architectures do not name the function.
fn deepseek(keys: &OwnKeys<'_>, weights: &Checkpoint, layers: usize) -> Result<&'static str, ModelError> {
    let mut biases = (0..layers.min(LARGEST_COUNT)).map(|layer| format!("model.layers.{layer}.mlp.exp_probs_b.bias"));
    let is_third = match keys.number("expert_gating_func")? {
        Some(number) if number != ANY => number == SIGMOID,
        _ => biases.any(|name| weights.info(&name).is_some()),
    };
    if is_third {
        return Ok("DeepseekV3ForCausalLM");
    }
    // Files lack the rule for comparing groups of experts; the released models of this generation use these rules.
    let numbers = ["expert_count", "expert_group_count", "expert_group_used_count"].map(|key| keys.number(key));
    let [experts, groups, used] = numbers;
    let (groups, used) = (groups?.unwrap_or(1.0), used?.unwrap_or(1.0));
    if groups > 1.0 && used < groups && (experts?, groups, used) != (Some(160.0), 8.0, 3.0) {
        let problem =
            format!("is {groups} beside a softmax, and the file does not say how groups are chosen; use the directory");
        return Err(keys.error("expert_group_count", problem));
    }
    match keys.json("expert_weights_norm")? {
        Some(Value::Bool(true)) => Err(keys.error(
            "expert_weights_norm",
            "is true, which is not supported beside a softmax",
        )),
        _ => Ok("DeepseekV2ForCausalLM"),
    }
}

/// The function in a file must be the architecture's.
fn check_scores(architecture: Architecture, keys: &OwnKeys<'_>) -> Result<(), ModelError> {
    const KEY: &str = "expert_gating_func";
    let own: &[f64] = match architecture {
        Architecture::Dots1
        | Architecture::Glm4Moe
        | Architecture::MiniMaxM2
        | Architecture::Lfm2Moe
        | Architecture::NemotronHMoe
        | Architecture::Llama4
        | Architecture::Afmoe
        | Architecture::ExaoneMoe
        | Architecture::Deepseek32
        | Architecture::GlmDsa
        | Architecture::Laguna
        | Architecture::KimiLinear
        | Architecture::HyV3 => &[ANY, SIGMOID],
        Architecture::Cohere2Moe => &[ANY, SOFTMAX, SIGMOID],
        Architecture::Deepseek2 => &[ANY, SOFTMAX, SIGMOID],
        Architecture::GptOss => &[ANY, SOFTMAX, SOFTMAX_OF_CHOSEN],
        _ => &[ANY, SOFTMAX],
    };
    match keys.number(KEY)? {
        Some(number) if !own.contains(&number) => Err(keys.error(
            KEY,
            format!("is {number}, which is not supported for this architecture"),
        )),
        _ => Ok(()),
    }
}
