//! Scratch of layers with experts, of planned size.

use super::router::Choice;
use crate::ExpertShape;

/// Rows of tokens that experts take together, at most, unless one expert alone takes more.
const TOGETHER: usize = 512;

/// Scratch for some rows.
#[derive(Default)]
pub(crate) struct ExpertScratch {
    // [rows, experts]
    pub(super) logits: Vec<f32>,
    // [rows, used]
    pub(super) choices: Vec<Choice>,
    // [rows, used]: the place of each choice in the order of experts
    pub(super) places: Vec<u32>,
    // [rows * used]: rows in the order of experts
    pub(super) order: Vec<u32>,
    // [experts + 1]: the first place of each expert
    pub(super) starts: Vec<u32>,
    // [together, hidden]
    pub(super) gathered: Vec<f32>,
    // [together, hidden]
    pub(super) results: Vec<f32>,
    // [together, width]
    pub(super) inner: Vec<f32>,
    // [together, width]
    pub(super) inner_gate: Vec<f32>,
}

/// Choices whose inputs and results are held at once for so many rows.
pub(super) fn together(shape: &ExpertShape, rows: usize) -> usize {
    rows.saturating_mul(shape.used).min(rows.max(TOGETHER)).max(rows)
}

impl ExpertScratch {
    pub(crate) fn new(shape: Option<&ExpertShape>, hidden: usize, rows: usize) -> ExpertScratch {
        let Some(shape) = shape else {
            return ExpertScratch::default();
        };
        let (choices, together) = (rows * shape.used, together(shape, rows));
        ExpertScratch {
            logits: vec![0.0; rows * shape.experts],
            choices: vec![Choice::default(); choices],
            places: vec![0; choices],
            order: vec![0; choices],
            starts: vec![0; shape.experts + 1],
            gathered: vec![0.0; together * hidden],
            results: vec![0.0; together * hidden],
            inner: vec![0.0; together * shape.width],
            inner_gate: vec![0.0; together * shape.width],
        }
    }

    /// Bytes it holds, equal to [`scratch_bytes`] of its shape.
    pub(crate) fn bytes(&self) -> u64 {
        let floats = [
            &self.logits,
            &self.gathered,
            &self.results,
            &self.inner,
            &self.inner_gate,
        ];
        let numbers = [&self.places, &self.order, &self.starts];
        let floats: usize = floats.into_iter().map(Vec::len).sum();
        let numbers: usize = numbers.into_iter().map(Vec::len).sum();
        4 * (floats + numbers) as u64 + (self.choices.len() * size_of::<Choice>()) as u64
    }
}

/// Bytes of the scratch for so many rows.
pub(crate) fn scratch_bytes(shape: Option<&ExpertShape>, hidden: usize, rows: usize) -> u64 {
    let Some(shape) = shape else { return 0 };
    let (rows_wide, together) = (rows as u64, together(shape, rows) as u64);
    let (experts, used) = (shape.experts as u64, shape.used as u64);
    let choice = 8 + size_of::<Choice>() as u64;
    let of_rows = rows_wide.saturating_mul(4 * experts + used.saturating_mul(choice));
    let of_choices = together.saturating_mul(8 * (hidden as u64 + shape.width as u64));
    of_rows.saturating_add(of_choices).saturating_add(4 * (experts + 1))
}
