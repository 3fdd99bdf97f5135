//! Types by name, and rules that give tensors types.

use std::str::FromStr;

use fancy_regex::Regex;
use riffle_linear::WeightFormat;

use crate::encode::encodable_formats;
use crate::{Mix, QuantizeError};

/// The type of one tensor by its name, such as `q6_k` or `F16`.
///
/// # Errors
/// [`QuantizeError::UnknownType`].
pub fn parse_type(name: &str) -> Result<WeightFormat, QuantizeError> {
    let mut formats = encodable_formats();
    formats
        .find(|format| format.name().eq_ignore_ascii_case(name))
        .ok_or_else(|| {
            let names: Vec<&str> = encodable_formats().map(WeightFormat::name).collect();
            QuantizeError::UnknownType {
                found: name.to_owned(),
                known: names.join(", "),
            }
        })
}

/// Gives a type to the tensors whose names match a pattern.
#[derive(Debug, Clone)]
pub struct TypeRule {
    pattern: Regex,
    text: String,
    format: WeightFormat,
}

impl TypeRule {
    /// The type, if the pattern matches the tensor's name.
    pub(crate) fn format_of(&self, name: &str) -> Option<WeightFormat> {
        // A pattern that takes too long does not match.
        self.pattern.is_match(name).unwrap_or(false).then_some(self.format)
    }

    /// The rule's own spelling.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for TypeRule {
    type Err = QuantizeError;

    fn from_str(rule: &str) -> Result<TypeRule, QuantizeError> {
        let wrong = |problem: String| QuantizeError::Rule {
            rule: rule.to_owned(),
            problem,
        };
        let (pattern, name) = rule.rsplit_once('=').ok_or_else(|| wrong("it has no =".to_owned()))?;
        if pattern.is_empty() {
            return Err(wrong("it has no pattern".to_owned()));
        }
        Ok(TypeRule {
            pattern: Regex::new(pattern).map_err(|error| wrong(error.to_string().replace('\n', " ")))?,
            text: rule.to_owned(),
            format: parse_type(name)?,
        })
    }
}

/// The error for a name that is neither a mix nor a type.
pub(crate) fn unknown_mix(found: &str) -> QuantizeError {
    let names: Vec<&str> = Mix::all().map(|mix| mix.name()).collect();
    QuantizeError::UnknownType {
        found: found.to_owned(),
        known: names.join(", "),
    }
}
