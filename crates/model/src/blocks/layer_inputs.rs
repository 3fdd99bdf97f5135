//! Inputs of layers that depend only on the token, in addition to the residual stream (per-layer embeddings of Gemma
//! 4).

use riffle_linear::PackedMatrix;

use super::rows::for_rows;
use super::{Activation, Norm, Projection};
use crate::SegmentPart;
use crate::workspace::RowBlock;

/// The inputs of all layers for a token: `scale * (norm(projection(embedding)) + table_scale * table[token])`.
pub struct LayerInputs {
    /// `[vocab_size, layers * width]`, in the file's format and read by row.
    pub table: PackedMatrix,
    /// Factor on rows of the table.
    pub table_scale: f32,
    /// Projection from the embedding of a token, `[hidden_size]`, to `[layers, width]`.
    pub projection: Projection,
    /// Norm of each layer's slice of the projection, `[width]`.
    pub norm: Norm,
    /// Factor on the sum.
    pub scale: f32,
}

impl LayerInputs {
    /// Values of the inputs of all layers.
    pub(crate) fn width(&self) -> usize {
        self.table.in_features()
    }

    /// Writes the inputs of all layers for some tokens, `[tokens, layers, width]`; their embeddings are
    /// `[tokens, hidden_size]`.
    pub(crate) fn prepare(&self, (tokens, parts): (&[u32], &[SegmentPart]), embedded: &[f32], output: &mut [f32]) {
        self.projection.apply(embedded, output, parts);
        for_rows(output, self.width(), |row, output| {
            let mut stored = vec![0.0; output.len()];
            // Tokens of pictures and sound are beyond the table and use the input of token 0.
            let token = tokens[row] as usize;
            let stands_in_table = token < self.table.out_features();
            self.table
                .row_into(if stands_in_table { token } else { 0 }, &mut stored);
            for part in output.chunks_exact_mut(self.norm.width()) {
                self.norm.apply_in_place(part);
            }
            for (value, stored) in output.iter_mut().zip(stored) {
                *value = (*value + stored * self.table_scale) * self.scale;
            }
        });
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.bytes() as u64 + self.projection.bytes() + self.norm.bytes()
    }
}

/// A layer's use of its input: `projection(activation(gate(hidden)) * input)`.
pub struct LayerInput {
    /// The layer, which selects its slice of [`LayerInputs`].
    pub layer: usize,
    /// Projection from `[hidden_size]` to `[width]`.
    pub gate: Projection,
    /// The non-linearity of the gate.
    pub activation: Activation,
    /// Projection from `[width]` to `[hidden_size]`.
    pub projection: Projection,
}

impl LayerInput {
    /// `branch = projection(activation(gate(hidden)) * input)`.
    pub(crate) fn apply(&self, rows: &mut RowBlock<'_>, parts: &[SegmentPart]) {
        let width = self.gate.weight().out_features();
        let count = rows.hidden.len() / self.gate.weight().in_features();
        let gate = &mut rows.inner_gate[..count * width];
        let input = &mut rows.inner[..count * width];
        let (all, stride) = (rows.layer_inputs, rows.layer_inputs.len() / count.max(1));
        for_rows(input, width, |row, input| {
            input.copy_from_slice(&all[row * stride + self.layer * width..][..width]);
        });
        self.gate.apply(rows.hidden, gate, parts);
        self.activation.gate(gate, input);
        self.projection.apply(gate, rows.branch, parts);
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.gate.bytes() + self.projection.bytes()
    }
}
