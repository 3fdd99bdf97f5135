//! Block means of a sequence that the CPU keeps and reads, for policies whose selections name summaries.

use rayon::prelude::*;
use riffle_attention::{AttendError, AttendOptions, Partial, Selection, Span, attend_summaries};
use riffle_kv::KvCache;
use riffle_policy::Policy;

use crate::EngineError;
use crate::attention::block_means::BlockMeans;
use crate::attention::chunk::Chunk;
use crate::attention::reading;

/// Takes in the blocks that have filled, of heads whose policies read block means.
pub(crate) fn extend_means(
    cache: &mut KvCache,
    means: &mut BlockMeans,
    policies: &[Policy],
    chunk: &Chunk<'_>,
) -> Result<(), EngineError> {
    for (context, policy) in chunk.contexts.iter().zip(policies) {
        let Some(block) = policy.summary_tokens() else { continue };
        let head = means.head_mut(chunk.layer, context.kv_head, block, &chunk.heads);
        let wanted = Span::new(head.tokens(), context.tokens);
        reading::show(cache, context, wanted, |pages| Ok(head.extend(pages, context.tokens)?))?;
    }
    Ok(())
}

/// Reads the block means that selections name.
pub(crate) fn attend_means(
    means: &BlockMeans,
    policies: &[Policy],
    chunk: &Chunk<'_>,
    selections: &[Selection],
    options: &AttendOptions<'_>,
    partials: &mut [Partial],
) -> Result<(), AttendError> {
    let tiles = chunk.tiles.par_iter().zip(selections).zip(partials);
    tiles.try_for_each(|((tile, selection), partial)| {
        let block = policies[tile.kv_head].summary_tokens();
        match block.and_then(|block| means.get(chunk.layer, tile.kv_head, block)) {
            Some(means) => attend_summaries(&tile.queries, &means.view(), selection, options, partial),
            None => Ok(()),
        }
    })
}
