//! The layout of the rounded activations of a product.

use core::ops::Range;

use rayon::prelude::*;

use super::{ActivationBlock, STRETCH, Shape};
use crate::machine::Isa;

/// Number of activations below which one thread rounds them all.
const SERIAL_ACTIVATIONS: usize = 1 << 16;
/// Stretches that a thread rounds per task.
const TASK_STRETCHES: usize = 128;

/// The layout `[panel][token][stretch of the panel]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panels {
    tokens: usize,
    stretches: usize,
    /// Stretches per panel; the last may have fewer.
    width: usize,
}

impl Panels {
    /// Panels of `width` stretches.
    pub(crate) fn new(width: usize, tokens: usize, stretches: usize) -> Panels {
        Panels {
            tokens,
            stretches,
            width: width.min(stretches),
        }
    }

    pub(crate) fn count(self) -> usize {
        self.stretches.div_ceil(self.width)
    }

    /// The stretches of a panel.
    pub(crate) fn stretches(self, panel: usize) -> Range<usize> {
        let first = panel * self.width;
        first..(first + self.width).min(self.stretches)
    }

    /// The range of the blocks of some tokens in a panel.
    pub(crate) fn blocks(self, panel: usize, tokens: Range<usize>) -> Range<usize> {
        let stretches = self.stretches(panel);
        let first = stretches.start * self.tokens;
        first + tokens.start * stretches.len()..first + tokens.end * stretches.len()
    }

    /// Rounds `input`, `[tokens, stretches · 32]`.
    pub(crate) fn quantise(self, isa: Isa, shape: Shape, input: &[f32], blocks: &mut [ActivationBlock]) {
        let round = |panel: usize, first_token: usize, blocks: &mut [ActivationBlock]| {
            let stretches = self.stretches(panel);
            for (row, blocks) in blocks.chunks_exact_mut(stretches.len()).enumerate() {
                let first = (first_token + row) * self.stretches + stretches.start;
                isa.quantise(&input[STRETCH * first..][..STRETCH * stretches.len()], shape, blocks);
            }
        };
        if input.len() < SERIAL_ACTIVATIONS {
            for (panel, blocks) in blocks.chunks_mut(self.width * self.tokens).enumerate() {
                round(panel, 0, blocks);
            }
            return;
        }
        let tokens = (TASK_STRETCHES / self.width).max(1);
        let panels = blocks.par_chunks_mut(self.width * self.tokens).enumerate();
        panels.for_each(|(panel, blocks)| {
            let tasks = blocks.par_chunks_mut(self.stretches(panel).len() * tokens).enumerate();
            tasks.for_each(|(task, blocks)| round(panel, task * tokens, blocks));
        });
    }
}
