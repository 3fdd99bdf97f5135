//! Block-sparse patterns: for each block of queries, the blocks of keys it reads.

use riffle_attention::{QueryTile, Selection, Span};

/// The key blocks of consecutive query blocks. Blocks begin at multiples of `block` tokens.
#[derive(Clone)]
pub struct BlockRows {
    /// Tokens in a block, at least 1.
    pub block: usize,
    /// Number of the first query block.
    pub first: usize,
    /// The key blocks that each query block reads, ascending.
    pub chosen: Vec<Vec<usize>>,
}

impl BlockRows {
    /// Selects for a tile the key blocks of every query block that overlaps it. Query blocks outside these rows read
    /// nothing.
    pub fn select(&self, tile: &QueryTile<'_>, tokens: usize) -> Selection {
        let numbers = query_blocks(tile, self.block);
        let from = numbers.start.saturating_sub(self.first).min(self.chosen.len());
        let to = numbers.end.saturating_sub(self.first).clamp(from, self.chosen.len());
        let blocks = self.chosen[from..to].iter().flatten();
        Selection::from_spans(blocks.map(|number| block_span(*number, self.block, tokens)))
    }
}

/// The tokens of a block, cut at the end of the sequence.
pub fn block_span(number: usize, block: usize, tokens: usize) -> Span {
    Span::new(number * block, ((number + 1) * block).min(tokens))
}

/// Numbers of the blocks that contain the tile's queries.
pub fn query_blocks(tile: &QueryTile<'_>, block: usize) -> std::ops::Range<usize> {
    tile.start / block..(tile.start + tile.rows).div_ceil(block)
}
