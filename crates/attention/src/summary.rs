use crate::attend::{check, with_workspace};
use crate::call::{Call, Output};
use crate::format::check_head_dim;
use crate::simd::Level;
use crate::visible::Summaries;
use crate::{AttendError, AttendOptions, KvView, PageView, Partial, Plane, QueryTile, Selection, Span};

/// Block means of one KV head: slot `n` of the planes is the mean of the tokens of `blocks[n]`.
#[derive(Debug, Clone, Copy)]
pub struct SummaryView<'a> {
    /// Key width: elements of one mean key. A mean value has the value width, as in [`KvView`].
    pub head_dim: usize,
    /// The tokens that each mean replaces, sorted by start. Disjoint blocks are fastest.
    pub blocks: &'a [Span],
    /// Mean keys in the layout of a page's keys.
    pub keys: Plane<'a>,
    /// Mean values in the layout of a page's values.
    pub values: Plane<'a>,
}

/// Adds the selection's block means to `partial`. A mean of n tokens weighs as n keys: ln n is added to its logit.
///
/// A row sees a mean only when its block lies wholly before the row's position and the row reads no token of the block
/// in full. So nothing is counted twice. Call it once, even if several calls of [`attend`](crate::attend) read the
/// pages.
///
/// # Errors
/// As [`attend`](crate::attend); also blocks that are not sorted.
pub fn attend_summaries(
    queries: &QueryTile,
    summaries: &SummaryView,
    selection: &Selection,
    options: &AttendOptions,
    partial: &mut Partial,
) -> Result<(), AttendError> {
    check_head_dim(summaries.head_dim)?;
    let page = [PageView {
        start: 0,
        tokens: summaries.blocks.len(),
        keys: summaries.keys,
        values: summaries.values,
    }];
    let kv = KvView {
        head_dim: summaries.head_dim,
        pages: &page,
    };
    check(queries, &kv, options, partial)?;
    let blocks = summaries.blocks;
    if let Some(pair) = blocks.windows(2).find(|pair| pair[1].start < pair[0].start) {
        return Err(AttendError::PageOrder { start: pair[1].start });
    }
    if selection.summaries().is_empty() {
        return Ok(());
    }
    with_workspace(|workspace| {
        let (mut open, mut weights) = workspace.take_summary_scratch();
        open.clear();
        weights.clear();
        for block in blocks {
            let named = selection.summaries().binary_search(block).is_ok();
            open.push(named && !selection.spans_touch(*block));
            weights.push(crate::math::ln(block.len().max(1) as f32));
        }
        let visible = Summaries {
            selection,
            causal: options.causal,
            blocks,
            disjoint: blocks.windows(2).all(|pair| pair[0].end <= pair[1].start),
            open: &open,
            weights: &weights,
        };
        let range = Span::new(0, usize::MAX);
        let call = Call {
            level: Level::best(),
            queries: *queries,
            kv,
            value_dim: partial.head_dim(),
            quantised: kv.is_quantised(),
            visible: &visible,
            options,
            range,
            only_part: None,
        };
        call.run(workspace, Output::Partial(partial.sums()));
        workspace.return_summary_scratch(open, weights);
    });
    Ok(())
}
