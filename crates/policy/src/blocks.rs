//! Block-sparse patterns: for each block of queries, the blocks of keys it reads.

use riffle_attention::{QueryTile, Selection, Span};

/// The key blocks of consecutive query blocks. Blocks begin at multiples of `block` tokens.
#[derive(Clone)]
pub(crate) struct BlockRows {
    pub(crate) block: usize,
    /// Number of the first query block.
    pub(crate) first: usize,
    /// The key blocks of each query block, ascending.
    pub(crate) chosen: Vec<Vec<usize>>,
}

impl BlockRows {
    /// What a tile reads: the key blocks of every query block that holds one of its queries.
    pub(crate) fn select(&self, tile: &QueryTile<'_>, tokens: usize) -> Selection {
        let from = tile.start / self.block - self.first;
        let to = (tile.start + tile.rows).div_ceil(self.block) - self.first;
        let blocks = self.chosen[from..to.max(from)].iter().flatten();
        Selection::from_spans(blocks.map(|number| block_span(*number, self.block, tokens)))
    }
}

/// The tokens of a block, cut at the end of the sequence.
pub(crate) fn block_span(number: usize, block: usize, tokens: usize) -> Span {
    Span::new(number * block, ((number + 1) * block).min(tokens))
}

/// Numbers of the blocks that hold the tile's queries.
pub(crate) fn query_blocks(tile: &QueryTile<'_>, block: usize) -> std::ops::Range<usize> {
    tile.start / block..(tile.start + tile.rows).div_ceil(block)
}
