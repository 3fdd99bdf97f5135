//! The input of one call, its outputs, and the split of its rows into tiles.

use crate::block::Block;
use crate::format::{PlaneKind, Reading};
use crate::kernel::{LONE_ROWS, pack, tile_width};
use crate::partial::Sums;
use crate::parts::Parts;
use crate::simd::Level;
use crate::visible::Visible;
use crate::workspace::Workspace;
use crate::{Arithmetic, AttendOptions, Format, KvView, QueryTile, Span};

/// Rows (positions × heads) per query block: their queries and sums stay in the second-level cache while all key
/// blocks are read.
pub(crate) const BLOCK_ROWS: usize = 240;

/// The output of a tile. Its slices hold all rows of the call: `[rows, group]`, `[rows, group, value_dim]`.
pub(crate) enum Output<'a> {
    /// Accumulates into a partial, as one running softmax.
    Partial(Sums<'a>),
    /// Accumulates each part of the cache separately and merges the parts in order.
    Parts(Parts<'a>),
    /// Adds the softmax weight of the key at `origin + i` to `mass[i]`.
    Mass {
        log_sum_exp: &'a [f32],
        origin: usize,
        mass: &'a mut [f32],
    },
}

impl Output<'_> {
    /// The sums that rows accumulate into now, if any.
    pub(crate) fn sums(&mut self) -> Option<Sums<'_>> {
        match self {
            Self::Partial(Sums { m, l, o }) => Some(Sums { m, l, o }),
            Self::Parts(parts) => Some(parts.sums()),
            Self::Mass { .. } => None,
        }
    }
}

/// The input of one call.
pub(crate) struct Call<'a, V: Visible> {
    pub(crate) level: Level,
    pub(crate) queries: QueryTile<'a>,
    pub(crate) kv: KvView<'a>,
    /// Elements of one value; zero where no values are read.
    pub(crate) value_dim: usize,
    /// True if any plane of the pages holds integers.
    pub(crate) quantised: bool,
    pub(crate) visible: &'a V,
    pub(crate) options: &'a AttendOptions<'a>,
    /// Range of the keys to read.
    pub(crate) range: Span,
    /// Part of the cache to which keys are limited.
    pub(crate) only_part: Option<usize>,
}

/// Neighbouring queries that are processed together against each key block.
#[derive(Clone, Copy)]
pub(crate) struct QueryBlock {
    /// First position within the call, and number of positions.
    pub(crate) first: usize,
    pub(crate) positions: usize,
}

/// Rows of a tile: first row within the query block, number of rows, and computed width.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) first: usize,
    pub(crate) rows: usize,
    pub(crate) width: usize,
}

impl<V: Visible> Call<'_, V> {
    /// Elements of one key, and of one value.
    pub(crate) fn widths(&self) -> (usize, usize) {
        (self.kv.head_dim, self.value_dim)
    }

    fn fused(&self) -> bool {
        self.options.arithmetic == Arithmetic::Fused
    }

    /// True if `total` rows probably read from memory rather than cache, so that prefetching pays.
    pub(crate) fn looks_ahead(&self, total: usize) -> bool {
        self.fused() || total <= LONE_ROWS
    }

    /// True if `total` rows read keys of a format without widening.
    pub(crate) fn reads_keys_in_place(&self, format: Format, total: usize) -> bool {
        format.reads_in_place(PlaneKind::Keys, self.reading(total))
    }

    /// True if `total` rows read a block's values without widening; never for a latent block.
    pub(crate) fn reads_values_in_place(&self, block: &Block, total: usize) -> bool {
        let format = block.values.format();
        !block.is_latent && format.reads_in_place(PlaneKind::Values, self.reading(total))
    }

    fn reading(&self, rows: usize) -> Reading {
        Reading {
            level: self.level,
            is_fused: self.fused(),
            rows,
        }
    }

    /// Copies the scaled queries of a block into `[head_dim, width]` per tile.
    pub(crate) fn pack(&self, workspace: &mut Workspace, queries: QueryBlock) {
        let (group, head_dim) = (self.queries.group, self.kv.head_dim);
        let total = queries.positions * group;
        workspace.queries.clear();
        let mut at = 0;
        while at < total {
            let tile = self.tile(at, total);
            let begin = workspace.queries.len();
            workspace.queries.resize(begin + tile.width * head_dim, 0.0);
            let packed = &mut workspace.queries[begin..];
            let mut sources: [&[f32]; 12] = [&[]; 12];
            for (r, source) in sources.iter_mut().enumerate().take(tile.rows) {
                *source = self.queries.query(queries.first + (at + r) / group, (at + r) % group);
            }
            let (rows, scale) = (&sources[..tile.rows], self.options.scale);
            match tile.width {
                1 => pack::<1>(self.level, rows, scale, packed),
                2 => pack::<2>(self.level, rows, scale, packed),
                3 => pack::<3>(self.level, rows, scale, packed),
                4 => pack::<4>(self.level, rows, scale, packed),
                6 => pack::<6>(self.level, rows, scale, packed),
                8 => pack::<8>(self.level, rows, scale, packed),
                _ => pack::<12>(self.level, rows, scale, packed),
            }
            at += tile.rows;
        }
        if self.options.arithmetic == Arithmetic::Rounded {
            self.pack_rounded(workspace, queries);
        }
        if self.quantised && self.fused() && self.level.int8_dot() {
            let Workspace { int8, queries, .. } = workspace;
            int8.clear();
            let (mut at, mut rest) = (0, &queries[..]);
            while at < total {
                let tile = self.tile(at, total);
                let (packed, later) = rest.split_at(tile.width * head_dim);
                int8.push(self.level, packed, tile.width);
                (at, rest) = (at + tile.rows, later);
            }
        }
    }

    /// The tile whose first row is row `first` of `total`.
    pub(crate) fn tile(&self, first: usize, total: usize) -> Tile {
        let integers = self.fused() && self.quantised;
        let most = if integers {
            self.level.integer_rows()
        } else {
            self.level.tile_rows()
        };
        let rows = (total - first).min(most);
        let width = tile_width(self.level, rows, integers);
        Tile { first, rows, width }
    }
}
