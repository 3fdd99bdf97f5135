//! The sizes and rules of a mixture of experts, from config.json.

use serde_json::Value;

use super::{ExpertGroups, RouterRules, Scoring, WeightSum};
use crate::blocks::Activation;
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;
use crate::{ExpertShape, ModelConfig, ModelError};

/// Names of the setting for the number of experts.
pub(crate) const EXPERT_COUNTS: &[&str] = &[
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
];
/// Names of the settings for the experts per token, and for their inner width.
const USED: &[&str] = &["num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"];
const WIDTH: &[&str] = &["moe_intermediate_size", "intermediate_size"];
/// Names of the settings for the shared block's inner width, and for the number of shared experts of equal width.
const SHARED_WIDTH: &[&str] = &[
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
];
const SHARED_COUNT: &[&str] = &[
    "n_shared_experts",
    "moe_num_shared_experts",
    "num_shared_expert",
    "num_shared_experts",
];

/// Layout of gates and ups in a tensor of all experts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FusedLayout {
    /// True if inputs come before outputs in the shape, `[experts, inputs, outputs]`.
    pub transposed: bool,
    /// True if rows of gate and up alternate; otherwise all gates come first.
    pub alternating: bool,
}

/// The settings of the experts of a family.
#[derive(Debug, Clone)]
pub struct ExpertSettings {
    /// Sizes.
    pub shape: ExpertShape,
    /// For each layer, true if it has experts.
    pub sparse: Vec<bool>,
    /// The rules of the router.
    pub rules: RouterRules,
    /// The router's linear layer has a bias.
    pub router_bias: bool,
    /// The router normalises the residual stream itself, with this epsilon.
    pub router_epsilon: Option<f32>,
    /// The non-linearity.
    pub activation: Activation,
    /// Experts have gates.
    pub gated: bool,
    /// Experts have biases.
    pub biased: bool,
    /// True if weights multiply the inputs of experts instead of their results.
    pub weighs_input: bool,
    /// True if experts for pictures follow those for text, and routers are stored as `[hidden, experts]`.
    pub has_pictures: bool,
    /// Factor on the result of the shared block.
    pub shared_scale: f64,
    /// The layout of tensors with all experts.
    pub layout: FusedLayout,
}

impl ExpertSettings {
    /// The settings that most families share: softmax over all experts, gated SwiGLU without biases.
    ///
    /// # Errors
    /// [`ModelError::Config`] names the missing or invalid setting.
    pub fn read(fields: &Fields) -> Result<ExpertSettings, ModelError> {
        let shape = shape(fields)?;
        let plain = fields.flag("norm_topk_prob", false)?.then_some(WeightSum::PLAIN);
        Ok(ExpertSettings {
            sparse: sparse_layers(fields)?,
            rules: RouterRules {
                used: shape.used,
                scoring: Scoring::Softmax,
                groups: groups(fields, &shape)?,
                sum: plain,
                scale: fields.optional_positive("routed_scaling_factor")?.unwrap_or(1.0) as f32,
            },
            shape,
            router_bias: false,
            router_epsilon: None,
            activation: Activation::from_fields(fields, "hidden_act", "silu")?,
            gated: true,
            biased: false,
            weighs_input: false,
            has_pictures: false,
            shared_scale: 1.0,
            layout: FusedLayout::default(),
        })
    }

    /// Sets the divisor of the weights.
    pub fn with_sum(mut self, sum: Option<WeightSum>) -> ExpertSettings {
        self.rules.sum = sum;
        self
    }

    /// Sets the scoring.
    pub fn with_scoring(mut self, scoring: Scoring) -> ExpertSettings {
        self.rules.scoring = scoring;
        self
    }

    /// The router of DeepSeek-V3 and its relatives: sigmoids and a bias for the choice, groups by their two best
    /// experts.
    pub fn with_noaux(mut self) -> ExpertSettings {
        self.rules.scoring = Scoring::Sigmoid;
        if self.rules.sum.is_some() {
            self.rules.sum = Some(WeightSum {
                added: 1e-20,
                least: 0.0,
            });
        }
        if let Some(groups) = &mut self.rules.groups {
            groups.best = 2;
        }
        self
    }

    /// Records the sizes in a model's configuration, and that no device computes it.
    ///
    /// # Errors
    /// [`ModelError::Config`] for a list of layers of another length.
    pub fn configure(&self, fields: &Fields, config: &mut ModelConfig) -> Result<(), ModelError> {
        if self.sparse.len() != config.layers {
            let problem = format!("lists {} layers, the model has {}", self.sparse.len(), config.layers);
            return Err(fields.error("mlp_layer_types", problem));
        }
        config.experts = Some(self.shape);
        config.host_only = Some("mixture of experts");
        Ok(())
    }

    /// True if a layer has experts.
    pub fn is_sparse(&self, layer: usize) -> bool {
        self.sparse.get(layer).copied().unwrap_or(true)
    }
}

/// The first of several settings that exists. A list with one number per layer is accepted if all are equal.
fn size<'a>(fields: &Fields, names: &[&'a str]) -> Result<Option<(&'a str, usize)>, ModelError> {
    for name in names {
        let fields = match fields.get(name) {
            None => continue,
            Some(Value::Array(items)) => match items.first() {
                Some(first) if items.iter().all(|item| item == first) => fields.clone().with(name, first.clone()),
                _ => return Err(fields.error(name, "differs from layer to layer, which is not supported")),
            },
            Some(_) => fields.clone(),
        };
        return Ok(fields.optional_count(name)?.map(|size| (*name, size)));
    }
    Ok(None)
}

fn needed<'a>(fields: &Fields, names: &[&'a str]) -> Result<(&'a str, usize), ModelError> {
    match size(fields, names)? {
        Some((name, found)) if (1..=LARGEST_COUNT).contains(&found) => Ok((name, found)),
        Some((name, found)) => Err(fields.error(
            name,
            format!("{found} is not plausible, 1 to {LARGEST_COUNT} is supported"),
        )),
        None => Err(fields.error(names[0], "is missing; the model cannot be built without it")),
    }
}

fn shape(fields: &Fields) -> Result<ExpertShape, ModelError> {
    let (_, experts) = needed(fields, EXPERT_COUNTS)?;
    let (used_name, used) = needed(fields, USED)?;
    if used > experts {
        let problem = format!("{used} experts of a token are more than the {experts} of a layer");
        return Err(fields.error(used_name, problem));
    }
    // A null width means the dense block's width.
    let (width_name, width) = needed(fields, WIDTH)?;
    let (_, count) = size(fields, SHARED_COUNT)?.unwrap_or((SHARED_COUNT[0], 0));
    let shared_width = match size(fields, SHARED_WIDTH)? {
        Some((_, shared)) => Some(shared),
        None => width.checked_mul(count),
    };
    match shared_width {
        Some(shared_width) if shared_width <= 1 << 31 => Ok(ExpertShape {
            experts,
            used,
            width,
            shared_width,
        }),
        _ => Err(fields.error(width_name, "is not plausible beside the number of shared experts")),
    }
}

fn groups(fields: &Fields, shape: &ExpertShape) -> Result<Option<ExpertGroups>, ModelError> {
    let (Some(count), Some(used)) = (
        fields.optional_count("n_group")?.filter(|count| *count > 1),
        fields.optional_count("topk_group")?,
    ) else {
        return Ok(None);
    };
    if !shape.experts.is_multiple_of(count) {
        let problem = format!("{count} groups do not divide the {} experts", shape.experts);
        return Err(fields.error("n_group", problem));
    }
    if !(1..=count).contains(&used) || used * (shape.experts / count) < shape.used {
        let problem = format!(
            "{used} of {count} groups do not hold the {} experts of a token",
            shape.used
        );
        return Err(fields.error("topk_group", problem));
    }
    Ok(Some(ExpertGroups { count, used, best: 1 }))
}

/// For each layer, true if it has experts.
fn sparse_layers(fields: &Fields) -> Result<Vec<bool>, ModelError> {
    let layers = fields.size("num_hidden_layers")?.min(LARGEST_COUNT);
    let types = fields.texts("mlp_layer_types")?;
    if !types.is_empty() {
        return Ok(types.iter().map(|kind| kind == "sparse").collect());
    }
    let first = match fields.optional_count("first_k_dense_replace")? {
        Some(first) => first,
        None => fields.optional_count("num_dense_layers")?.unwrap_or(0),
    };
    let first = first.max(fields.optional_count("moe_layer_start_index")?.unwrap_or(0));
    let end = match fields.optional_number("moe_layer_end_index")? {
        Some(last) if last >= 0.0 => (last as usize).saturating_add(1),
        _ => layers,
    };
    // Counted from 1.
    let mut step = 1;
    for name in ["decoder_sparse_step", "moe_layer_interval"] {
        step = fields.optional_size(name)?.unwrap_or(step);
    }
    let mut sparse: Vec<bool> = (0..layers)
        .map(|layer| (first..end).contains(&layer) && (layer + 1).is_multiple_of(step))
        .collect();
    if let Some(Value::Array(dense)) = fields.get("mlp_only_layers") {
        for layer in dense {
            let number = layer.as_u64().and_then(|layer| usize::try_from(layer).ok());
            match number.filter(|number| *number < sparse.len()) {
                Some(number) => sparse[number] = false,
                None => return Err(fields.error("mlp_only_layers", format!("names no layer: {layer}"))),
            }
        }
    }
    Ok(sparse)
}
