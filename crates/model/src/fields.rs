//! Settings of a JSON object, read by name with errors that name file, setting and remedy.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::ModelError;

/// No single size of a model is larger: beyond it a file is hostile or damaged.
const LARGEST_SIZE: u64 = 1 << 31;

/// No text file of a model is longer; the largest tokenizers take an eighth.
const LARGEST_TEXT_BYTES: u64 = 256 << 20;

/// Reads a text file of a model whole, if it is of plausible length; a missing file is `None`.
pub(crate) fn read_text_file(path: &Path) -> Result<Option<Vec<u8>>, ModelError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(LARGEST_TEXT_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LARGEST_TEXT_BYTES {
            let reason = format!("it has more than {LARGEST_TEXT_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ModelError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Reads a JSON file whole; a missing file is `None`.
pub(crate) fn read_json(path: &Path) -> Result<Option<Value>, ModelError> {
    let Some(bytes) = read_text_file(path)? else {
        return Ok(None);
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| ModelError::Json {
            path: path.to_owned(),
            problem: error.to_string(),
        })
}

/// An object of settings and where it was read from.
#[derive(Debug, Clone)]
pub(crate) struct Fields {
    path: PathBuf,
    prefix: String,
    values: Map<String, Value>,
}

impl Fields {
    pub(crate) fn new(path: &Path, value: Value) -> Result<Fields, ModelError> {
        match value {
            Value::Object(values) => Ok(Fields {
                path: path.to_owned(),
                prefix: String::new(),
                values,
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

    /// The same settings with `value` for a setting that does not occur; an explicit null stays.
    pub(crate) fn with_default(&self, name: &str, value: impl Into<Value>) -> Fields {
        let mut fields = self.clone();
        if !self.values.contains_key(name) {
            fields.values.insert(name.to_owned(), value.into());
        }
        fields
    }

    /// The same settings with `value` in place of what stood under `name`.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Fields {
        self.values.insert(name.to_owned(), value.into());
        self
    }

    /// Every setting by its name.
    pub(crate) fn values(&self) -> Map<String, Value> {
        self.values.clone()
    }

    /// The settings of a text model, which multi-modal models nest in `text_config`.
    pub(crate) fn of_text_model(self) -> Result<Fields, ModelError> {
        let Some(text) = self.object("text_config")? else {
            return Ok(self);
        };
        let mut fields = self;
        for (name, value) in text.values {
            let stays =
                ["architectures", "tie_word_embeddings"].contains(&name.as_str()) && fields.get(&name).is_some();
            if !stays && !value.is_null() {
                fields.values.insert(name, value);
            }
        }
        Ok(fields)
    }

    /// An error about setting `name`.
    pub(crate) fn error(&self, name: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Config {
            path: self.path.clone(),
            field: format!("{}{name}", self.prefix),
            problem: problem.into(),
        }
    }

    /// The object under `name`, with errors that name the whole way to a setting.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(values)) => Ok(Some(Fields {
                path: self.path.clone(),
                prefix: format!("{}{name}.", self.prefix),
                values: values.clone(),
            })),
            Some(other) => Err(self.error(name, format!("must be an object, found {}", show(other)))),
        }
    }

    /// A positive whole number of plausible size.
    pub(crate) fn optional_size(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = value.as_u64().or_else(|| {
            value
                .as_f64()
                .filter(|f| f.fract() == 0.0 && *f > 0.0)
                .map(|f| f as u64)
        });
        match number {
            Some(number) if (1..=LARGEST_SIZE).contains(&number) => Ok(Some(number as usize)),
            _ => Err(self.error(
                name,
                format!("must be a whole number from 1 to {LARGEST_SIZE}, found {}", show(value)),
            )),
        }
    }

    pub(crate) fn size(&self, name: &str) -> Result<usize, ModelError> {
        self.optional_size(name)?
            .ok_or_else(|| self.error(name, "is missing; the model cannot be built without it"))
    }

    pub(crate) fn optional_number(&self, name: &str) -> Result<Option<f64>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.error(name, format!("must be a number, found {}", show(value)))),
            },
        }
    }

    pub(crate) fn number(&self, name: &str) -> Result<f64, ModelError> {
        self.optional_number(name)?
            .ok_or_else(|| self.error(name, "is missing; the model cannot be built without it"))
    }

    /// A number that must be above zero.
    pub(crate) fn optional_positive(&self, name: &str) -> Result<Option<f64>, ModelError> {
        match self.optional_number(name)? {
            Some(number) if number <= 0.0 => Err(self.error(name, format!("must be above 0, found {number}"))),
            other => Ok(other),
        }
    }

    pub(crate) fn positive(&self, name: &str) -> Result<f64, ModelError> {
        self.number(name)?;
        Ok(self.optional_positive(name)?.unwrap_or_default())
    }

    pub(crate) fn optional_flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.error(name, format!("must be true or false, found {}", show(other)))),
        }
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, ModelError> {
        Ok(self.optional_flag(name)?.unwrap_or(default))
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(name, format!("must be a string, found {}", show(other)))),
        }
    }

    /// A list of strings; absent is empty.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, ModelError> {
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

    /// A list of numbers above zero; absent is `None`.
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

    /// One token id or a list of them; absent is empty.
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

/// A value as an error shows it: whole when short, else its beginning.
fn show(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 {
        text
    } else {
        text.chars().take(57).chain("...".chars()).collect()
    }
}
