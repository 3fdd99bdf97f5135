//! Heads of a layer, and tiles of a chunk's queries.

use riffle_attention::QueryTile;
use riffle_kv::LayerShape;
use riffle_model::{AttentionShape, ModelConfig};
use riffle_policy::PolicyShape;

/// Query-head rows per tile: enough to share each load of K and V, few enough for specific selections.
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
    /// True if a value is a prefix of its key.
    pub(crate) is_latent: bool,
}

/// The shape of a layer of this attention in a cache.
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
    /// Row in the chunk.
    pub(crate) first_row: usize,
    pub(crate) queries: QueryTile<'a>,
}

impl<'a> Tile<'a> {
    /// A range of the tile's rows.
    pub(crate) fn rows(&self, first: usize, rows: usize) -> QueryTile<'a> {
        QueryTile {
            data: &self.queries.data[first * self.queries.row_stride..],
            rows,
            start: self.queries.start + first,
            ..self.queries
        }
    }
}

impl Heads {
    /// The heads of a layer of a model.
    pub(crate) fn of_layer(config: &ModelConfig, layer: usize) -> Self {
        let shape = config.attention_of(layer);
        Self::over_cache(shape.heads, cached_shape(&shape))
    }

    /// `heads` query heads over a layer of a cache.
    pub(crate) fn over_cache(heads: usize, layer: LayerShape) -> Self {
        Self {
            kv_heads: layer.kv_heads,
            group: heads / layer.kv_heads,
            key_width: layer.key_width,
            value_width: layer.value_width,
            is_latent: layer.is_latent,
        }
    }

    /// The shape of the layer in a cache.
    pub(crate) fn cached(&self) -> LayerShape {
        LayerShape {
            kv_heads: self.kv_heads,
            key_width: self.key_width,
            value_width: self.value_width,
            is_latent: self.is_latent,
        }
    }

    /// The shape of the layer for policies.
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

    /// Number of tiles for the rows of one KV head.
    pub(crate) fn tiles_of(&self, rows: usize) -> usize {
        rows.div_ceil(self.tile_rows())
    }

    /// Rows of a tile.
    pub(crate) fn tile_rows(&self) -> usize {
        (TILE_HEAD_ROWS / self.group).max(1)
    }
}
