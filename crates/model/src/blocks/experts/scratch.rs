//! Scratch of layers with experts, with a planned size.

use super::router::Choice;
use crate::ExpertShape;

/// The most choices computed together, unless a block of rows is longer.
const TOGETHER: usize = 512;

/// Scratch for the experts of a batch.
#[derive(Default)]
pub(crate) struct ExpertScratch {
    // [block rows, experts]
    pub(super) logits: Vec<f32>,
    // [rows, used]
    pub(super) choices: Vec<Choice>,
    // [rows, used]: the index of each choice in the order of experts
    pub(super) places: Vec<u32>,
    // [rows * used]: rows in the order of experts
    pub(super) order: Vec<u32>,
    // [experts + 1]: the first index of each expert
    pub(super) starts: Vec<u32>,
    // [rows, hidden]: the input of experts
    pub(super) inputs: Vec<f32>,
    // [rows, hidden]: the sums of the experts' results
    pub(super) sums: Vec<f32>,
    // [together, hidden]
    pub(super) gathered: Vec<f32>,
    // [together, hidden]
    pub(super) results: Vec<f32>,
    // [together, width]
    pub(super) inner: Vec<f32>,
    // [together, width]
    pub(super) inner_gate: Vec<f32>,
    /// Computed choices of the current batch.
    pub(super) done: usize,
}

/// Number of choices whose inputs and results are held at once, for batches of `rows` rows that come in blocks.
fn together(shape: &ExpertShape, [rows, block]: [usize; 2]) -> usize {
    rows.saturating_mul(shape.used).min(block.max(TOGETHER)).max(block)
}

impl ExpertScratch {
    /// Allocates scratch for batches of up to `rows` rows, routed `block` at a time.
    pub(crate) fn new(shape: Option<&ExpertShape>, hidden: usize, [rows, block]: [usize; 2]) -> ExpertScratch {
        let Some(shape) = shape else {
            return ExpertScratch::default();
        };
        let (choices, together) = (rows * shape.used, together(shape, [rows, block]));
        ExpertScratch {
            logits: vec![0.0; block * shape.experts],
            choices: vec![Choice::default(); choices],
            places: vec![0; choices],
            order: vec![0; choices],
            starts: vec![0; shape.experts + 1],
            inputs: vec![0.0; rows * hidden],
            sums: vec![0.0; rows * hidden],
            gathered: vec![0.0; together * hidden],
            results: vec![0.0; together * hidden],
            inner: vec![0.0; together * shape.width],
            inner_gate: vec![0.0; together * shape.width],
            done: 0,
        }
    }

    /// Bytes in memory, equal to [`scratch_bytes`] of its shape.
    pub(crate) fn bytes(&self) -> u64 {
        let floats = [
            &self.logits,
            &self.inputs,
            &self.sums,
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

/// Bytes of the scratch for batches of `rows` rows that come in blocks.
pub(crate) fn scratch_bytes(shape: Option<&ExpertShape>, hidden: usize, [rows, block]: [usize; 2]) -> u64 {
    let Some(shape) = shape else { return 0 };
    let (rows_wide, together) = (rows as u64, together(shape, [rows, block]) as u64);
    let (experts, used, hidden) = (shape.experts as u64, shape.used as u64, hidden as u64);
    let choice = 8 + size_of::<Choice>() as u64;
    let of_rows = rows_wide.saturating_mul(8 * hidden + used.saturating_mul(choice));
    let of_choices = together.saturating_mul(8 * (hidden + shape.width as u64));
    let logits = (block as u64).saturating_mul(4 * experts);
    of_rows
        .saturating_add(of_choices)
        .saturating_add(logits + 4 * (experts + 1))
}
