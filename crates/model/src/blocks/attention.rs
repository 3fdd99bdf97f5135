//! The attention block around the caller's attention step: projections, head norms, rotation.

use super::activation::sigmoid_gate;
use super::{Norm, Projection, Rotary};
use crate::language_model::AttentionInput;
use crate::workspace::{Pass, ROW_BLOCK, RowBlock, Workspace};
use crate::{ModelConfig, ModelError};

/// Projections of an attention layer and what happens to heads between them.
pub(crate) struct Attention {
    pub(crate) query: Projection,
    pub(crate) key: Projection,
    pub(crate) value: Projection,
    pub(crate) output: Projection,
    /// Norms of single heads before the rotation.
    pub(crate) query_norm: Option<Norm>,
    pub(crate) key_norm: Option<Norm>,
    /// What opens and closes the result, from the same input as the queries.
    pub(crate) gate: Option<Projection>,
}

impl Attention {
    /// Normalises `hidden`, projects, rotates and attends; the result lies in the workspace, not yet projected back.
    pub(crate) fn attend(
        &self,
        pass: &mut Pass<'_>,
        config: &ModelConfig,
        norm: &Norm,
        rotary: (usize, &Rotary),
        hidden: &[f32],
    ) -> Result<(), ModelError> {
        let (table, rotary) = rotary;
        let (tokens, width) = (pass.tokens, config.hidden_size);
        let (query_width, kv_width) = (config.query_width(), config.kv_width());
        let Workspace {
            queries,
            keys,
            values,
            attended,
            normed,
            rotary_tables,
            context_tokens,
            ..
        } = &mut *pass.workspace;
        let table = &mut rotary_tables[table];
        table.prepare(rotary, *context_tokens, pass.start_position, tokens);
        for start in (0..tokens).step_by(ROW_BLOCK) {
            let rows = ROW_BLOCK.min(tokens - start);
            let normed = &mut normed[..rows * width];
            norm.apply(&hidden[start * width..][..rows * width], normed);
            let queries = &mut queries[start * query_width..][..rows * query_width];
            let keys = &mut keys[start * kv_width..][..rows * kv_width];
            self.query.apply(normed, queries);
            self.key.apply(normed, keys);
            self.value
                .apply(normed, &mut values[start * kv_width..][..rows * kv_width]);
            // [rows, 2, dim / 2]
            let angles = &table.angles()[start * rotary.dim()..];
            finish_heads(
                queries,
                query_width,
                config.head_dim,
                self.query_norm.as_ref(),
                angles,
                rotary.dim(),
            );
            finish_heads(
                keys,
                kv_width,
                config.head_dim,
                self.key_norm.as_ref(),
                angles,
                rotary.dim(),
            );
        }
        let input = AttentionInput {
            layer: pass.layer,
            cache_layer: config.cache_layer(pass.layer).unwrap_or(pass.layer),
            start_position: pass.start_position,
            tokens,
            queries: &queries[..tokens * query_width],
            keys: &keys[..tokens * kv_width],
            values: &values[..tokens * kv_width],
        };
        pass.attention
            .attend(input, &mut attended[..tokens * query_width])
            .map_err(ModelError::Attention)
    }

    /// Gates rows of the result where the block has a gate; `norm` is that of [`attend`](Self::attend), and the rows'
    /// residual stream must still be the layer's input.
    pub(crate) fn gate_rows(&self, norm: &Norm, rows: &mut RowBlock<'_>) {
        if let Some(gate) = &self.gate {
            let opening = &mut rows.mixer[..rows.attended.len()];
            norm.apply(rows.hidden, rows.normed);
            gate.apply(rows.normed, opening);
            sigmoid_gate(rows.attended, opening);
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let norms = self
            .query_norm
            .iter()
            .chain(&self.key_norm)
            .map(Norm::bytes)
            .sum::<u64>();
        let gate = self.gate.as_ref().map_or(0, Projection::bytes);
        self.query.bytes() + self.key.bytes() + self.value.bytes() + self.output.bytes() + gate + norms
    }
}

/// Normalises and turns every head of `[rows, width]`.
fn finish_heads(
    data: &mut [f32],
    width: usize,
    head_dim: usize,
    norm: Option<&Norm>,
    angles: &[f32],
    rotary_dim: usize,
) {
    super::rows::for_rows(data, width, |row, heads| {
        let (cosines, sines) = angles[row * rotary_dim..][..rotary_dim].split_at(rotary_dim / 2);
        for head in heads.chunks_exact_mut(head_dim) {
            if let Some(norm) = norm {
                norm.apply_in_place(head);
            }
            Rotary::turn(head, cosines, sines);
        }
    });
}
