//! `riffle inspect`: the properties of a model.

use std::collections::BTreeMap;
use std::fmt::Write;

use riffle_engine::human_bytes;
use riffle_model::{AttentionShape, ModelConfig, ModelInfo, TensorInfo};
use serde_json::{Value, json};

use super::{grouped, print, print_json};
use crate::args::InspectArguments;
use crate::failure::Failure;
use crate::model::given_or_found;
use crate::shown::name;

pub(crate) fn inspect(arguments: &InspectArguments) -> Result<(), Failure> {
    let info = riffle_model::inspect(given_or_found(arguments.model.as_ref())?.path)?;
    if arguments.json {
        return print_json(&as_json(&info, arguments.tensors));
    }
    let mut text = described(&info);
    if arguments.tensors {
        text += &listed(&info.tensors);
    }
    print(&text)
}

fn as_json(info: &ModelInfo, with_tensors: bool) -> Value {
    let config = &info.config;
    let mut value = json!({
        "path": info.path,
        "format": info.format,
        "architecture": config.architecture,
        "layers": config.layers,
        "attention_layers": config.attention_layers(),
        "recurrent_bytes": config.recurrent_bytes(),
        "state_kinds": state_kinds(config),
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "attention": shapes(config).into_iter().map(|(shape, layers)| json!({
            "layers": layers,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "key_width": shape.key_width,
            "value_width": shape.value_width,
            "shares": shape.shares,
            "has_sinks": shape.has_sinks,
            "is_latent": shape.is_latent,
        })).collect::<Vec<_>>(),
        "max_position": config.max_position,
        "vocab_size": config.vocab_size,
        "tied_embeddings": config.tied_embeddings,
        "tensor_bytes": info.tensor_bytes,
        "weight_bytes": info.config.weight_bytes,
        "quantised": info.config.quantised,
        "has_chat_template": !info.chat_templates.is_empty(),
        "tokenizer": info.tokenizer.as_ref().map(|tokenizer| json!({
            "kind": tokenizer.kind,
            "vocab_size": tokenizer.vocab_size,
            "bos": tokenizer.bos,
            "eos": tokenizer.eos,
        })),
        "tensors": info.tensors.len(),
        "formats": by_format(&info.tensors).into_iter().map(|(format, (tensors, bytes))| json!({
            "type": format,
            "tensors": tensors,
            "bytes": bytes,
        })).collect::<Vec<_>>(),
    });
    if with_tensors {
        let tensors = info.tensors.iter().map(|tensor| {
            json!({
                "name": tensor.name,
                "type": tensor.element_type.to_string(),
                "shape": tensor.shape,
                "bytes": tensor.bytes,
            })
        });
        value["tensors"] = tensors.collect();
    }
    value
}

/// The kinds of layer state, without duplicates.
fn state_kinds(config: &ModelConfig) -> Vec<&'static str> {
    let mut kinds = Vec::new();
    for (_, shape) in config.state_layers() {
        if !kinds.contains(&shape.kind()) {
            kinds.push(shape.kind());
        }
    }
    kinds
}

/// Tensors and bytes of each element format.
fn by_format(tensors: &[TensorInfo]) -> BTreeMap<String, (usize, u64)> {
    let mut formats = BTreeMap::<String, (usize, u64)>::new();
    for tensor in tensors {
        let entry = formats.entry(tensor.element_type.to_string()).or_default();
        entry.0 += 1;
        entry.1 += tensor.bytes;
    }
    formats
}

fn described(info: &ModelInfo) -> String {
    let config = &info.config;
    let types: Vec<String> = by_format(&info.tensors)
        .iter()
        .map(|(name, (tensors, bytes))| format!("{name} {} in {tensors} tensors", human_bytes(*bytes)))
        .collect();
    let tokenizer = info.tokenizer.as_ref().map_or("none".to_owned(), |tokenizer| {
        format!(
            "{} of {} tokens, begins {}, ends {}",
            tokenizer.kind,
            grouped(tokenizer.vocab_size),
            tokenizer.bos.as_deref().map_or("none".to_owned(), name),
            tokenizer.eos.as_deref().map_or("none".to_owned(), name),
        )
    });
    let quantised = config.quantised.map_or(String::new(), |method| {
        let memory = human_bytes(config.weight_bytes);
        format!("quantised     by {method}; they take {memory} of memory\n")
    });
    let recurrent = match config.state_layers().count() {
        0 => String::new(),
        layers => format!(
            ", {layers} of them recurrent ({}) with a state of {}",
            state_kinds(config).join(", "),
            human_bytes(config.recurrent_bytes())
        ),
    };
    format!(
        "path          {}\nformat        {}\narchitecture  {}\nlayers        {}{recurrent}\nhidden        {}, feed-forward {}\n{}positions     {}\nvocabulary    {}{}\nweights       {} in {} tensors: {}\n{quantised}tokenizer     {tokenizer}\nchat template {}\n",
        name(&info.path.display().to_string()),
        info.format,
        config.architecture,
        config.layers,
        grouped(config.hidden_size),
        grouped(config.intermediate_size),
        shapes(config).iter().map(heads_line).collect::<String>(),
        grouped(config.max_position),
        grouped(config.vocab_size),
        if config.tied_embeddings {
            ", embedding and head tied"
        } else {
            ""
        },
        human_bytes(info.tensor_bytes),
        grouped(info.tensors.len()),
        types.join(", "),
        if info.chat_templates.is_empty() { "no" } else { "yes" },
    )
}

/// The distinct attention shapes of a model, each with its layers.
fn shapes(config: &ModelConfig) -> Vec<(AttentionShape, Vec<usize>)> {
    let mut shapes: Vec<(AttentionShape, Vec<usize>)> = Vec::new();
    for layer in (0..config.layers).filter(|layer| config.cache_layer(*layer).is_some()) {
        let shape = config.attention_of(layer);
        match shapes.iter_mut().find(|(found, _)| *found == shape) {
            Some((_, layers)) => layers.push(layer),
            None => shapes.push((shape, vec![layer])),
        }
    }
    shapes
}

fn heads_line((shape, layers): &(AttentionShape, Vec<usize>)) -> String {
    let widths = if shape.is_latent {
        format!("{} wide, of which {} are the value", shape.key_width, shape.value_width)
    } else if shape.key_width == shape.value_width {
        format!("{} wide", shape.key_width)
    } else {
        format!("keys {} and values {} wide", shape.key_width, shape.value_width)
    };
    let shares = shape
        .shares
        .map_or(String::new(), |owner| format!(", with the keys of layer {owner}"));
    let sinks = if shape.has_sinks { ", with sinks" } else { "" };
    format!(
        "heads         {} query, {} KV, {widths}{shares}{sinks}, in {} layers\n",
        shape.heads,
        shape.kv_heads,
        layers.len(),
    )
}

fn listed(tensors: &[TensorInfo]) -> String {
    let mut text = "\n".to_owned();
    for tensor in tensors {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:6} {:?} {}",
            tensor.element_type.to_string(),
            tensor.shape,
            name(&tensor.name)
        );
    }
    text
}
