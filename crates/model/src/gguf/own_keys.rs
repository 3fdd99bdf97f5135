//! The metadata of a file's architecture, by keys without its name.

use serde_json::{Map, Value, json};

use super::header::{Header, Metadata};
use super::list::List;
use crate::ModelError;

/// Sizes that files with several kinds of layers list per layer, with zero for layers without.
const LISTED: &[&str] = &["attention.head_count_kv", "feed_forward_length"];

/// The only size in a list other than zero.
pub(super) fn largest(list: &List<'_>) -> Result<u64, String> {
    let mut largest = 0;
    for value in list.values() {
        let size = match value? {
            Metadata::Integer(size) => u64::try_from(size).map_err(|_| format!("lists {size}"))?,
            other => return Err(format!("must list whole numbers, found {}", other.show())),
        };
        if largest > 0 && size > 0 && size != largest {
            return Err(format!(
                "lists {largest} and {size}; layers of two sizes are not supported"
            ));
        }
        largest = largest.max(size);
    }
    Ok(largest)
}

/// The metadata of a file's architecture.
pub(super) struct OwnKeys<'a> {
    pub(super) header: &'a Header<'a>,
    pub(super) prefix: &'static str,
}

impl OwnKeys<'_> {
    /// A key's full name.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// A value as JSON.
    pub(super) fn json(&self, key: &str) -> Result<Option<Value>, ModelError> {
        let value = self.header.metadata.get(&self.name(key));
        value.map(|value| self.to_json(key, value)).transpose()
    }

    /// A list, without which the model cannot be built.
    pub(super) fn required_list(&self, key: &str) -> Result<List<'_>, ModelError> {
        self.header.list(&self.name(key))?.ok_or_else(|| self.missing(key))
    }

    /// Adds the settings of keys without which the model cannot be built.
    pub(super) fn insert_required(
        &self,
        names: &[(&str, &str)],
        settings: &mut Map<String, Value>,
    ) -> Result<(), ModelError> {
        for (key, setting) in names {
            let value = self.json(key)?.ok_or_else(|| self.missing(key))?;
            settings.insert((*setting).into(), value);
        }
        Ok(())
    }

    /// An error about a required key.
    pub(super) fn missing(&self, key: &str) -> ModelError {
        self.error(key, "is missing; the model cannot be built without it")
    }

    /// A value in the file's encoding.
    pub(super) fn metadata(&self, key: &str) -> Option<&Metadata<'_>> {
        self.header.metadata.get(&self.name(key))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        Ok(self.json(key)?.and_then(|value| value.as_f64()))
    }

    /// A factor. Zero means none.
    pub(super) fn factor(&self, key: &str) -> Result<Option<f64>, ModelError> {
        Ok(self.number(key)?.filter(|factor| *factor != 0.0))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.header.text(&self.name(key))
    }

    /// An error about a key.
    pub(super) fn error(&self, key: &str, problem: impl Into<String>) -> ModelError {
        self.header.error(&self.name(key), problem)
    }

    fn to_json(&self, key: &str, value: &Metadata<'_>) -> Result<Value, ModelError> {
        Ok(match value {
            Metadata::Integer(number) => match u64::try_from(*number) {
                Ok(number) => number.into(),
                Err(_) => json!(*number as f64),
            },
            Metadata::Float(number) if number.is_finite() => json!(number),
            Metadata::Flag(flag) => (*flag).into(),
            Metadata::Text(text) => (*text).into(),
            Metadata::List(list) if LISTED.contains(&key) => {
                largest(list).map_err(|problem| self.error(key, problem))?.into()
            }
            other => return Err(self.error(key, format!("must be one finite value, found {}", other.show()))),
        })
    }
}
