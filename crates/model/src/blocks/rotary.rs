//! Rotary position embedding: pairs (i, i + dim/2) of a head rotate by position · frequency.

mod settings;
#[cfg(test)]
mod tests;

use std::f64::consts::PI;
use std::sync::atomic::{AtomicU64, Ordering};

use super::rows::for_rows;
use crate::Batch;
pub use settings::RotarySettings;
use settings::{Scaling, Yarn};

/// A rotation ready to be applied.
#[derive(Debug, Clone)]
pub struct Rotary {
    /// Identifies the rotation, so that its table is not used for another.
    id: u64,
    /// Radians per position, `[dim / 2]`.
    frequencies: Vec<f32>,
    /// The length beyond which other frequencies apply, and these frequencies.
    beyond: Option<(usize, Vec<f32>)>,
    /// Factor on cosine and sine.
    magnitude: f32,
    /// Factors on queries after the rotation.
    query_scale: QueryScale,
}

/// Factors on rotated queries.
#[derive(Debug, Clone, Default)]
struct QueryScale {
    /// `[head_dim]`, or empty.
    by_dimension: Vec<f32>,
    /// Queries at position p are multiplied by 1 + factor · ln(1 + ⌊(p + ahead) / period⌋).
    by_position: Option<QueryGrowth>,
}

/// Growth of queries with the logarithm of their position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct QueryGrowth {
    pub(crate) factor: f32,
    pub(crate) period: f32,
    /// Number added to positions.
    pub(crate) ahead: usize,
}

impl Rotary {
    /// The rotation that the settings describe.
    pub fn new(settings: &RotarySettings) -> Rotary {
        let pairs = settings.dim / 2;
        let base = (0..pairs).map(|pair| {
            let exponent = 2.0 * pair as f32 / settings.dim as f32;
            (1.0 / settings.theta.powf(f64::from(exponent)) as f32, pair)
        });
        let mut magnitude = 1.0;
        let mut beyond = None;
        let frequencies = match &settings.scaling {
            Scaling::None => base.map(|(frequency, _)| frequency).collect(),
            Scaling::Linear { factor } => base.map(|(frequency, _)| frequency / *factor as f32).collect(),
            Scaling::Llama3 {
                factor,
                low_frequency,
                high_frequency,
                original_max_position,
            } => base
                .map(|(frequency, _)| {
                    let exact = f64::from(frequency);
                    // Turns over the original context: pairs with few turns are scaled, those with many are kept.
                    let turns = original_max_position * exact / (2.0 * PI);
                    let kept = ((turns - low_frequency) / (high_frequency - low_frequency)).clamp(0.0, 1.0);
                    ((1.0 - kept) * exact / factor + kept * exact) as f32
                })
                .collect(),
            Scaling::Yarn(yarn) => {
                magnitude = yarn.attention_factor;
                let (low, high) = yarn_range(yarn, settings);
                base.map(|(frequency, pair)| {
                    let exact = f64::from(frequency);
                    let stretched = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    (stretched * exact / yarn.factor + (1.0 - stretched) * exact) as f32
                })
                .collect()
            }
            Scaling::Proportional { factor, turning } => {
                let turns = base.map(|(frequency, pair)| f32::from(pair < *turning) * frequency / *factor as f32);
                turns.collect()
            }
            Scaling::Factors(factors, own) => {
                magnitude = *own;
                base.zip(factors)
                    .map(|((frequency, _), factor)| (f64::from(frequency) / factor) as f32)
                    .collect()
            }
            Scaling::Long(settings) => {
                magnitude = settings.attention_factor;
                let base: Vec<f32> = base.map(|(frequency, _)| frequency).collect();
                beyond = Some((
                    settings.original_max_position as usize,
                    stretched(&base, &settings.long),
                ));
                stretched(&base, &settings.short)
            }
        };
        Rotary {
            id: next_id(),
            frequencies,
            beyond,
            magnitude: magnitude as f32,
            query_scale: QueryScale::default(),
        }
    }

    /// An identity rotation of `dim` dimensions, for layers whose keys have no positions.
    pub fn still(dim: usize) -> Rotary {
        Rotary {
            id: next_id(),
            frequencies: vec![0.0; dim / 2],
            beyond: None,
            magnitude: 1.0,
            query_scale: QueryScale::default(),
        }
    }

    /// The rotation by the opposite angles.
    pub(crate) fn reversed(&self) -> Rotary {
        let mut rotary = self.clone();
        rotary.id = next_id();
        let beyond = rotary.beyond.iter_mut().flat_map(|(_, frequencies)| frequencies);
        rotary
            .frequencies
            .iter_mut()
            .chain(beyond)
            .for_each(|frequency| *frequency = -*frequency);
        rotary
    }

    /// Removes and returns the factor on rotated values, for heads that are normalised after the rotation.
    pub(crate) fn take_magnitude(&mut self) -> f32 {
        self.id = next_id();
        std::mem::replace(&mut self.magnitude, 1.0)
    }

    /// The same rotation, with factors `[head_dim]` on every rotated query head.
    pub(crate) fn with_query_weights(&self, weights: Vec<f32>) -> Rotary {
        let mut rotary = self.clone();
        rotary.query_scale.by_dimension = weights;
        rotary
    }

    /// The same rotation, with queries that grow with the position.
    pub(crate) fn with_query_growth(&self, growth: QueryGrowth) -> Rotary {
        let mut rotary = self.clone();
        rotary.query_scale.by_position = Some(growth);
        rotary
    }

    /// True if rotated queries are multiplied by factors.
    pub(super) fn scales_queries(&self) -> bool {
        !self.query_scale.by_dimension.is_empty() || self.query_scale.by_position.is_some()
    }

    /// Multiplies the query heads of the token at `position`, `[heads, head_dim]`.
    pub(super) fn scale_query(&self, heads: &mut [f32], position: usize) {
        let scale = &self.query_scale;
        if !scale.by_dimension.is_empty() {
            for head in heads.chunks_exact_mut(scale.by_dimension.len()) {
                head.iter_mut()
                    .zip(&scale.by_dimension)
                    .for_each(|(query, weight)| *query *= weight);
            }
        }
        if let Some(growth) = scale.by_position {
            let periods = ((position + growth.ahead) as f32 / growth.period).floor();
            let factor = 1.0 + growth.factor * (1.0 + periods).ln();
            heads.iter_mut().for_each(|query| *query *= factor);
        }
    }

    /// Dimensions of a head that rotate: pairs (i, i + dim / 2).
    pub fn dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The cosines and sines of consecutive tokens of a sequence of `length` tokens: for each token `dim / 2`
    /// cosines, then as many sines.
    ///
    /// # Panics
    ///
    /// When `angles` is not a whole number of tokens.
    pub fn angles(&self, length: usize, start_position: usize, angles: &mut [f32]) {
        let width = self.dim();
        assert!(angles.len().is_multiple_of(width), "angles must be [tokens, {width}]");
        let frequencies = self.frequencies(length);
        for_rows(angles, width, |row, angles| {
            self.fill(frequencies, start_position + row, angles)
        });
    }

    /// The [`angles`](Self::angles) of all rows of a batch.
    ///
    /// # Panics
    ///
    /// When `angles` is not as long as the batch.
    pub fn batch_angles(&self, batch: &Batch, angles: &mut [f32]) {
        let width = self.dim();
        assert_eq!(angles.len(), batch.rows() * width, "angles must be [rows, {width}]");
        for segment in batch.segments() {
            let angles = &mut angles[segment.rows.start * width..segment.rows.end * width];
            self.angles(segment.length, segment.position, angles);
        }
    }

    /// Rotates one head, `[head_dim]`, by the angles of one token, `[dim / 2]` each.
    pub(crate) fn turn(head: &mut [f32], cosines: &[f32], sines: &[f32]) {
        let pairs = cosines.len();
        let (first, second) = head[..2 * pairs].split_at_mut(pairs);
        for (((first, second), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            let (a, b) = (*first, *second);
            *first = a * cosine - b * sine;
            *second = b * cosine + a * sine;
        }
    }

    /// The length of a sequence beyond which the frequencies change.
    pub(crate) fn changes_at(&self) -> Option<usize> {
        self.beyond.as_ref().map(|(length, _)| *length)
    }

    /// Rotates heads, `[heads, head_dim]`, from dimension `first` on, from position `from` to position `to`.
    pub(crate) fn move_heads(
        &self,
        heads: &mut [f32],
        (head_dim, first): (usize, usize),
        (from, to): (usize, usize),
        length: usize,
    ) {
        let turns = self.frequencies(length).iter().map(|frequency| {
            // The angles are rounded as in `fill`, which rotates heads to their positions.
            let angle = f64::from(to as f32 * frequency) - f64::from(from as f32 * frequency);
            (angle.cos() as f32, angle.sin() as f32)
        });
        let (cosines, sines): (Vec<f32>, Vec<f32>) = turns.unzip();
        for head in heads.chunks_exact_mut(head_dim) {
            Self::turn(&mut head[first..], &cosines, &sines);
        }
    }

    /// The frequencies for a sequence of `length` tokens.
    fn frequencies(&self, length: usize) -> &[f32] {
        match &self.beyond {
            Some((original, frequencies)) if length > *original => frequencies,
            _ => &self.frequencies,
        }
    }

    fn fill(&self, frequencies: &[f32], position: usize, angles: &mut [f32]) {
        let (cosines, sines) = angles.split_at_mut(frequencies.len());
        for ((frequency, cosine), sine) in frequencies.iter().zip(cosines).zip(sines) {
            // The product is rounded to f32, because models are trained with this rounding. At position 100,000 it is
            // off by up to 0.004 radians, so exact angles would differ from the trained ones.
            let angle = f64::from(position as f32 * frequency);
            *cosine = angle.cos() as f32 * self.magnitude;
            *sine = angle.sin() as f32 * self.magnitude;
        }
    }
}

/// Frequencies, each divided by its own factor.
fn stretched(frequencies: &[f32], factors: &[f64]) -> Vec<f32> {
    let pairs = frequencies.iter().zip(factors);
    pairs
        .map(|(frequency, factor)| (f64::from(*frequency) / factor) as f32)
        .collect()
}

/// A unique number.
fn next_id() -> u64 {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Range of pairs over which YaRN changes from keeping to scaling.
fn yarn_range(yarn: &Yarn, settings: &RotarySettings) -> (f64, f64) {
    let dim = settings.dim as f64;
    let pair_of =
        |turns: f64| dim * (yarn.original_max_position / (turns * 2.0 * PI)).ln() / (2.0 * settings.theta.ln());
    let (mut low, mut high) = (pair_of(yarn.beta_fast), pair_of(yarn.beta_slow));
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, high) = (low.max(0.0), high.min(dim - 1.0));
    if low == high { (low, high + 0.001) } else { (low, high) }
}

/// Cosines and sines of a batch, kept for all layers.
#[derive(Debug)]
pub(crate) struct RotaryTable {
    /// [`Rotary::id`] of the table's contents, if it is filled.
    holds: Option<u64>,
    // [rows, 2, dim / 2]: a token's cosines, then its sines
    angles: Vec<f32>,
}

impl RotaryTable {
    /// A table for a batch.
    pub(crate) fn with_capacity(batch_tokens: usize, rotary_dim: usize) -> RotaryTable {
        RotaryTable {
            holds: None,
            angles: vec![0.0; batch_tokens * rotary_dim],
        }
    }

    /// Forgets the batch.
    pub(crate) fn clear(&mut self) {
        self.holds = None;
    }

    /// Fills the table with the positions of a batch, unless it already has them.
    pub(crate) fn prepare(&mut self, rotary: &Rotary, batch: &Batch) {
        if self.holds.replace(rotary.id) != Some(rotary.id) {
            rotary.batch_angles(batch, &mut self.angles[..batch.rows() * rotary.dim()]);
        }
    }

    /// Cosines and sines of the batch's tokens from `row` on, `[rows, 2, dim / 2]`.
    pub(crate) fn angles(&self) -> &[f32] {
        &self.angles
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        4 * self.angles.len() as u64
    }
}
