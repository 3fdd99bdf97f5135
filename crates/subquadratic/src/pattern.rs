use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use riffle_attention::{Selection, Span};

use crate::SubquadraticError;

/// The four edge families of a query at position `i`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseAttentionConfig {
    /// Reads `i - window..=i`; without causality, also as many positions after `i`.
    pub window: usize,
    /// Tokens per landmark block.
    pub block_size: usize,
    /// Positions that every query reads.
    pub global_tokens: Vec<usize>,
    /// True if a query reads only positions up to its own.
    pub causal: bool,
    /// Reads `i − 2ᵏ` (and `i + 2ᵏ` without causality).
    pub use_log_stride: bool,
    /// Reads means of whole blocks at distances of 2ᵏ blocks, if no token of the block is read in full.
    pub use_landmarks: bool,
    /// No effect: keys are always visited in ascending order. Kept for existing callers.
    pub sort_candidates: bool,
}

impl Default for SparseAttentionConfig {
    fn default() -> Self {
        Self {
            window: 128,
            block_size: 64,
            global_tokens: vec![0],
            causal: true,
            use_log_stride: true,
            use_landmarks: true,
            sort_candidates: false,
        }
    }
}

/// Distances 1, 2, 4, … below `limit`.
fn powers(limit: usize) -> impl Iterator<Item = usize> + Clone {
    (0..usize::BITS)
        .map(|k| 1usize << k)
        .take_while(move |stride| *stride < limit)
}

impl SparseAttentionConfig {
    pub(crate) fn check(&self) -> Result<(), SubquadraticError> {
        if self.block_size == 0 {
            return Err(SubquadraticError::Setting {
                what: "block_size must be at least 1",
            });
        }
        Ok(())
    }

    /// Tiles of queries that share their candidate landmarks, ascending and covering `0..seq`.
    pub(crate) fn tiles(&self, seq: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let size = self.block_size;
        // With causality, the last whole block changes one row before a block begins.
        let shift = usize::from(self.causal);
        let mut next = 0;
        core::iter::from_fn(move || {
            if next >= seq {
                return None;
            }
            let block = (next + shift) / size;
            let end = block
                .saturating_add(1)
                .saturating_mul(size)
                .saturating_sub(shift)
                .clamp(next + 1, seq);
            let tile = next..end;
            next = end;
            Some(tile)
        })
    }

    /// Keys that a tile of [`tiles`](Self::tiles) reads.
    pub(crate) fn selection(&self, tile: Range<usize>, seq: usize) -> Selection {
        let globals = self.global_tokens.iter().filter(|token| **token < seq);
        let mut selection = Selection::from_spans(globals.map(|token| Span::new(*token, token + 1)))
            .with_row_window(self.window.saturating_add(1));
        if self.use_log_stride {
            selection = selection.with_diagonals(powers(seq).filter(|stride| *stride > self.window));
        }
        if self.use_landmarks {
            let blocks = self.landmark_blocks(tile.start, seq).into_iter();
            selection = selection.with_summaries(blocks.map(|block| self.block_span(block, seq)));
        }
        selection
    }

    /// The tokens of a landmark block.
    pub(crate) fn block_span(&self, block: usize, seq: usize) -> Span {
        let start = block * self.block_size;
        Span::new(start, start.saturating_add(self.block_size).min(seq))
    }

    /// Blocks whose landmarks the query may read, ascending: the neighbours of the last whole block (without
    /// causality, of the query's own block), and the blocks at distances 2ᵏ from it.
    pub(crate) fn landmark_blocks(&self, query: usize, seq: usize) -> Vec<usize> {
        let blocks = seq.div_ceil(self.block_size);
        let available = if self.causal {
            (query + 1) / self.block_size
        } else {
            blocks
        };
        if available == 0 {
            return Vec::new();
        }
        let own = query / self.block_size;
        let pivot = if self.causal {
            available - 1
        } else {
            own.min(blocks - 1)
        };
        let mut found: Vec<usize> = (pivot.saturating_sub(1)..=(pivot + 1).min(available - 1)).collect();
        if self.use_log_stride {
            for stride in powers(blocks) {
                found.extend(pivot.checked_sub(stride));
                if !self.causal {
                    found.extend(Some(pivot + stride).filter(|block| *block < blocks));
                }
            }
        }
        if !self.causal {
            found.retain(|block| *block != own);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Candidate edges of one head over `seq` queries: for each query, distinct tokens plus landmark blocks.
    pub(crate) fn edges(&self, seq: usize) -> usize {
        let mut total = 0;
        let mut others = Vec::new();
        for query in 0..seq {
            let start = query.saturating_sub(self.window);
            let end = if self.causal {
                query
            } else {
                query.saturating_add(self.window).min(seq - 1)
            };
            others.clear();
            let globals = self.global_tokens.iter().copied();
            others.extend(globals.filter(|token| *token < seq && (!self.causal || *token <= query)));
            if self.use_log_stride {
                for stride in powers(seq) {
                    others.extend(query.checked_sub(stride));
                    if !self.causal {
                        others.extend(Some(query + stride).filter(|key| *key < seq));
                    }
                }
            }
            others.retain(|token| !(start..=end).contains(token));
            others.sort_unstable();
            others.dedup();
            total += end - start + 1 + others.len();
            if self.use_landmarks {
                total += self.landmark_blocks(query, seq).len();
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_sequence_and_share_their_landmarks() {
        for causal in [true, false] {
            for block_size in [1, 2, 7, 64, 1000] {
                for seq in [0, 1, 63, 64, 65, 200] {
                    let config = SparseAttentionConfig {
                        causal,
                        block_size,
                        ..Default::default()
                    };
                    let mut next = 0;
                    for tile in config.tiles(seq) {
                        assert_eq!(tile.start, next);
                        assert!(tile.end > tile.start);
                        next = tile.end;
                        let shared = config.landmark_blocks(tile.start, seq);
                        for query in tile {
                            assert_eq!(config.landmark_blocks(query, seq), shared);
                        }
                    }
                    assert_eq!(next, seq);
                }
            }
        }
    }
}
