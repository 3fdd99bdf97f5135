//! Adapters in GGUF files of llama.cpp's `convert_lora_to_gguf.py`.

use std::path::Path;

use twox_hash::XxHash3_128;

use super::header::{Header, Metadata};
use super::{architecture, names, read};
use crate::ModelError;
use crate::adapters::{AdapterFiles, Base, DOWN, UP, unusable};
use crate::weights::{Checkpoint, RowOrder};

const ALPHA: &str = "adapter.lora.alpha";

/// Reads everything of an adapter except its weights' data.
pub(crate) fn open_adapter(path: &Path, base: &Base<'_>) -> Result<AdapterFiles, ModelError> {
    let (file, map) = read(path)?;
    let header = Header::parse(path, &map)?;
    let refused = |problem: String| unusable(path, problem);
    match (header.text("general.type")?, header.text("adapter.type")?) {
        (Some("adapter"), Some("lora")) => {}
        (Some("adapter"), kind) => {
            let kind = kind.unwrap_or("(none)");
            return Err(refused(format!(
                "it is an adapter of the type {kind:?}; only lora is supported"
            )));
        }
        _ => return Err(refused("it is a model and no adapter: give it as the model".to_owned())),
    }
    let alpha = match header.metadata.get(ALPHA) {
        Some(Metadata::Float(alpha)) => *alpha,
        Some(Metadata::Integer(alpha)) => *alpha as f64,
        _ => return Err(refused(format!("{ALPHA} is missing"))),
    };
    if header.metadata.keys().any(|key| key.starts_with("adapter.alora.")) {
        return Err(refused(
            "it is activated by tokens (aLoRA), which is not supported".to_owned(),
        ));
    }
    let architecture = architecture::architecture(&header)?;
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for stored in &header.tensors {
        let found = &stored.info.name;
        let parts = [(".lora_a", DOWN), (".lora_b", UP)];
        let part = parts
            .iter()
            .find_map(|(end, own)| Some((found.strip_suffix(end)?, *own)));
        let weight = part.and_then(|(weight, own)| Some((names::family_name(architecture, weight)?, own)));
        let Some((weight, own)) = weight else {
            return Err(refused(format!(
                "its tensor {found} is no low-rank part of a layer that is known"
            )));
        };
        let module = weight.strip_suffix(".weight").unwrap_or(&weight);
        let order = match own {
            UP if architecture.interleaves() => row_order(module, base),
            _ => RowOrder::Plain,
        };
        tensors.push((format!("{module}{own}"), stored.clone(), order));
    }
    let mut weights = Checkpoint::default();
    weights.add_file(path.to_owned(), file, tensors)?;
    Ok(AdapterFiles {
        path: path.to_owned(),
        weights,
        settings: XxHash3_128::oneshot(&alpha.to_le_bytes()),
        // As in llama.cpp, an alpha of zero means no division.
        scale: Box::new(move |_, rank| {
            Ok(if alpha == 0.0 {
                1.0
            } else {
                (alpha / rank as f64) as f32
            })
        }),
        is_gguf: true,
    })
}

/// Rows of queries and keys are stored in adjacent pairs, as in the model's own files.
fn row_order(module: &str, base: &Base<'_>) -> RowOrder {
    let layer = module
        .strip_prefix("model.layers.")
        .and_then(|below| below.split('.').next()?.parse().ok());
    let Some(layer) = layer.filter(|layer| *layer < base.config.layers) else {
        return RowOrder::Plain;
    };
    let shape = base.config.attention_of(layer);
    if module.ends_with(".self_attn.q_proj") {
        RowOrder::Interleaved { heads: shape.heads }
    } else if module.ends_with(".self_attn.k_proj") {
        RowOrder::Interleaved { heads: shape.kv_heads }
    } else {
        RowOrder::Plain
    }
}
