//! Reads settings of a JSON object by name; errors give file, setting and remedy.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_files::FileError;
use serde_json::{Map, Value};

use crate::ModelError;
use crate::python_json::without_python_numbers;

/// Largest plausible epsilon of a norm. Models have 1e-12 to 1e-5.
const LARGEST_EPSILON: f64 = 1e-2;

/// Largest plausible size; a file with a larger one is hostile or damaged.
const LARGEST_SIZE: u64 = 1 << 31;

/// Largest tokenizer file; the largest known takes a quarter.
pub(crate) const LARGEST_TOKENIZER_BYTES: u64 = 128 << 20;

/// Largest text files of a model, several times the largest known. Parsed JSON takes up to 40 times as much memory.
const LARGEST_BYTES: &[(&str, u64)] = &[
    ("config.json", 1 << 20),
    ("generation_config.json", 1 << 20),
    ("tokenizer_config.json", 8 << 20),
    ("chat_template.jinja", 4 << 20),
    ("model.safetensors.index.json", 16 << 20),
    ("added_tokens.json", 8 << 20),
    ("tokenizer.json", LARGEST_TOKENIZER_BYTES),
    ("tokenizer.model", LARGEST_TOKENIZER_BYTES),
    ("tekken.json", LARGEST_TOKENIZER_BYTES),
];

/// Reads a complete text file of a model, if it is a regular file of plausible length; a missing file is `None`.
pub(crate) fn read_text_file(path: &Path) -> Result<Option<Vec<u8>>, ModelError> {
    let known = |(name, _): &&(&str, u64)| path.file_name().is_some_and(|found| found == *name);
    let limit_bytes = LARGEST_BYTES.iter().find(known).map_or(1 << 20, |(_, limit)| *limit);
    match riffle_files::read(path, limit_bytes) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(FileError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ModelError::file(path, error)),
    }
}

/// Reads a complete JSON file; a missing file is `None`.
pub(crate) fn read_json(path: &Path) -> Result<Option<Value>, ModelError> {
    let Some(bytes) = read_text_file(path)? else {
        return Ok(None);
    };
    let parsed = serde_json::from_slice(&bytes).or_else(|error| match without_python_numbers(&bytes) {
        Some(replaced) => serde_json::from_slice(&replaced),
        None => Err(error),
    });
    parsed.map(Some).map_err(|error| ModelError::Json {
        path: path.to_owned(),
        problem: error.to_string(),
    })
}

/// A settings object and its source: config.json, with the nested settings of a text model.
///
/// Settings are read by name. Errors name the file, the setting and the fault; an explicit null counts as absent.
#[derive(Debug, Clone)]
pub struct Fields {
    path: PathBuf,
    prefix: String,
    values: Map<String, Value>,
    /// The file's names for settings, if they differ from the names used here.
    source_names: Arc<HashMap<String, String>>,
}

impl Fields {
    pub(crate) fn new(path: &Path, value: Value) -> Result<Fields, ModelError> {
        match value {
            Value::Object(values) => Ok(Fields {
                path: path.to_owned(),
                prefix: String::new(),
                values,
                source_names: Arc::default(),
            }),
            _ => Err(ModelError::Json {
                path: path.to_owned(),
                problem: "the top level must be an object".into(),
            }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The value under `name`; an explicit null counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// Adds `value` for a setting that is missing; an explicit null stays.
    pub fn with_default(&self, name: &str, value: impl Into<Value>) -> Fields {
        let mut fields = self.clone();
        if !self.values.contains_key(name) {
            fields.values.insert(name.to_owned(), value.into());
        }
        fields
    }

    /// Replaces the value of `name`.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Fields {
        self.values.insert(name.to_owned(), value.into());
        self
    }

    /// Keeps only these settings.
    pub(crate) fn with_only(mut self, names: &[&str]) -> Fields {
        self.values.retain(|name, _| names.contains(&name.as_str()));
        self
    }

    /// Removes the setting `name`.
    pub(crate) fn without(mut self, name: &str) -> Fields {
        self.values.remove(name);
        self
    }

    /// Sets the file's names for settings, for errors.
    pub(crate) fn with_source_names<'a>(mut self, names: impl Iterator<Item = (&'a str, String)>) -> Fields {
        self.source_names = Arc::new(names.map(|(setting, name)| (setting.to_owned(), name)).collect());
        self
    }

    /// Every setting by its name.
    pub(crate) fn values(&self) -> Map<String, Value> {
        self.values.clone()
    }

    /// The settings of a text model, which multimodal models nest in `text_config`.
    pub(crate) fn of_text_model(self) -> Result<Fields, ModelError> {
        let Some(text) = self.object("text_config")? else {
            return Ok(self);
        };
        let mut fields = self;
        for (name, value) in text.values {
            let stays =
                ["architectures", "tie_word_embeddings"].contains(&name.as_str()) && fields.get(&name).is_some();
            let is_said = fields.values.contains_key(&name);
            if !(stays || is_said && value.is_null()) {
                fields.values.insert(name, value);
            }
        }
        Ok(fields)
    }

    /// An error about setting `name`.
    pub fn error(&self, name: &str, problem: impl Into<String>) -> ModelError {
        let field = format!("{}{name}", self.prefix);
        ModelError::Config {
            path: self.path.clone(),
            field: match self.source_names.get(&field) {
                Some(source_name) => format!("{source_name} ({field})"),
                None => field,
            },
            problem: problem.into(),
        }
    }

    /// The object `name`; its errors give the full path to a setting.
    pub fn object(&self, name: &str) -> Result<Option<Fields>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(values)) => Ok(Some(Fields {
                path: self.path.clone(),
                prefix: format!("{}{name}.", self.prefix),
                values: values.clone(),
                source_names: Arc::clone(&self.source_names),
            })),
            Some(other) => Err(self.error(name, format!("must be an object, found {}", show(other)))),
        }
    }

    /// A positive integer of plausible size.
    pub fn optional_size(&self, name: &str) -> Result<Option<usize>, ModelError> {
        self.whole(name, 1)
    }

    /// An integer of plausible size, or zero.
    pub fn optional_count(&self, name: &str) -> Result<Option<usize>, ModelError> {
        self.whole(name, 0)
    }

    fn whole(&self, name: &str, least: u64) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = value.as_u64().or_else(|| {
            let whole = |number: &f64| number.fract() == 0.0 && *number >= 0.0;
            value.as_f64().filter(whole).map(|number| number as u64)
        });
        match number {
            Some(number) if (least..=LARGEST_SIZE).contains(&number) => Ok(Some(number as usize)),
            _ => Err(self.error(
                name,
                format!(
                    "must be a whole number from {least} to {LARGEST_SIZE}, found {}",
                    show(value)
                ),
            )),
        }
    }

    /// A required positive integer.
    pub fn size(&self, name: &str) -> Result<usize, ModelError> {
        self.optional_size(name)?
            .ok_or_else(|| self.error(name, "is missing; the model cannot be built without it"))
    }

    /// A finite number.
    pub fn optional_number(&self, name: &str) -> Result<Option<f64>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.error(name, format!("must be a number, found {}", show(value)))),
            },
        }
    }

    /// A number above zero.
    pub fn optional_positive(&self, name: &str) -> Result<Option<f64>, ModelError> {
        match self.optional_number(name)? {
            Some(number) if number <= 0.0 => Err(self.error(name, format!("must be above 0, found {number}"))),
            other => Ok(other),
        }
    }

    /// A norm's epsilon.
    pub fn optional_epsilon(&self, name: &str) -> Result<Option<f64>, ModelError> {
        match self.optional_positive(name)? {
            Some(found) if found > LARGEST_EPSILON => Err(self.error(
                name,
                format!(
                    "must be at most {LARGEST_EPSILON}, found {found:?}: a norm adds it to the mean square of its input"
                ),
            )),
            other => Ok(other),
        }
    }

    /// A number from `range`.
    pub fn optional_within(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ModelError> {
        match self.optional_number(name)? {
            Some(number) if !range.contains(&number) => {
                let (least, most) = (range.start(), range.end());
                Err(self.error(
                    name,
                    format!("must be a number from {least} to {most}, found {number:?}"),
                ))
            }
            other => Ok(other),
        }
    }

    /// A required number above zero.
    pub fn positive(&self, name: &str) -> Result<f64, ModelError> {
        self.optional_positive(name)?
            .ok_or_else(|| self.error(name, "is missing; the model cannot be built without it"))
    }

    /// True or false.
    pub fn optional_flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.error(name, format!("must be true or false, found {}", show(other)))),
        }
    }

    /// True or false; `default` if absent.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, ModelError> {
        Ok(self.optional_flag(name)?.unwrap_or(default))
    }

    /// A string.
    pub fn text(&self, name: &str) -> Result<Option<&str>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(name, format!("must be a string, found {}", show(other)))),
        }
    }

    /// A list of strings; empty if absent.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, ModelError> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| match item {
                    Value::String(text) => Ok(text.clone()),
                    other => Err(self.error(name, format!("must hold strings, found {}", show(other)))),
                })
                .collect(),
            Some(other) => Err(self.error(name, format!("must be a list, found {}", show(other)))),
        }
    }

    /// A list of numbers above zero; `None` if absent.
    pub(crate) fn positive_numbers(&self, name: &str) -> Result<Option<Vec<f64>>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| match item.as_f64().filter(|n| n.is_finite() && *n > 0.0) {
                    Some(number) => Ok(number),
                    None => Err(self.error(name, format!("must hold numbers above 0, found {}", show(item)))),
                })
                .collect::<Result<_, _>>()
                .map(Some),
            Some(other) => Err(self.error(name, format!("must be a list, found {}", show(other)))),
        }
    }

    /// One token id, or a list with one.
    pub(crate) fn optional_token_id(&self, name: &str) -> Result<Option<u32>, ModelError> {
        match self.token_ids(name)?.as_slice() {
            [] => Ok(None),
            [id] => Ok(Some(*id)),
            several => Err(self.error(name, format!("must be one token id, found {} of them", several.len()))),
        }
    }

    /// One token id or a list; empty if absent.
    pub(crate) fn token_ids(&self, name: &str) -> Result<Vec<u32>, ModelError> {
        let items = match self.get(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        items
            .iter()
            .map(|item| {
                item.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                    self.error(
                        name,
                        format!("must be a token id or a list of them, found {}", show(item)),
                    )
                })
            })
            .collect()
    }
}

/// A value for an error: complete if short, otherwise its start.
pub(crate) fn show(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 {
        text
    } else {
        text.chars().take(57).chain("...".chars()).collect()
    }
}
