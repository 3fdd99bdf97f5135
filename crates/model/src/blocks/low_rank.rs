//! The part that an adapter adds to a projection's output.

use std::ops::Range;
use std::sync::Arc;

use riffle_linear::{LinearError, PackedMatrix, WeightFormat};

use super::rows::add;
use crate::adapters::LowRankWeights;

/// `output += s · up (down input)`.
pub(crate) struct LowRank {
    /// Number of the adapter.
    pub(crate) adapter: usize,
    /// `[rank, inputs]`, shared by the parts of a fused projection.
    down: Arc<PackedMatrix>,
    /// True for the part that counts the bytes of `down`.
    counts_down: bool,
    /// `[outputs, rank]`
    up: PackedMatrix,
    pub(super) scale: f32,
}

/// Values of the product computed at a time: scratch of 256 KiB.
const BLOCK_VALUES: usize = 1 << 16;

impl LowRank {
    /// The matrix shared by the parts of a projection.
    pub(crate) fn shared(weights: &LowRankWeights) -> Result<Arc<PackedMatrix>, LinearError> {
        Ok(Arc::new(packed(&weights.down, weights.down.len() / weights.rank)?))
    }

    /// The part for the rows `own` of each head; a head has `stride` rows in the adapter.
    pub(crate) fn new(
        weights: &LowRankWeights,
        down: &Arc<PackedMatrix>,
        stride: usize,
        own: Range<usize>,
    ) -> Result<LowRank, LinearError> {
        let rank = weights.rank;
        let rows = weights.up.chunks(stride * rank);
        let up: Vec<f32> = rows
            .flat_map(|head| head[own.start * rank..own.end * rank].iter().copied())
            .collect();
        Ok(LowRank {
            adapter: weights.adapter,
            down: Arc::clone(down),
            counts_down: own.start == 0,
            up: packed(&up, rank)?,
            scale: weights.scale,
        })
    }

    /// Adds the part, times `scale`, for `input`, `[rows, inputs]`, to `output`, `[rows, outputs]`. A row's bits do
    /// not depend on other rows.
    pub(crate) fn add(&self, scale: f32, input: &[f32], output: &mut [f32]) {
        let (rank, inputs, outputs) = (
            self.down.out_features(),
            self.down.in_features(),
            self.up.out_features(),
        );
        let mut inner = vec![0.0; input.len() / inputs * rank];
        self.down.matmul(input, &mut inner);
        let factor = scale * self.scale;
        inner.iter_mut().for_each(|value| *value *= factor);
        let rows = (BLOCK_VALUES / outputs).max(1);
        let mut product = vec![0.0; outputs * rows.min(inner.len() / rank)];
        for (inner, output) in inner.chunks(rows * rank).zip(output.chunks_mut(rows * outputs)) {
            let product = &mut product[..output.len()];
            self.up.matmul(inner, product);
            add(output, product);
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let down = if self.counts_down { self.down.bytes() } else { 0 };
        (down + self.up.bytes()) as u64
    }
}

/// A matrix of f32 with `columns` columns.
fn packed(values: &[f32], columns: usize) -> Result<PackedMatrix, LinearError> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    PackedMatrix::pack(WeightFormat::F32, values.len() / columns, columns, &bytes)
}
