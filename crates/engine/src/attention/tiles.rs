//! Cuts a chunk's queries into tiles.

use std::ops::Range;

use riffle_attention::QueryTile;
use riffle_kv::LayerShape;
use riffle_model::{AttentionShape, ModelConfig};
use riffle_policy::PolicyShape;

use crate::attention::layer_rows::LayerRows;

/// Rows of query heads in one tile: enough to share every K and V load, few enough for a selection to be specific.
const TILE_HEAD_ROWS: usize = 128;

/// The heads of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) kv_heads: usize,
    /// Query heads per KV head.
    pub(crate) group: usize,
    /// Elements of a query and of a key.
    pub(crate) key_width: usize,
    /// Elements of a value and of a result.
    pub(crate) value_width: usize,
    /// True if a value is the beginning of its key.
    pub(crate) is_latent: bool,
}

/// The shape in which a cache holds a layer of this attention.
pub(crate) fn cached_shape(shape: &AttentionShape) -> LayerShape {
    LayerShape {
        kv_heads: shape.kv_heads,
        key_width: shape.key_width,
        value_width: shape.value_width,
        is_latent: shape.is_latent,
    }
}

/// Consecutive queries of one KV head's group.
pub(crate) struct Tile<'a> {
    pub(crate) kv_head: usize,
    /// Of the chunk.
    pub(crate) first_row: usize,
    pub(crate) queries: QueryTile<'a>,
}

impl Heads {
    /// The heads of a layer of a model.
    pub(crate) fn of_layer(config: &ModelConfig, layer: usize) -> Self {
        let shape = config.attention_of(layer);
        Self::over_cache(shape.heads, cached_shape(&shape))
    }

    /// So many query heads over a layer of a cache.
    pub(crate) fn over_cache(heads: usize, layer: LayerShape) -> Self {
        Self {
            kv_heads: layer.kv_heads,
            group: heads / layer.kv_heads,
            key_width: layer.key_width,
            value_width: layer.value_width,
            is_latent: layer.is_latent,
        }
    }

    /// The shape in which a cache holds the layer.
    pub(crate) fn cached(&self) -> LayerShape {
        LayerShape {
            kv_heads: self.kv_heads,
            key_width: self.key_width,
            value_width: self.value_width,
            is_latent: self.is_latent,
        }
    }

    /// The shape that policies of the layer are built for.
    pub(crate) fn for_policies(&self, chunk_tokens: usize) -> PolicyShape {
        PolicyShape {
            kv_heads: self.kv_heads,
            group: self.group,
            head_dim: self.key_width,
            chunk_tokens,
        }
    }

    /// Query heads.
    pub(crate) fn queries(&self) -> usize {
        self.kv_heads * self.group
    }

    /// Elements of the queries of all heads of a token.
    pub(crate) fn query_width(&self) -> usize {
        self.queries() * self.key_width
    }

    /// Elements of the results of all heads of a token.
    pub(crate) fn result_width(&self) -> usize {
        self.queries() * self.value_width
    }

    /// Tiles that the rows of one KV head are cut into.
    pub(crate) fn tiles_of(&self, rows: usize) -> usize {
        rows.div_ceil(self.tile_rows())
    }

    /// The tiles of tokens `tokens` of a batch, KV head by KV head.
    pub(crate) fn tiles<'q>(&self, input: &LayerRows<'q>, tokens: Range<usize>) -> Vec<Tile<'q>> {
        let step = self.tile_rows();
        let tile = |kv_head: usize, first: usize| Tile {
            kv_head,
            first_row: first - tokens.start,
            queries: self.tile(input, first..(first + step).min(tokens.end), kv_head),
        };
        (0..self.kv_heads)
            .flat_map(|kv_head| tokens.clone().step_by(step).map(move |first| (kv_head, first)))
            .map(|(kv_head, first)| tile(kv_head, first))
            .collect()
    }

    /// Tokens `tokens` of a batch as one tile of one KV head.
    pub(crate) fn tile<'q>(&self, input: &LayerRows<'q>, tokens: Range<usize>, kv_head: usize) -> QueryTile<'q> {
        QueryTile {
            data: &input.queries[tokens.start * self.query_width() + kv_head * self.group * self.key_width..],
            rows: tokens.len(),
            row_stride: self.query_width(),
            group: self.group,
            head_dim: self.key_width,
            start: input.slot.after(tokens.start).0,
        }
    }

    fn tile_rows(&self) -> usize {
        (TILE_HEAD_ROWS / self.group).max(1)
    }
}

/// The tile's queries from position `from` on, and the row they begin at; `None` where there are none.
pub(crate) fn rows_from<'q>(tile: &QueryTile<'q>, from: usize) -> Option<(QueryTile<'q>, usize)> {
    let first_row = from.saturating_sub(tile.start);
    (first_row < tile.rows).then(|| {
        let rest = QueryTile {
            data: &tile.data[first_row * tile.row_stride..],
            rows: tile.rows - first_row,
            start: tile.start + first_row,
            ..*tile
        };
        (rest, first_row)
    })
}
