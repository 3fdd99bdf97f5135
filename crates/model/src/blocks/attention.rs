//! The attention block around the caller's attention step: projections, head norms, rotation.

use std::sync::Arc;

use super::{Norm, Projection, Rotary};
use crate::language_model::AttentionInput;
use crate::workspace::{Pass, ROW_BLOCK, Workspace};
use crate::{ModelConfig, ModelError};

/// What goes into attention: projections of the normalised rows and what happens to heads then. The result lies in
/// [`Rows::Attended`](crate::Rows::Attended).
pub struct Attention {
    /// The norm before the projections.
    pub norm: Arc<Norm>,
    /// To `[heads, head_dim]`.
    pub query: Projection,
    /// To `[kv_heads, head_dim]`.
    pub key: Projection,
    /// To `[kv_heads, head_dim]`.
    pub value: Projection,
    /// Norm of single query heads before the rotation.
    pub query_norm: Option<Norm>,
    /// Norm of single key heads before the rotation.
    pub key_norm: Option<Norm>,
    /// How queries and keys carry their positions.
    pub rotary: Arc<Rotary>,
    /// Which of the model's rotations that is, below [`ModelConfig::rotary_tables`].
    pub rotary_table: usize,
}

impl Attention {
    /// Normalises `hidden`, projects, rotates and attends; the result lies in the workspace, not yet projected back.
    pub(crate) fn attend(&self, pass: &mut Pass<'_>, config: &ModelConfig, hidden: &[f32]) -> Result<(), ModelError> {
        let rotary = &*self.rotary;
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
        let table = &mut rotary_tables[self.rotary_table];
        table.prepare(rotary, *context_tokens, pass.start_position, tokens);
        for start in (0..tokens).step_by(ROW_BLOCK) {
            let rows = ROW_BLOCK.min(tokens - start);
            let normed = &mut normed[..rows * width];
            self.norm.apply(&hidden[start * width..][..rows * width], normed);
            let queries = &mut queries[start * query_width..][..rows * query_width];
            let keys = &mut keys[start * kv_width..][..rows * kv_width];
            let values = &mut values[start * kv_width..][..rows * kv_width];
            let projections = [&self.query, &self.key, &self.value];
            Projection::apply_all(projections, normed, [&mut *queries, &mut *keys, values]);
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
            on_device: None,
        };
        // There is no device: the result is in the output.
        pass.attention
            .attend(input, &mut attended[..tokens * query_width])
            .map_err(ModelError::Attention)?;
        Ok(())
    }

    /// Bytes in memory, without the norm that other parts may share.
    pub(crate) fn bytes(&self) -> u64 {
        let norms = self.query_norm.iter().chain(&self.key_norm).map(Norm::bytes);
        self.query.bytes() + self.key.bytes() + self.value.bytes() + norms.sum::<u64>()
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
