//! Hugging Face folders as GGUF, with the names, settings and tensors of llama.cpp's converter.

mod tokens;

use std::path::Path;

use riffle_linear::WeightFormat;
use serde_json::Value;

use super::architecture::{Architecture, written_architecture, written_classes};
use super::names::stored_name;
use super::settings::written_settings;
use super::source::{Change, Origin, SourceTensor, WeightSource};
use super::writer::GgufEntry;
use crate::fields::Fields;
use crate::load::Parts;
use crate::weights::{TensorInfo, TensorType};
use crate::{LoadOptions, ModelError, directory};

/// Suffix of tensor names that follow from the settings.
const DERIVED: &str = ".rotary_emb.inv_freq";
/// The file kind of a complete model.
const FILE_KIND: &str = "model";

/// Opens a folder in the form of its GGUF file.
pub(super) fn open(path: &Path) -> Result<WeightSource, ModelError> {
    let parts = directory::open(path, &LoadOptions::default())?;
    let architecture = architecture(&parts.fields)?;
    let mut metadata = vec![
        GgufEntry::text("general.architecture", architecture.prefix()),
        GgufEntry::text("general.type", FILE_KIND),
        GgufEntry::text("general.name", &name_of(path)),
    ];
    metadata.extend(settings(architecture, &parts)?);
    let (rotation, mut tensors) = rotation(architecture, &parts)?;
    metadata.extend(rotation);
    metadata.extend(tokens::entries(path, architecture, &parts, &metadata)?);
    tensors.extend(stored_tensors(architecture, &parts)?);
    Ok(WeightSource {
        metadata,
        tensors,
        weights: parts.weights,
    })
}

/// The GGUF architecture for a folder with these settings.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`].
pub(super) fn architecture(fields: &Fields) -> Result<Architecture, ModelError> {
    let class = fields.texts("architectures")?.into_iter().next().unwrap_or_default();
    written_architecture(&class).ok_or_else(|| ModelError::UnknownArchitecture {
        found: format!("{class} as GGUF"),
        known: written_classes(),
    })
}

/// The folder's name.
fn name_of(path: &Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Sizes and constants of the architecture.
fn settings(architecture: Architecture, parts: &Parts) -> Result<Vec<GgufEntry>, ModelError> {
    let (fields, config) = (&parts.fields, &parts.config);
    let prefix = architecture.prefix();
    let key = |key: &str| format!("{prefix}.{key}");
    let mut entries: Vec<GgufEntry> = Vec::new();
    for (name, setting) in written_settings() {
        let is_there = entries.iter().any(|entry: &GgufEntry| *entry.key() == key(name));
        match fields.get(setting) {
            Some(Value::Number(number)) if !is_there => entries.push(match number.as_u64() {
                Some(count) if !is_fraction(name) => count_entry(fields, setting, key(name), count)?,
                _ => GgufEntry::number(key(name), number.as_f64().unwrap_or_default() as f32),
            }),
            _ => {}
        }
    }
    let shape = config.attention_of(0);
    for (name, count) in [
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.key_width),
        ("attention.value_length", shape.value_width),
        ("vocab_size", config.vocab_size),
    ] {
        if !entries.iter().any(|entry| *entry.key() == key(name)) {
            entries.push(count_entry(fields, name, key(name), count as u64)?);
        }
    }
    window(architecture, parts, &mut entries)?;
    Ok(entries)
}

/// True for keys with float values, even for integers.
fn is_fraction(key: &str) -> bool {
    key.ends_with("epsilon") || key.ends_with("softcapping")
}

fn count_entry(fields: &Fields, setting: &str, key: String, count: u64) -> Result<GgufEntry, ModelError> {
    let count = u32::try_from(count).map_err(|_| fields.error(setting, "is too large for a GGUF file"))?;
    Ok(GgufEntry::count(key, count))
}

/// The window of layers.
fn window(architecture: Architecture, parts: &Parts, entries: &mut Vec<GgufEntry>) -> Result<(), ModelError> {
    let config = &parts.config;
    let windows: Vec<Option<usize>> = (0..config.layers)
        .map(|layer| config.windows.get(layer).copied().flatten())
        .collect();
    let key = format!("{}.attention.sliding_window", architecture.prefix());
    let Some(window) = windows.iter().flatten().next() else {
        // Without the key, files of these architectures have a window.
        if matches!(architecture, Architecture::Gemma2 | Architecture::Phi3) {
            entries.push(GgufEntry::count(key, 0));
        }
        return Ok(());
    };
    let refused = || {
        parts.fields.error(
            "sliding_window",
            "has no form in GGUF for this architecture with these layers",
        )
    };
    let expected: Vec<bool> = match architecture {
        Architecture::Phi3 => vec![true; config.layers],
        Architecture::Gemma2 => (0..config.layers).map(|layer| layer % 2 == 0).collect(),
        Architecture::Gemma3 => (0..config.layers).map(|layer| layer % 6 != 5).collect(),
        _ => return Err(refused()),
    };
    if windows.iter().map(Option::is_some).ne(expected.iter().copied()) {
        return Err(refused());
    }
    entries.push(count_entry(&parts.fields, "sliding_window", key, *window as u64)?);
    Ok(())
}

/// Entries of the metadata, and tensors.
type Stored = (Vec<GgufEntry>, Vec<SourceTensor>);

/// The settings of a rotation, in both forms of config.json.
struct RotationSettings<'a> {
    fields: &'a Fields,
    /// `rope_parameters`, for full attention if layers differ, or `rope_scaling`.
    rope: Option<Fields>,
    prefix: &'static str,
}

impl RotationSettings<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn number(&self, name: &str) -> Result<Option<f64>, ModelError> {
        let rope = self.rope.as_ref();
        rope.map_or(Ok(None), |rope| rope.optional_number(name))
    }

    /// A number of the rotation's settings, or of all settings.
    fn number_of_either(&self, name: &str) -> Result<Option<f64>, ModelError> {
        Ok(self.number(name)?.or(self.fields.optional_number(name)?))
    }

    fn needed(&self, name: &str) -> Result<f64, ModelError> {
        self.number_of_either(name)?.ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> ModelError {
        self.fields.error(name, "is missing")
    }

    fn kind(&self) -> String {
        let text = |name: &str| {
            self.rope
                .as_ref()
                .and_then(|rope| rope.get(name)?.as_str().map(str::to_owned))
        };
        text("rope_type")
            .or_else(|| text("type"))
            .unwrap_or_else(|| "default".to_owned())
    }

    /// Divided positions, and the settings that belong to them.
    fn divided(&self, kind: &str, settings: &[(&str, &str)]) -> Result<Vec<GgufEntry>, ModelError> {
        let mut entries = vec![GgufEntry::text(self.key("rope.scaling.type"), kind)];
        for (key, setting) in [("rope.scaling.factor", "factor")].iter().chain(settings) {
            if let Some(value) = self.number(setting)? {
                entries.push(GgufEntry::number(self.key(key), value as f32));
            }
        }
        Ok(entries)
    }

    /// The length before scaling.
    fn original_length(&self, length: f64) -> GgufEntry {
        GgufEntry::count(self.key("rope.scaling.original_context_length"), length as u32)
    }

    /// LongRoPE: divisors of angles for short and for long texts, and a factor on queries and keys.
    fn longrope(&self) -> Result<Stored, ModelError> {
        let original = self.needed("original_max_position_embeddings")?;
        let mut tensors = Vec::new();
        for (name, setting) in [
            ("rope_factors_long.weight", "long_factor"),
            ("rope_factors_short.weight", "short_factor"),
        ] {
            let factors = self
                .rope
                .as_ref()
                .map_or(Ok(None), |rope| rope.positive_numbers(setting))?;
            let factors = factors.ok_or_else(|| self.missing(setting))?;
            tensors.push(made(name, factors.into_iter().map(|factor| factor as f32).collect()));
        }
        let stretch = self.fields.size("max_position_embeddings")? as f64 / original;
        let usual = if stretch <= 1.0 {
            1.0
        } else {
            (1.0 + stretch.ln() / original.ln()).sqrt()
        };
        let attention = self.number("attention_factor")?.unwrap_or(usual);
        let factor = GgufEntry::number(self.key("rope.scaling.attn_factor"), attention as f32);
        Ok((vec![self.original_length(original), factor], tensors))
    }
}

/// The rotation's settings, and tensors of factors.
fn rotation(architecture: Architecture, parts: &Parts) -> Result<Stored, ModelError> {
    let fields = &parts.fields;
    let (rope, local) = match fields.object("rope_parameters")? {
        Some(new) if new.get("full_attention").is_some() => {
            (new.object("full_attention")?, new.object("sliding_attention")?)
        }
        Some(new) => (Some(new), None),
        None => (fields.object("rope_scaling")?, None),
    };
    let settings = RotationSettings {
        fields,
        rope,
        prefix: architecture.prefix(),
    };
    let width = parts.config.attention_of(0).key_width;
    let theta = settings.number_of_either("rope_theta")?.unwrap_or(10_000.0);
    let share = settings.number_of_either("partial_rotary_factor")?.unwrap_or(1.0);
    let mut entries = vec![
        GgufEntry::number(settings.key("rope.freq_base"), theta as f32),
        GgufEntry::count(settings.key("rope.dimension_count"), (width as f64 * share) as u32),
    ];
    let local = match &local {
        Some(local) => local.optional_number("rope_theta")?,
        None => fields.optional_number("rope_local_base_freq")?,
    };
    if let Some(local) = local.filter(|_| architecture == Architecture::Gemma3) {
        entries.push(GgufEntry::number(settings.key("rope.freq_base_swa"), local as f32));
    }
    let (more, tensors) = match settings.kind().as_str() {
        "default" => Stored::default(),
        "linear" => (settings.divided("linear", &[])?, Vec::new()),
        "yarn" => {
            let betas = [
                ("rope.scaling.yarn_beta_fast", "beta_fast"),
                ("rope.scaling.yarn_beta_slow", "beta_slow"),
            ];
            let mut entries = settings.divided("yarn", &betas)?;
            let original = settings.number_of_either("original_max_position_embeddings")?;
            entries.extend(original.map(|length| settings.original_length(length)));
            (entries, Vec::new())
        }
        "llama3" => {
            let names = [
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            ];
            let [factor, low, high, original] = names.map(|name| settings.needed(name));
            let factors = llama3_factors(width, theta, [factor?, low?, high?, original?]);
            (Vec::new(), vec![made("rope_freqs.weight", factors)])
        }
        "longrope" | "su" => settings.longrope()?,
        other => return Err(fields.error("rope_type", format!("{other:?} has no form in GGUF"))),
    };
    entries.extend(more);
    Ok((entries, tensors))
}

/// Frequency divisors of Llama 3.1: high frequencies are unchanged, low ones are divided, with a smooth transition.
fn llama3_factors(width: usize, theta: f64, [factor, low, high, original]: [f64; 4]) -> Vec<f32> {
    let divisor = |pair: usize| {
        let wavelength = 2.0 * std::f64::consts::PI * theta.powf(2.0 * pair as f64 / width as f64);
        if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..width / 2).map(|pair| divisor(pair) as f32).collect()
}

fn made(name: &str, values: Vec<f32>) -> SourceTensor {
    SourceTensor {
        info: TensorInfo {
            name: name.to_owned(),
            element_type: TensorType::Weights(WeightFormat::F32),
            shape: vec![values.len()],
            bytes: 4 * values.len() as u64,
        },
        origin: Origin::Made(values),
    }
}

/// The tensors of the folder: embedding, layers in order, last norm, output head.
fn stored_tensors(architecture: Architecture, parts: &Parts) -> Result<Vec<SourceTensor>, ModelError> {
    let (mut tensors, mut unknown) = (Vec::new(), Vec::new());
    let shape = parts.config.attention_of(0);
    let (heads, kv_heads) = (shape.heads, shape.kv_heads);
    for name in parts.weights.names() {
        let is_copy = parts.config.tied_embeddings
            && name == "lm_head.weight"
            && parts.weights.are_equal(["model.embed_tokens.weight", name])?;
        if name.ends_with(DERIVED) || is_copy {
            continue;
        }
        let (Some(stored), Some(info)) = (stored_name(architecture, name), parts.weights.info(name)) else {
            unknown.push(name.clone());
            continue;
        };
        let is_gemma = matches!(
            architecture,
            Architecture::Gemma | Architecture::Gemma2 | Architecture::Gemma3
        );
        let change = match () {
            () if architecture.interleaves() && stored.contains(".attn_q.") => Change::Interleave { heads },
            () if architecture.interleaves() && stored.contains(".attn_k.") => Change::Interleave { heads: kv_heads },
            () if is_gemma && name.ends_with("norm.weight") => Change::AddOne,
            () => Change::None,
        };
        let info = TensorInfo {
            name: stored,
            ..info.clone()
        };
        tensors.push(SourceTensor {
            info,
            origin: Origin::Stored(name.clone(), change),
        });
    }
    if !unknown.is_empty() {
        let count = unknown.len();
        unknown.truncate(3);
        return Err(ModelError::UnusedTensors {
            path: parts.fields.path().to_owned(),
            count,
            tensors: unknown,
        });
    }
    tensors.sort_by_key(|tensor| place(&tensor.info.name));
    Ok(tensors)
}

/// The sort key of a tensor in the file.
fn place(name: &str) -> (usize, usize, String) {
    let layer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.')?.0.parse().ok());
    let group = match (layer, name) {
        (Some(_), _) => 1,
        (None, "token_embd.weight") => 0,
        (None, _) => 2,
    };
    (group, layer.unwrap_or(0), name.to_owned())
}
