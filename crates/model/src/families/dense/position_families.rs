//! Families with learned positions and without rotation.

use serde_json::{Value, json};

use super::plan::Planned;
use super::{Block, Inputs, NormKind, Plan, Positions};
use crate::ModelError;
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;

/// Rows of the table before the first position's row, in models of fairseq.
const FAIRSEQ_ROWS: usize = 2;

/// Renames settings: `(name, its name in the file)`.
fn renamed(fields: &Fields, names: &[(&str, &str)]) -> Result<Fields, ModelError> {
    names.iter().try_fold(fields.clone(), |fields, (name, own)| {
        let size = fields.size(own)?;
        Ok(fields.with(name, size))
    })
}

/// A decoder with mean-subtracting norms before its parts, without a gate, and with biases.
pub(super) fn with_positions(fields: &Fields, defaults: Value, table: (&'static str, usize)) -> Planned {
    let mut plan = Plan::new(fields, defaults);
    plan.norm = NormKind::Layer;
    (plan.input_bias, plan.output_bias, plan.mlp_bias) = (true, true, true);
    let layers = plan.fields.size("num_hidden_layers")?.min(LARGEST_COUNT);
    plan.positions = Positions::Listed(vec![false; layers]);
    plan.position_table = Some(table);
    Ok(plan)
}

/// The settings of GPT-2 and StarCoder under common names.
fn gpt2_sizes(fields: &Fields) -> Result<Fields, ModelError> {
    let fields = renamed(
        fields,
        &[
            ("hidden_size", "n_embd"),
            ("num_hidden_layers", "n_layer"),
            ("num_attention_heads", "n_head"),
            ("max_position_embeddings", "n_positions"),
        ],
    )?;
    for (name, value) in [
        ("scale_attn_weights", true),
        ("scale_attn_by_inverse_layer_idx", false),
        ("add_cross_attention", false),
    ] {
        if fields.flag(name, value)? != value {
            return Err(fields.error(name, format!("must be {value} in this architecture")));
        }
    }
    let inner = match fields.optional_size("n_inner")? {
        Some(inner) => inner,
        None => fields.size("n_embd")?.saturating_mul(4),
    };
    Ok(fields.with("intermediate_size", inner))
}

/// Names of GPT-2's parts.
fn name_as_gpt2(mut plan: Plan) -> Plan {
    plan.epsilon = "layer_norm_epsilon";
    plan.block = Block::Before(["ln_1", "ln_2"]);
    plan.final_norm = "model.ln_f";
    plan.inputs = Inputs::Stacked("attn.c_attn");
    plan.output = "attn.c_proj";
    plan.ungated("mlp.c_fc", "mlp.c_proj")
}

pub(super) fn gpt2(fields: &Fields) -> Planned {
    let fields = gpt2_sizes(fields)?.with("num_key_value_heads", Value::Null);
    let plan = with_positions(&fields, json!({"tie_word_embeddings": true}), ("model.wpe.weight", 0))?;
    let mut plan = name_as_gpt2(plan);
    plan.activation = ("activation_function", "gelu_new");
    plan.stores_turned = !plan.fields.flag("stacked_inputs", false)?;
    Ok(plan)
}

pub(super) fn gpt_bigcode(fields: &Fields) -> Planned {
    let has_one_key = fields.flag("multi_query", true)?;
    let mut fields = gpt2_sizes(fields)?;
    if has_one_key {
        fields = fields.with("num_key_value_heads", 1);
    } else {
        fields = fields.with("num_key_value_heads", Value::Null);
    }
    let plan = with_positions(&fields, json!({"tie_word_embeddings": true}), ("model.wpe.weight", 0))?;
    let mut plan = name_as_gpt2(plan);
    plan.activation = ("activation_function", "gelu_pytorch_tanh");
    if !has_one_key && !plan.fields.flag("stacked_inputs", false)? {
        plan.inputs = Inputs::ByHead("attn.c_attn");
    }
    Ok(plan)
}

/// Names of the parts of fairseq's decoders.
fn name_as_fairseq(mut plan: Plan) -> Plan {
    // A constant, not a setting.
    plan.epsilon = "";
    plan.block = Block::Before(["self_attn_layer_norm", "final_layer_norm"]);
    plan.output = "self_attn.out_proj";
    plan.ungated("fc1", "fc2")
}

pub(super) fn opt(fields: &Fields) -> Planned {
    let fields = renamed(fields, &[("intermediate_size", "ffn_dim")])?.with("num_key_value_heads", Value::Null);
    let hidden = fields.size("hidden_size")?;
    if let Some(width) = fields
        .optional_size("word_embed_proj_dim")?
        .filter(|width| *width != hidden)
    {
        let problem = format!("is {width}; embeddings of another width than hidden_size {hidden} are not supported");
        return Err(fields.error("word_embed_proj_dim", problem));
    }
    for (name, value) in [("do_layer_norm_before", true), ("_remove_final_layer_norm", false)] {
        if fields.flag(name, value)? != value {
            return Err(fields.error(name, format!("is {}, which is not supported", !value)));
        }
    }
    let table = ("model.embed_positions.weight", FAIRSEQ_ROWS);
    let plan = with_positions(&fields, json!({"tie_word_embeddings": true}), table)?;
    let mut plan = name_as_fairseq(plan);
    plan.final_norm = "model.final_layer_norm";
    plan.activation = ("activation_function", "relu");
    let biased = plan.fields.flag("enable_bias", true)?;
    (plan.input_bias, plan.output_bias, plan.mlp_bias) = (biased, biased, biased);
    if !plan.fields.flag("layer_norm_elementwise_affine", true)? {
        plan.norm = NormKind::Bare;
    }
    Ok(plan)
}

pub(super) fn biogpt(fields: &Fields) -> Planned {
    let fields = fields.clone().with("num_key_value_heads", Value::Null);
    let table = ("model.embed_positions.weight", FAIRSEQ_ROWS);
    let plan = with_positions(&fields, json!({"tie_word_embeddings": true}), table)?;
    let mut plan = name_as_fairseq(plan);
    plan.final_norm = "model.layer_norm";
    plan.activation.1 = "gelu";
    if plan.fields.flag("scale_embedding", true)? {
        plan.embedding_scale = (plan.fields.size("hidden_size")? as f64).sqrt();
    }
    Ok(plan)
}
