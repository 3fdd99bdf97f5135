//! Computes the input of attention from the hidden states: projections, head norms, rotation.

use std::ops::Range;
use std::sync::Arc;

use super::{Indexer, LatentQuery, Norm, Projection, Rotary};
use crate::workspace::{CUT_GRID, ROW_BLOCK, Workspace};
use crate::{AttentionShape, Batch, ModelConfig, SegmentPart};

/// The input of attention: projections of the normalised rows, norms of heads and rotation. The result is in
/// [`Rows::Attended`](crate::Rows::Attended).
pub struct Attention {
    /// The norm before the projections.
    pub norm: Arc<Norm>,
    /// Heads of the layer and their widths.
    pub shape: AttentionShape,
    /// Projection to `[heads, key_width]`, or to the input of [`latent_query`](Self::latent_query).
    pub query: Projection,
    /// Converts queries to latent width, in a latent layer whose weights hold keys and values of every head.
    pub latent_query: Option<Box<LatentQuery>>,
    /// Selects the tokens that queries read, in a layer with a trained indexer. A latent layer with an indexer has
    /// narrow queries.
    pub indexer: Option<Box<Indexer>>,
    /// Norm of query heads before the rotation: of each head, or of all together if it is as wide as all of them.
    pub query_norm: Option<Norm>,
    /// The layer's own keys and values; `None` for a layer that reads another layer's.
    pub key_value: Option<KeyValue>,
    /// For each query head, a logit that takes part in its softmax without a value, if [`AttentionShape::has_sinks`].
    pub sinks: Option<Arc<[f32]>>,
    /// The position encoding of queries and keys.
    pub rotary: Arc<Rotary>,
    /// Index of this rotation, below [`ModelConfig::rotary_tables`].
    pub rotary_table: usize,
}

/// The keys and values that a layer computes.
pub struct KeyValue {
    /// Projection to `[kv_heads, key_width]`.
    pub key: Projection,
    /// Projection to `[kv_heads, value_width]`. `None` for a latent layer, whose values are prefixes of its keys. Also
    /// `None` for a layer whose values are its projected keys before norm and rotation.
    pub value: Option<Projection>,
    /// Norm of each value head, `[value_width]`.
    pub value_norm: Option<Norm>,
    /// Norm of key heads before the rotation, as for queries; in a latent layer, of the latents.
    pub key_norm: Option<Norm>,
}

impl Attention {
    /// Normalises some rows of `hidden`, `[batch rows, hidden_size]`, then projects and rotates them.
    pub(crate) fn project(
        &self,
        config: &ModelConfig,
        batch: &Batch,
        rows: Range<usize>,
        hidden: &[f32],
        workspace: &mut Workspace,
    ) {
        let (rotary, width, shape) = (&*self.rotary, config.hidden_size, self.shape);
        let widths = [shape.query_width(), shape.keys_width(), shape.values_width()];
        let Workspace {
            queries,
            keys,
            values,
            normed,
            mixer,
            indexed,
            rotary_tables,
            ..
        } = workspace;
        let table = &mut rotary_tables[self.rotary_table];
        table.prepare(rotary, batch);
        for block in batch.row_blocks(rows, ROW_BLOCK, CUT_GRID) {
            let (first, rows) = (block.start, block.len());
            let normed = &mut normed[..rows * width];
            self.norm.apply(&hidden[first * width..][..rows * width], normed);
            let normed = &*normed;
            let queries = &mut queries[first * widths[0]..][..rows * widths[0]];
            let keys = &mut keys[first * widths[1]..][..rows * widths[1]];
            let values = &mut values[first * widths[2]..][..rows * widths[2]];
            let parts: Vec<SegmentPart> = batch.parts(block.clone()).collect();
            let outputs = [&mut *queries, &mut *keys, &mut *values];
            let index_input = self.multiply((normed, &parts), outputs, mixer);
            if let Some(indexer) = &self.indexer {
                let angles = &table.angles()[first * rotary.dim()..];
                let rows = indexed.rows(&indexer.shape, block.clone());
                indexer.apply((normed, index_input, &parts), (angles, rotary.dim()), rows);
            }
            if let Some(norm) = self.key_value.as_ref().and_then(|own| own.value_norm.as_ref()) {
                super::rows::for_rows(values, norm.width(), |_, head| norm.apply_in_place(head));
            }
            // [rows, 2, dim / 2]
            let angles = &table.angles()[first * rotary.dim()..];
            self.finish_rows((&mut *queries, widths[0]), (keys, widths[1]), (angles, rotary.dim()));
            if rotary.scales_queries() {
                scale_queries(rotary, batch, block, queries, widths[0]);
            }
        }
    }

    /// Multiplies normed rows by the weights of queries, keys and values. Returns the input of an indexer: latent
    /// queries, or the normed rows.
    fn multiply<'a>(
        &self,
        (normed, parts): (&'a [f32], &[SegmentPart]),
        [queries, keys, values]: [&mut [f32]; 3],
        scratch: &'a mut [f32],
    ) -> &'a [f32] {
        match (&self.latent_query, &self.key_value) {
            (Some(latent), own) => {
                let narrow = latent.apply(&self.query, (normed, parts), (queries, self.shape.key_width), scratch);
                if let Some(own) = own {
                    own.key.apply(normed, keys, parts);
                }
                return narrow;
            }
            (None, Some(KeyValue { key, value, .. })) => match value {
                Some(value) => Projection::apply_all([&self.query, key, value], normed, [queries, keys, values], parts),
                None => {
                    Projection::apply_all([&self.query, key], normed, [queries, &mut *keys], parts);
                    // Empty in a latent layer.
                    let copied = values.len();
                    values.copy_from_slice(&keys[..copied]);
                }
            },
            (None, None) => self.query.apply(normed, queries, parts),
        }
        normed
    }

    /// Normalises and rotates the heads of queries and keys; each comes with the width of a row.
    fn finish_rows(&self, queries: (&mut [f32], usize), keys: (&mut [f32], usize), angles: (&[f32], usize)) {
        let key_norm = self.key_value.as_ref().map(|own| own.key_norm.as_ref());
        for ((heads, width), norm) in [(queries, Some(self.query_norm.as_ref())), (keys, key_norm)] {
            if let Some(norm) = norm {
                finish_heads(heads, width, &self.shape, norm, angles);
            }
        }
    }

    /// Bytes in memory, without the norm, which other parts may share.
    pub(crate) fn bytes(&self) -> u64 {
        let query_norm = self.query_norm.as_ref().map_or(0, Norm::bytes);
        let latent_query = self.latent_query.as_ref().map_or(0, |latent| latent.bytes());
        let indexer = self.indexer.as_ref().map_or(0, |indexer| indexer.bytes());
        self.query.bytes() + latent_query + indexer + query_norm + self.key_value.as_ref().map_or(0, KeyValue::bytes)
    }
}

impl KeyValue {
    fn bytes(&self) -> u64 {
        self.key.bytes()
            + self.value.as_ref().map_or(0, Projection::bytes)
            + self.value_norm.as_ref().map_or(0, Norm::bytes)
            + self.key_norm.as_ref().map_or(0, Norm::bytes)
    }
}

/// Multiplies the queries of some rows of a batch, `[rows, width]`, by the factors for their positions.
fn scale_queries(rotary: &Rotary, batch: &Batch, rows: Range<usize>, queries: &mut [f32], width: usize) {
    let positions = batch
        .parts(rows)
        .flat_map(|part| (part.position..).take(part.rows.len()));
    for (query, position) in queries.chunks_exact_mut(width).zip(positions) {
        rotary.scale_query(query, position);
    }
}

/// Normalises and rotates every head of `[rows, width]`.
fn finish_heads(
    data: &mut [f32],
    width: usize,
    shape: &AttentionShape,
    norm: Option<&Norm>,
    (angles, rotary_dim): (&[f32], usize),
) {
    let first_rotated = shape.first_rotated();
    super::rows::for_rows(data, width, |row, heads| {
        let (cosines, sines) = angles[row * rotary_dim..][..rotary_dim].split_at(rotary_dim / 2);
        let of_all = norm.filter(|norm| norm.width() == width);
        if let Some(norm) = of_all {
            norm.apply_in_place(heads);
        }
        for head in heads.chunks_exact_mut(shape.key_width) {
            if let Some(norm) = norm.filter(|_| of_all.is_none()) {
                let normed = if shape.is_latent {
                    first_rotated
                } else {
                    shape.key_width
                };
                norm.apply_in_place(&mut head[..normed]);
            }
            Rotary::turn(&mut head[first_rotated..], cosines, sines);
        }
    });
}
