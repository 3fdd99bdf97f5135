//! Block-sparse patterns: for each block of queries, the blocks of keys it reads.

use riffle_attention::{QueryTile, Selection, Span, exponentiate};

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

/// The key blocks of consecutive query blocks, while peaks are found.
pub(crate) struct PeakBlocks {
    block: usize,
    first: usize,
    /// `[query block][key block]`
    read: Vec<Vec<bool>>,
}

impl PeakBlocks {
    /// The blocks of a chunk's queries. `always(query_block, key_block)` is true for blocks that are read without a
    /// peak.
    pub(crate) fn new(chunk: &QueryTile<'_>, block: usize, always: impl Fn(usize, usize) -> bool) -> Self {
        let numbers = query_blocks(chunk, block);
        Self {
            block,
            first: numbers.start,
            read: numbers
                .map(|own| (0..=own).map(|other| always(own, other)).collect())
                .collect(),
        }
    }

    /// Adds the peaks of the query at position `token`. `logits` are the largest of each block up to the query's own. A
    /// peak is a block with a share of at least `peak` of the softmax over them. The logits are overwritten.
    pub(crate) fn add(&mut self, token: usize, logits: &mut [f32], peak: f32) {
        let threshold = f64::from(peak) * exponentiate(logits);
        for (read, weight) in self.read[token / self.block - self.first].iter_mut().zip(logits) {
            *read |= f64::from(*weight) >= threshold;
        }
    }

    /// Adds the blocks in which the query at position `token` has a logit of at least `lowest`. `logits` are the largest
    /// of each unit, with `units` in a block.
    pub(crate) fn mark(&mut self, token: usize, logits: &[f32], (units, lowest): (usize, f32)) {
        mark_blocks(&mut self.read[token / self.block - self.first], logits, (units, lowest));
    }

    pub(crate) fn rows(self) -> BlockRows {
        let chosen = |read: &Vec<bool>| (0..read.len()).filter(|block| read[*block]).collect();
        BlockRows {
            block: self.block,
            first: self.first,
            chosen: self.read.iter().map(chosen).collect(),
        }
    }
}

/// Marks the blocks, of `units` logits each, with a logit of at least `lowest`.
pub(crate) fn mark_blocks(read: &mut [bool], logits: &[f32], (units, lowest): (usize, f32)) {
    if units == 1 {
        // Without an inner loop the compiler compares many logits together.
        read.iter_mut()
            .zip(logits)
            .for_each(|(read, logit)| *read |= *logit >= lowest);
        return;
    }
    for (read, logits) in read.iter_mut().zip(logits.chunks(units)) {
        *read |= logits.iter().any(|logit| *logit >= lowest);
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
