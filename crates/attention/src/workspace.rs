//! Scratch of a call.

use alloc::vec::Vec;

use crate::Span;
use crate::diagonal::DiagonalWorkspace;
use crate::gathered::Gathered;
use crate::kernel::Int8Queries;
use crate::rounded::Rounded;
use crate::summary::SummaryScratch;

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
    pub(crate) summaries: SummaryScratch,
}
