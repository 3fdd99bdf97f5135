//! Scratch of a call.

use alloc::vec::Vec;

use crate::Span;
use crate::diagonal::DiagonalWorkspace;
use crate::gathered::Gathered;
use crate::kernel::Int8Queries;
use crate::rounded::Rounded;

/// Scratch, reused between calls.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) needs: Vec<Span>,
    pub(crate) visits: Vec<Span>,
    pub(crate) diagonals: DiagonalWorkspace,
    pub(crate) bits: Vec<u128>,
    pub(crate) queries: Vec<f32>,
    pub(crate) int8: Int8Queries,
    pub(crate) scores: Vec<f32>,
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
    pub(crate) gathered: Gathered,
    pub(crate) rounded: Rounded,
    summary_open: Vec<bool>,
    summary_weights: Vec<f32>,
}

impl Workspace {
    /// Lends the per-block scratch of summaries.
    pub(crate) fn take_summary_scratch(&mut self) -> (Vec<bool>, Vec<f32>) {
        (
            core::mem::take(&mut self.summary_open),
            core::mem::take(&mut self.summary_weights),
        )
    }

    pub(crate) fn return_summary_scratch(&mut self, open: Vec<bool>, weights: Vec<f32>) {
        (self.summary_open, self.summary_weights) = (open, weights);
    }
}
