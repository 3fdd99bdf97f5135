//! The settings of a rotation, as models' files state them.

use std::ops::RangeInclusive;

use crate::ModelError;
use crate::fields::Fields;

/// Plausible bases; models have 10,000 to 1e9.
const THETAS: RangeInclusive<f64> = 100.0..=1e12;
/// Plausible divisors of frequencies: 1 to a few hundred.
const STRETCHES: RangeInclusive<f64> = 1e-2..=1e5;
/// Plausible factors on cosines and sines: 1 to 1.5.
const MAGNITUDES: RangeInclusive<f64> = 1e-2..=1e2;

/// The settings of a rotation.
#[derive(Debug, Clone, PartialEq)]
pub struct RotarySettings {
    /// Leading dimensions of a head that rotate.
    pub dim: usize,
    pub(super) theta: f64,
    pub(super) scaling: Scaling,
}

/// Scaling of frequencies for contexts longer than in the first training.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scaling {
    None,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low_frequency: f64,
        high_frequency: f64,
        original_max_position: f64,
    },
    Yarn(Yarn),
    Long(Long),
    /// A divisor for each frequency, and a factor on cosines and sines.
    Factors(Vec<f64>, f64),
    /// Only the first pairs rotate, with the frequencies of a whole head.
    Proportional {
        factor: f64,
        turning: usize,
    },
}

/// LongRoPE: factors per pair, one set for short contexts and one for long ones.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Long {
    pub(super) short: Vec<f64>,
    pub(super) long: Vec<f64>,
    pub(super) attention_factor: f64,
    pub(super) original_max_position: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Yarn {
    pub(super) factor: f64,
    pub(super) attention_factor: f64,
    pub(super) beta_fast: f64,
    pub(super) beta_slow: f64,
    pub(super) original_max_position: f64,
    pub(super) truncate: bool,
}

impl RotarySettings {
    /// Reads `rope_parameters`, or the older `rope_theta`, `rope_scaling` and `partial_rotary_factor`.
    pub fn from_fields(fields: &Fields, head_dim: usize, max_position: usize) -> Result<RotarySettings, ModelError> {
        let empty = Fields::new(fields.path(), serde_json::Value::Object(Default::default()))?;
        let inner = match fields.object("rope_parameters")? {
            Some(parameters) => parameters,
            None => fields.object("rope_scaling")?.unwrap_or(empty),
        };
        let theta = match inner.optional_within("rope_theta", THETAS)? {
            Some(theta) => theta,
            None => fields.optional_within("rope_theta", THETAS)?.unwrap_or(10_000.0),
        };
        let kind = match inner.text("rope_type")? {
            Some(kind) => kind,
            None => inner.text("type")?.unwrap_or("default"),
        };
        let dim = match kind {
            "proportional" => head_dim,
            _ => turned_dimensions(fields, &inner, head_dim)?,
        };
        let original_max_position = || -> Result<f64, ModelError> {
            let size = match inner.optional_size("original_max_position_embeddings")? {
                Some(size) => size,
                None => fields
                    .optional_size("original_max_position_embeddings")?
                    .unwrap_or(max_position),
            };
            Ok(size as f64)
        };
        let scaling = match kind {
            // Sections of a position are equal in text.
            "default" | "mrope" => Scaling::None,
            "linear" => Scaling::Linear {
                factor: stretch(&inner)?,
            },
            "proportional" => proportional(&inner, head_dim)?,
            "llama3" => llama3(&inner, original_max_position()?)?,
            // Early Phi-3 files call LongRoPE su or yarn.
            "longrope" | "su" | "yarn" if inner.get("short_factor").is_some() => {
                Scaling::Long(long(&inner, dim, max_position, original_max_position()?)?)
            }
            // GGUF's spelling of a scaling without a name.
            "factors" => Scaling::Factors(
                factors(&inner, "factors", dim)?,
                inner.optional_within("attention_factor", MAGNITUDES)?.unwrap_or(1.0),
            ),
            "yarn" => Scaling::Yarn(yarn(&inner, max_position, original_max_position()?)?),
            "dynamic" => {
                return Err(inner.error(
                    "rope_type",
                    "\"dynamic\" is not supported: it turns keys otherwise for every length of the text, so keys that are kept would not go together; use \"yarn\", or \"default\" for texts within max_position_embeddings",
                ));
            }
            other => {
                return Err(inner.error(
                    "rope_type",
                    format!("{other:?} is not supported; supported are default, linear, llama3, yarn, longrope, proportional"),
                ));
            }
        };
        Ok(RotarySettings { dim, theta, scaling })
    }
}

/// Number of leading dimensions of a head that rotate.
fn turned_dimensions(fields: &Fields, inner: &Fields, head_dim: usize) -> Result<usize, ModelError> {
    let partial = match inner.optional_positive("partial_rotary_factor")? {
        Some(partial) => partial,
        None => fields.optional_positive("partial_rotary_factor")?.unwrap_or(1.0),
    };
    // GGUF's spelling.
    let dim = match inner.optional_size("rotary_dim")? {
        Some(dim) => dim,
        None => (head_dim as f64 * partial) as usize,
    };
    if dim == 0 || dim > head_dim || !dim.is_multiple_of(2) {
        return Err(fields.error(
            "partial_rotary_factor",
            format!(
                "{partial} of head_dim {head_dim} turns {dim} dimensions; it must be an even number up to head_dim"
            ),
        ));
    }
    Ok(dim)
}

/// The scaling of a rotation of a part of each head.
fn proportional(inner: &Fields, head_dim: usize) -> Result<Scaling, ModelError> {
    let part = inner
        .optional_within("partial_rotary_factor", 0.0..=1.0)?
        .unwrap_or(1.0);
    Ok(Scaling::Proportional {
        factor: inner.optional_within("factor", STRETCHES)?.unwrap_or(1.0),
        turning: (part * head_dim as f64 / 2.0).floor() as usize,
    })
}

fn llama3(inner: &Fields, original_max_position: f64) -> Result<Scaling, ModelError> {
    let (low_frequency, high_frequency) = (inner.positive("low_freq_factor")?, inner.positive("high_freq_factor")?);
    if low_frequency >= high_frequency {
        return Err(inner.error(
            "high_freq_factor",
            format!("must be above low_freq_factor {low_frequency}, found {high_frequency}"),
        ));
    }
    Ok(Scaling::Llama3 {
        factor: stretch(inner)?,
        low_frequency,
        high_frequency,
        original_max_position,
    })
}

fn yarn(inner: &Fields, max_position: usize, original_max_position: f64) -> Result<Yarn, ModelError> {
    let factor = match inner.optional_within("factor", STRETCHES)? {
        Some(factor) => factor,
        None => max_position as f64 / original_max_position,
    };
    let magnitude = |weight: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * weight * factor.ln() + 1.0
        }
    };
    let attention_factor = match inner.optional_within("attention_factor", MAGNITUDES)? {
        Some(attention_factor) => attention_factor,
        None => match (
            inner.optional_number("mscale")?,
            inner.optional_number("mscale_all_dim")?,
        ) {
            (Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => magnitude(scale) / magnitude(all),
            _ => magnitude(1.0),
        },
    };
    Ok(Yarn {
        factor,
        attention_factor,
        beta_fast: inner.optional_positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: inner.optional_positive("beta_slow")?.unwrap_or(1.0),
        original_max_position,
        truncate: inner.flag("truncate", true)?,
    })
}

fn long(inner: &Fields, dim: usize, max_position: usize, original_max_position: f64) -> Result<Long, ModelError> {
    let factor = match inner.optional_within("factor", STRETCHES)? {
        Some(factor) => factor,
        None => max_position as f64 / original_max_position,
    };
    let attention_factor = match inner.optional_within("attention_factor", MAGNITUDES)? {
        Some(attention_factor) => attention_factor,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / original_max_position.ln()).sqrt(),
    };
    Ok(Long {
        short: plausible_factors(inner, "short_factor", dim)?,
        long: plausible_factors(inner, "long_factor", dim)?,
        attention_factor,
        original_max_position,
    })
}

/// The divisor of all frequencies, which is required.
fn stretch(inner: &Fields) -> Result<f64, ModelError> {
    let factor = inner.optional_within("factor", STRETCHES)?;
    factor.map_or_else(|| inner.positive("factor"), Ok)
}

/// One factor per pair, within plausible limits.
fn plausible_factors(inner: &Fields, name: &str, dim: usize) -> Result<Vec<f64>, ModelError> {
    let factors = factors(inner, name, dim)?;
    match factors.iter().find(|factor| !STRETCHES.contains(factor)) {
        None => Ok(factors),
        Some(found) => {
            let (least, most) = (STRETCHES.start(), STRETCHES.end());
            Err(inner.error(
                name,
                format!("must hold numbers from {least} to {most}, found {found:?}"),
            ))
        }
    }
}

/// One factor per pair.
fn factors(inner: &Fields, name: &str, dim: usize) -> Result<Vec<f64>, ModelError> {
    let factors = inner.positive_numbers(name)?.unwrap_or_default();
    if factors.len() == dim / 2 {
        return Ok(factors);
    }
    let problem = format!("must hold {} factors, found {}", dim / 2, factors.len());
    Err(inner.error(name, problem))
}
