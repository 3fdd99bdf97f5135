//! A scaling of positions that replaces the model's own.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

use crate::ModelError;
use crate::fields::Fields;

/// Largest plausible factor.
const LARGEST_FACTOR: f64 = 4096.0;

/// Extends a model beyond its trained context: `yarn:factor=4,original=32768`, `linear:factor=2`, `own:factor=8`.
///
/// ```
/// use riffle_model::{RopeMethod, RopeScaling};
///
/// let scaling: RopeScaling = "yarn:factor=4,original=32768".parse().unwrap();
/// assert_eq!(scaling.method, RopeMethod::Yarn);
/// assert_eq!(scaling.original_tokens, Some(32768));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeScaling {
    /// The change of angles.
    pub method: RopeMethod,
    /// Factor on the length of the context.
    pub factor: f64,
    /// Length of the first training in tokens; `None` uses the model's setting.
    pub original_tokens: Option<usize>,
}

/// The change of angles for a longer context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeMethod {
    /// YaRN, Peng et al. 2023, arXiv:2309.00071: slowly rotating pairs are scaled, fast ones stay.
    Yarn,
    /// Position interpolation, Chen et al. 2023, arXiv:2306.15595: every angle is divided by the factor.
    Linear,
    /// The model's own angles, at positions beyond its training.
    Own,
}

impl RopeMethod {
    /// The name in `rope_type` and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Yarn => "yarn",
            Self::Linear => "linear",
            Self::Own => "own",
        }
    }
}

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:factor={}", self.method.name(), self.factor)?;
        match self.original_tokens {
            Some(original) => write!(f, ",original={original}"),
            None => Ok(()),
        }
    }
}

impl FromStr for RopeScaling {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let error = |problem: String| ModelError::RopeScaling {
            text: text.to_owned(),
            problem,
        };
        let (method, parameters) = text.split_once(':').unwrap_or((text, ""));
        let methods = [RopeMethod::Yarn, RopeMethod::Linear, RopeMethod::Own];
        let Some(method) = methods
            .into_iter()
            .find(|known| known.name().eq_ignore_ascii_case(method))
        else {
            return Err(error(format!(
                "{method:?} is not a method; there are yarn, linear and own"
            )));
        };
        let (mut factor, mut original_tokens) = (None, None);
        for parameter in parameters.split(',').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("factor", value)) => {
                    let number = value.parse().ok();
                    factor = number.filter(|factor| (1.0..=LARGEST_FACTOR).contains(factor));
                    if factor.is_none() {
                        return Err(error(format!(
                            "factor={value} must be a number from 1 to {LARGEST_FACTOR}"
                        )));
                    }
                }
                Some(("original", value)) => {
                    original_tokens = value.parse().ok().filter(|tokens| *tokens > 0);
                    if original_tokens.is_none() {
                        return Err(error(format!("original={value} must be a number of tokens")));
                    }
                }
                _ => {
                    return Err(error(format!(
                        "{parameter:?} is not a parameter; there are factor=F and original=TOKENS"
                    )));
                }
            }
        }
        match factor {
            Some(factor) => Ok(Self {
                method,
                factor,
                original_tokens,
            }),
            None => Err(error(format!("a factor is missing: {}:factor=4", method.name()))),
        }
    }
}

impl RopeScaling {
    /// The settings of a model with `scaling`, if given, in place of its own.
    pub(crate) fn apply(scaling: Option<&Self>, fields: Fields) -> Result<Fields, ModelError> {
        match scaling {
            Some(scaling) => scaling.stretch(fields),
            None => Ok(fields),
        }
    }

    fn stretch(&self, fields: Fields) -> Result<Fields, ModelError> {
        let own = match fields.object("rope_parameters")? {
            Some(own) => Some(own),
            None => fields.object("rope_scaling")?,
        };
        let kinds = ["full_attention", "sliding_attention"];
        let several = own
            .as_ref()
            .is_some_and(|own| kinds.iter().any(|kind| own.get(kind).is_some()));
        if several || fields.get("rope_local_base_freq").is_some() {
            return Err(ModelError::RopeScaling {
                text: self.to_string(),
                problem: "the model's layers turn in two ways, and one stretching does not fit both".into(),
            });
        }
        let longest = fields.size("max_position_embeddings")?;
        let trained = own
            .as_ref()
            .map(|own| own.optional_size("original_max_position_embeddings"));
        let trained = match trained.transpose()?.flatten() {
            Some(trained) => Some(trained),
            None => fields.optional_size("original_max_position_embeddings")?,
        };
        let mut rotation = own.as_ref().map(Fields::values).unwrap_or_default();
        let original = match self.method {
            RopeMethod::Own => {
                // Some scalings depend on the longest context, which is about to change.
                if let (Some(trained), Some(own)) = (trained, &own)
                    && own.get("factor").is_none()
                {
                    rotation.insert("factor".into(), json!(longest as f64 / trained as f64));
                }
                self.original_tokens.unwrap_or(longest)
            }
            RopeMethod::Yarn | RopeMethod::Linear => {
                rotation
                    .retain(|name, _| ["rope_theta", "partial_rotary_factor", "rotary_dim"].contains(&name.as_str()));
                let original = self.original_tokens.or(trained).unwrap_or(longest);
                rotation.insert("rope_type".into(), self.method.name().into());
                rotation.insert("factor".into(), json!(self.factor));
                rotation.insert("original_max_position_embeddings".into(), original.into());
                original
            }
        };
        let stretched = (original as f64 * self.factor) as usize;
        let fields = fields.with("max_position_embeddings", stretched);
        if rotation.is_empty() {
            Ok(fields)
        } else {
            Ok(fields
                .with("rope_scaling", Value::Null)
                .with("rope_parameters", Value::Object(rotation)))
        }
    }
}
