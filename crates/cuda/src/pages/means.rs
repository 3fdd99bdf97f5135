//! Attention to block means, which the device keeps for the whole sequence.

use riffle_attention::{Selection, Span};
use riffle_device::{LayerPages, PagedTile, SummaryKind};
use riffle_kv::CacheShape;

use super::heads_of;
use super::list::DeviceList;
use super::summaries::Summaries;
use crate::ops::{self, AttentionOptions, MeanReads, Outputs, Queries, Reads};
use crate::{CudaError, Gpu, Region, Stream};

/// Blocks per word of a bit set.
const WORD: usize = u64::BITS as usize;
/// Words of one part of a call with few rows.
const PART_WORDS: usize = 2;
const MOST_PARTS: usize = 16;

/// The means of every layer.
pub(super) struct BlockMeans {
    pub(super) summaries: Summaries,
    // u64 [tiles, words]
    named: DeviceList,
}

impl BlockMeans {
    pub(super) fn new(gpu: &Gpu, shape: &CacheShape, bytes: u64) -> Result<Self, CudaError> {
        Ok(Self {
            summaries: Summaries::new(gpu, SummaryKind::Means, shape, bytes)?,
            named: DeviceList::new(gpu)?,
        })
    }
}

/// Words of a bit set of all blocks that end before the last row of the tiles.
fn words_of(tiles: &[PagedTile<'_>], block: usize) -> usize {
    let ends = tiles.iter().map(|tile| tile.start + tile.rows);
    (ends.max().unwrap_or(0) / block.max(1)).div_ceil(WORD)
}

/// A call that reads block means.
pub(super) struct MeansCall<'a> {
    pub(super) tiles: &'a [PagedTile<'a>],
    /// Outputs to which the call adds the means.
    pub(super) outputs: Outputs<'a>,
    pub(super) queries: Queries<'a>,
    /// Reads of the tiles.
    pub(super) reads: &'a Reads,
    /// Number of parts.
    pub(super) workspace: [Region<'a>; 2],
    pub(super) parts: usize,
}

impl BlockMeans {
    /// Number of parts of the means for a call of few rows; one block of the device computes each part.
    pub(super) fn parts(&self, of: &LayerPages<'_>, tiles: &[PagedTile<'_>]) -> usize {
        let block = self.summaries.of_layer(of).map_or(0, |means| means.block_tokens);
        words_of(tiles, block).div_ceil(PART_WORDS).clamp(1, MOST_PARTS)
    }

    /// Adds the means in the tiles' selections. The means of all tokens must be known.
    pub(super) fn attend(
        &mut self,
        stream: &Stream,
        of: &LayerPages<'_>,
        call: &MeansCall<'_>,
        options: &AttentionOptions<'_>,
    ) -> Result<(), CudaError> {
        let Some(means) = self.summaries.of_layer(of) else {
            return Ok(());
        };
        let (tiles, shape) = (call.tiles, self.summaries.shape());
        let words = words_of(tiles, means.block_tokens);
        let mut bits = Vec::with_capacity(tiles.len() * words);
        for tile in tiles {
            let (known, end) = (self.summaries.known(of)[tile.kv_head], tile.start + tile.rows);
            if tile.selection.summarizes_parts() {
                return Err(CudaError::Unsupported {
                    what: "means of parts of blocks",
                    value: means.block_tokens,
                    requirement: "read on the CPU",
                });
            }
            if !tile.selection.summaries().is_empty() && known < end {
                return Err(CudaError::Mismatch {
                    what: "tokens in means of blocks",
                    expected: end,
                    found: known,
                });
            }
            named_blocks(tile.selection, means.block_tokens, words, &mut bits);
        }
        if bits.iter().all(|bits| *bits == 0) {
            return Ok(());
        }
        let MeansCall {
            outputs,
            queries,
            reads,
            workspace,
            ..
        } = call;
        let read = MeanReads {
            reads,
            means,
            kv_heads: heads_of(&shape).kv_heads,
            formats: [shape.key_format, shape.value_format],
            named: self.named.set(stream, &bits)?,
            words,
            splits: call.parts,
        };
        ops::attend_means(stream, outputs, *workspace, queries, &read, options)
    }
}

/// A bit for each of the first 64 · `words` blocks of `block` tokens. It is set if the selection names the block's mean
/// and its spans read no token of the block.
fn named_blocks(selection: &Selection, block: usize, words: usize, bits: &mut Vec<u64>) {
    let first = bits.len();
    bits.resize(first + words, 0);
    let mut spans = selection.spans().iter().peekable();
    for named in selection.summaries() {
        let number = named.start / block;
        if number / WORD >= words || *named != Span::new(number * block, (number + 1) * block) {
            continue;
        }
        while spans.next_if(|span| span.end <= named.start).is_some() {}
        if spans.peek().is_none_or(|span| span.start >= named.end) {
            bits[first + number / WORD] |= 1 << (number % WORD);
        }
    }
}
