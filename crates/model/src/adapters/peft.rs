//! Adapters of PEFT: `adapter_config.json` and `adapter_model.safetensors`.

use std::path::Path;

use fancy_regex::Regex;
use twox_hash::XxHash3_128;

use super::{AdapterFiles, Base, DOWN, UP, unusable};
use crate::ModelError;
use crate::fields::{Fields, read_json, read_text_file};
use crate::place::ADAPTER_FILE;
use crate::weights::{Checkpoint, RowOrder, read_header, text_name};

const WEIGHTS: &str = "adapter_model.safetensors";
/// The prefix of all names.
const PREFIX: &str = "base_model.model.";

/// Unsupported settings that change the computation if they are true.
const FLAGS: [(&str, &str); 4] = [
    ("use_dora", "DoRA (use_dora)"),
    ("lora_bias", "biases of the low-rank parts (lora_bias)"),
    ("fan_in_fan_out", "weights that lie transposed (fan_in_fan_out)"),
    ("use_qalora", "QA-LoRA (use_qalora)"),
];
/// Unsupported settings that change the computation if they are not empty.
const LISTS: [(&str, &str); 4] = [
    ("modules_to_save", "whole modules (modules_to_save)"),
    (
        "trainable_token_indices",
        "tokens of their own (trainable_token_indices)",
    ),
    (
        "target_parameters",
        "parameters that are no linear layers (target_parameters)",
    ),
    (
        "alora_invocation_tokens",
        "activation by tokens (alora_invocation_tokens)",
    ),
];
/// Prefixes of initialisation methods that also changed the base model.
const CHANGED_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// Reads everything of an adapter except its weights' data.
pub(super) fn open(folder: &Path, base: &Base<'_>) -> Result<AdapterFiles, ModelError> {
    let path = folder.join(ADAPTER_FILE);
    let Some(value) = read_json(&path)? else {
        return Err(unusable(
            folder,
            format!("it holds no {ADAPTER_FILE}; give a folder as PEFT writes it, or a GGUF file of an adapter"),
        ));
    };
    let fields = Fields::new(&path, value)?;
    check(&fields, folder)?;
    let settings = XxHash3_128::oneshot(&read_text_file(&path)?.unwrap_or_default());
    let mut weights = Checkpoint::default();
    add_weights(&mut weights, folder, base)?;
    let scale = Scale::read(&fields)?;
    Ok(AdapterFiles {
        path: folder.to_owned(),
        weights,
        settings,
        scale: Box::new(move |module, rank| scale.of(module, rank)),
        is_gguf: false,
    })
}

/// Refuses unsupported settings, by name.
fn check(fields: &Fields, folder: &Path) -> Result<(), ModelError> {
    let refused = |what: &str| Err(unusable(folder, format!("it has {what}, which is not supported")));
    let kind = fields.text("peft_type")?.unwrap_or("LORA");
    if !kind.eq_ignore_ascii_case("LORA") {
        return Err(unusable(
            folder,
            format!("it is of the type {kind:?}; only LORA is supported"),
        ));
    }
    for (name, what) in FLAGS {
        if fields.flag(name, false)? {
            return refused(what);
        }
    }
    for (name, what) in LISTS {
        let is_empty = fields.get(name).is_none_or(|value| {
            value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty)
        });
        if !is_empty {
            return refused(what);
        }
    }
    match fields.text("bias")? {
        None | Some("none") => {}
        Some(bias) => return refused(&format!("biases of its own (bias is {bias:?})")),
    }
    if let Some(start) = fields.get("init_lora_weights").and_then(serde_json::Value::as_str) {
        let start = start.to_ascii_lowercase();
        if CHANGED_BASE.iter().any(|changed| start.starts_with(changed)) {
            return refused(&format!("a changed base model (init_lora_weights is {start:?})"));
        }
    }
    Ok(())
}

/// Adds the tensors under the family's names of their modules.
fn add_weights(weights: &mut Checkpoint, folder: &Path, base: &Base<'_>) -> Result<(), ModelError> {
    let path = folder.join(WEIGHTS);
    if !path.exists() {
        let pickle = folder.join("adapter_model.bin").exists();
        let pickle = if pickle {
            "; adapter_model.bin can run code and is not read"
        } else {
            ""
        };
        return Err(unusable(folder, format!("it holds no {WEIGHTS}{pickle}")));
    }
    let mut file = riffle_files::open(&path).map_err(|error| ModelError::file(&path, error))?;
    let mut named = Vec::new();
    for stored in read_header(&path, &mut file)? {
        let name = known(&stored.info.name, folder, base)?;
        named.push((name, stored, RowOrder::Plain));
    }
    weights.add_file(path, file, named)
}

/// The family's name of a tensor: `model.layers.0.self_attn.q_proj.lora_A`.
fn known(name: &str, folder: &Path, base: &Base<'_>) -> Result<String, ModelError> {
    let refused = |what: &str| {
        Err(unusable(
            folder,
            format!("it has {what} ({name}), which is not supported"),
        ))
    };
    let below = name.strip_prefix(PREFIX).unwrap_or(name);
    if below.contains(".lora_embedding_") {
        return refused("an adapter of an embedding");
    }
    if below.contains(".lora_magnitude_vector") {
        return refused("DoRA");
    }
    for end in [DOWN, UP] {
        if let Some(module) = below.strip_suffix(".weight").and_then(|below| below.strip_suffix(end)) {
            let weight = (base.known_name)(&text_name(&format!("{module}.weight")));
            return Ok(format!("{}{end}", weight.strip_suffix(".weight").unwrap_or(&weight)));
        }
    }
    refused("a tensor that is no low-rank part")
}

/// The factors of modules.
struct Scale {
    path: std::path::PathBuf,
    alpha: f64,
    /// Modules with their own alpha.
    patterns: Vec<(Regex, f64)>,
    by_square_root: bool,
}

impl Scale {
    fn read(fields: &Fields) -> Result<Self, ModelError> {
        const PATTERNS: &str = "alpha_pattern";
        let mut patterns = Vec::new();
        for (pattern, alpha) in fields
            .object(PATTERNS)?
            .map(|object| object.values())
            .unwrap_or_default()
        {
            let regex = Regex::new(&format!("^(?:.*\\.)?(?:{pattern})$"));
            let regex = regex.map_err(|_| fields.error(PATTERNS, format!("{pattern:?} is no pattern")))?;
            let alpha = alpha
                .as_f64()
                .ok_or_else(|| fields.error(PATTERNS, "must hold numbers"))?;
            patterns.push((regex, alpha));
        }
        Ok(Self {
            path: fields.path().to_owned(),
            alpha: fields.optional_number("lora_alpha")?.unwrap_or(8.0),
            patterns,
            by_square_root: fields.flag("use_rslora", false)?,
        })
    }

    /// alpha / rank, or alpha / √rank.
    fn of(&self, module: &str, rank: usize) -> Result<f32, ModelError> {
        let mut own = None;
        for (pattern, alpha) in &self.patterns {
            if !pattern.is_match(module).unwrap_or(false) {
                continue;
            }
            if own.is_some_and(|own| own != *alpha) {
                let problem = format!("several patterns of alpha_pattern hold for {module}, with other values");
                return Err(unusable(&self.path, problem));
            }
            own = Some(*alpha);
        }
        let rank = rank as f64;
        let divisor = if self.by_square_root { rank.sqrt() } else { rank };
        Ok((own.unwrap_or(self.alpha) / divisor) as f32)
    }
}
