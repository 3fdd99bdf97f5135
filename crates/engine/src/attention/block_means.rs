//! Means of blocks of keys and values, which the CPU computes as blocks fill, for policies whose selections name
//! summaries.

use rayon::prelude::*;
use riffle_attention::{
    AttendError, LANES, PageView, Partial, Plane, PlaneMut, Span, SummaryView, attend_summaries, read_keys, write_keys,
    write_values,
};
use riffle_kv::KvCache;
use riffle_policy::Policy;

use crate::EngineError;
use crate::attention::by_head::FollowsTokens;
use crate::attention::{ByHead, Chosen, Chunk, Heads, reading};

/// The means of a sequence, by the number of tokens in a block.
pub(crate) type BlockMeans = ByHead<HeadMeans>;

/// Means of the complete blocks of one KV head.
pub(crate) struct HeadMeans {
    block: usize,
    key_width: usize,
    value_width: usize,
    blocks: Vec<Span>,
    /// A page's layout of keys, `[blocks / 16, key_width, 16]`.
    keys: Vec<f32>,
    /// `[blocks, value_width]`
    values: Vec<f32>,
    /// Sums of the incomplete block, `[key_width]` of keys, then `[value_width]` of values.
    sums: Vec<f32>,
    /// Number of tokens in the sums.
    counted: usize,
}

impl FollowsTokens for HeadMeans {
    fn tokens(&self) -> usize {
        self.blocks.len() * self.block + self.counted
    }

    fn truncate(&mut self, tokens: usize) {
        // A block that is cut in the middle is summed again.
        self.begin();
        let blocks = (tokens / self.block).min(self.blocks.len());
        self.blocks.truncate(blocks);
        self.keys.truncate(blocks.next_multiple_of(LANES) * self.key_width);
        self.values.truncate(blocks.next_multiple_of(LANES) * self.value_width);
    }
}

impl HeadMeans {
    fn new(block: usize, heads: &Heads) -> Self {
        Self {
            block,
            key_width: heads.key_width,
            value_width: heads.value_width,
            blocks: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            sums: vec![0.0; heads.key_width + heads.value_width],
            counted: 0,
        }
    }

    /// Adds the tokens below `tokens` of pages in order; a mean is stored when its block is complete. Sums run by
    /// position, independent of page boundaries.
    pub(crate) fn extend(&mut self, pages: &[PageView<'_>], tokens: usize) -> Result<(), AttendError> {
        let (key_width, value_width) = (self.key_width, self.value_width);
        let mut rows = Vec::new();
        for page in pages {
            while self.tokens() < (page.start + page.tokens).min(tokens) {
                let first = self.tokens() - page.start;
                let count = (self.block - self.counted).min(page.tokens.min(tokens - page.start) - first);
                rows.resize(count * key_width, 0.0);
                read_keys(&page.keys, key_width, first, count, &mut rows, key_width)?;
                add(&mut self.sums[..key_width], &rows);
                rows.resize(count * value_width, 0.0);
                page.read_values([key_width, value_width], first, count, &mut rows)?;
                add(&mut self.sums[key_width..], &rows);
                self.counted += count;
                if self.counted == self.block {
                    self.close()?;
                }
            }
        }
        Ok(())
    }

    /// Turns the incomplete block into a mean.
    fn close(&mut self) -> Result<(), AttendError> {
        let (key_width, value_width, number) = (self.key_width, self.value_width, self.blocks.len());
        // Planes have whole stripes.
        let blocks = (number + 1).next_multiple_of(LANES);
        self.keys.resize(blocks * key_width, 0.0);
        self.values.resize(blocks * value_width, 0.0);
        let factor = 1.0 / self.block as f32;
        self.sums.iter_mut().for_each(|sum| *sum *= factor);
        let (key, value) = self.sums.split_at(key_width);
        write_keys(&mut PlaneMut::F32(&mut self.keys), key_width, number, 1, key, key_width)?;
        write_values(
            &mut PlaneMut::F32(&mut self.values),
            value_width,
            number,
            1,
            value,
            value_width,
        )?;
        self.blocks
            .push(Span::new(number * self.block, (number + 1) * self.block));
        self.begin();
        Ok(())
    }

    fn begin(&mut self) {
        self.sums.fill(0.0);
        self.counted = 0;
    }

    pub(crate) fn view(&self) -> SummaryView<'_> {
        SummaryView {
            head_dim: self.key_width,
            blocks: &self.blocks,
            keys: Plane::F32(&self.keys),
            values: Plane::F32(&self.values),
        }
    }
}

fn add(sums: &mut [f32], rows: &[f32]) {
    for row in rows.chunks_exact(sums.len()) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
}

/// Adds completed blocks for heads whose policies read block means.
pub(crate) fn extend_means(
    cache: &mut KvCache,
    means: &mut BlockMeans,
    policies: &[Policy],
    chunk: &Chunk<'_>,
) -> Result<(), EngineError> {
    for (context, policy) in chunk.contexts.iter().zip(policies) {
        let Some(block) = policy.summary_tokens() else { continue };
        let place = [chunk.layer, context.kv_head, block];
        let head = means.get_or(place, || HeadMeans::new(block, &chunk.heads));
        let wanted = Span::new(head.tokens(), context.tokens);
        reading::show(cache, context, wanted, |pages| Ok(head.extend(pages, context.tokens)?))?;
    }
    Ok(())
}

/// Reads the block means in selections.
pub(crate) fn attend_means(
    means: &BlockMeans,
    policies: &[Policy],
    chosen: &Chosen<'_>,
    partials: &mut [Partial],
) -> Result<(), AttendError> {
    let chunk = &chosen.chunk;
    let tiles = chunk.tiles.par_iter().zip(&chosen.selections).zip(partials);
    tiles.try_for_each(|((tile, selection), partial)| {
        let block = policies[tile.kv_head].summary_tokens();
        match block.and_then(|block| means.get([chunk.layer, tile.kv_head, block])) {
            Some(means) => attend_summaries(&tile.queries, &means.view(), selection, &chunk.options, partial),
            None => Ok(()),
        }
    })
}
