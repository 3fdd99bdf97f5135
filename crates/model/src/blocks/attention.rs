//! What attention takes from the hidden states: projections, head norms, rotation.

use std::ops::Range;
use std::sync::Arc;

use super::{Norm, Projection, Rotary};
use crate::workspace::{CUT_GRID, ROW_BLOCK, Workspace};
use crate::{Batch, ModelConfig};

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
    /// Normalises some rows of `hidden`, `[batch rows, hidden_size]`, projects and turns them.
    pub(crate) fn project(
        &self,
        config: &ModelConfig,
        batch: &Batch,
        rows: Range<usize>,
        hidden: &[f32],
        workspace: &mut Workspace,
    ) {
        let (rotary, width) = (&*self.rotary, config.hidden_size);
        let (query_width, kv_width) = (config.query_width(), config.kv_width());
        let Workspace {
            queries,
            keys,
            values,
            normed,
            rotary_tables,
            ..
        } = workspace;
        let table = &mut rotary_tables[self.rotary_table];
        table.prepare(rotary, batch);
        for block in batch.row_blocks(rows, ROW_BLOCK, CUT_GRID) {
            let (first, rows) = (block.start, block.len());
            let normed = &mut normed[..rows * width];
            self.norm.apply(&hidden[first * width..][..rows * width], normed);
            let queries = &mut queries[first * query_width..][..rows * query_width];
            let keys = &mut keys[first * kv_width..][..rows * kv_width];
            let values = &mut values[first * kv_width..][..rows * kv_width];
            let projections = [&self.query, &self.key, &self.value];
            Projection::apply_all(projections, normed, [&mut *queries, &mut *keys, values]);
            // [rows, 2, dim / 2]
            let angles = &table.angles()[first * rotary.dim()..];
            for (heads, width, norm) in [
                (queries, query_width, &self.query_norm),
                (keys, kv_width, &self.key_norm),
            ] {
                finish_heads(heads, width, config.head_dim, norm.as_ref(), angles, rotary.dim());
            }
        }
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
