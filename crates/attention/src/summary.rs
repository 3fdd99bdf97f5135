use alloc::vec::Vec;

use crate::attend::{check, with_workspace};
use crate::call::{Call, Output};
use crate::format::check_head_dim;
use crate::partial::Sums;
use crate::simd::Level;
use crate::visible::Summaries;
use crate::workspace::Workspace;
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

/// Scratch of [`attend_summaries`], by block.
#[derive(Debug, Default)]
pub(crate) struct SummaryScratch {
    /// Tokens that the mean replaces; 0 for a mean that is not read.
    tokens: Vec<usize>,
    /// ln of these numbers.
    weights: Vec<f32>,
    logarithms: Logarithms,
}

/// ln of whole numbers, each computed once.
#[derive(Debug, Default)]
struct Logarithms {
    /// NaN where the number was not asked for yet.
    known: Vec<f32>,
}

/// Means for a call with their selection.
struct Means<'a> {
    kv: KvView<'a>,
    blocks: &'a [Span],
    disjoint: bool,
    selection: &'a Selection,
    options: &'a AttendOptions<'a>,
}

/// Adds the selection's block means to `partial`. A mean that replaces n tokens weighs as n keys: ln n is added to its
/// logit.
///
/// A row sees a mean only when its block lies wholly before the row's position. If the row reads no token of the block,
/// the mean replaces all of them. If the row reads some, the mean is hidden, or replaces the unread tokens
/// ([`Selection::summarizing_parts`]). So nothing is counted twice. Call it once, even if several calls of
/// [`attend`](crate::attend) read the pages.
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
    let means = Means {
        kv,
        blocks,
        disjoint: blocks.windows(2).all(|pair| pair[0].end <= pair[1].start),
        selection,
        options,
    };
    let (value_dim, sums) = (partial.head_dim(), partial.sums());
    with_workspace(|workspace| {
        let mut scratch = core::mem::take(&mut workspace.summaries);
        if selection.summarizes_parts() || queries.rows == 1 {
            means.attend_row_by_row(workspace, &mut scratch, queries, (value_dim, sums));
        } else {
            scratch.open_for_all(&means);
            means.attend(workspace, &scratch, queries, (value_dim, sums));
        }
        workspace.summaries = scratch;
    });
    Ok(())
}

impl Means<'_> {
    /// Rows that read other tokens of a block weigh its mean differently.
    fn attend_row_by_row(
        &self,
        workspace: &mut Workspace,
        scratch: &mut SummaryScratch,
        queries: &QueryTile,
        (value_dim, sums): (usize, Sums),
    ) {
        let group = queries.group;
        for row in 0..queries.rows {
            scratch.open_for(self, queries.start + row);
            let queries = QueryTile {
                data: &queries.data[row * queries.row_stride..],
                rows: 1,
                start: queries.start + row,
                ..*queries
            };
            let heads = row * group..(row + 1) * group;
            let sums = Sums {
                m: &mut sums.m[heads.clone()],
                l: &mut sums.l[heads.clone()],
                o: &mut sums.o[heads.start * value_dim..heads.end * value_dim],
            };
            self.attend(workspace, scratch, &queries, (value_dim, sums));
        }
    }

    fn attend(
        &self,
        workspace: &mut Workspace,
        scratch: &SummaryScratch,
        queries: &QueryTile,
        (value_dim, sums): (usize, Sums),
    ) {
        let visible = Summaries {
            selection: self.selection,
            causal: self.options.causal,
            blocks: self.blocks,
            disjoint: self.disjoint,
            tokens: &scratch.tokens,
            weights: &scratch.weights,
            is_of_row: queries.rows == 1,
        };
        let call = Call {
            level: Level::best(),
            queries: *queries,
            kv: self.kv,
            value_dim,
            quantised: self.kv.is_quantised(),
            visible: &visible,
            options: self.options,
            range: Span::new(0, usize::MAX),
            only_part: None,
        };
        call.run(workspace, Output::Partial(sums));
    }
}

impl SummaryScratch {
    /// Opens the blocks that rows may read whole.
    fn open_for_all(&mut self, means: &Means<'_>) {
        let of_block = |block: &Span| {
            let named = means.selection.summaries().binary_search(block).is_ok();
            if named && !means.selection.spans_touch(*block) {
                block.len()
            } else {
                0
            }
        };
        self.tokens.clear();
        self.tokens.extend(means.blocks.iter().map(of_block));
        self.weigh();
    }

    /// Opens the blocks that the row at `query` reads.
    fn open_for(&mut self, means: &Means<'_>, query: usize) {
        let (blocks, selection, causal) = (means.blocks, means.selection, means.options.causal);
        self.tokens.clear();
        if means.disjoint {
            self.tokens.extend(rest_of_spans(blocks, selection));
            let window = selection.window_of(query, causal);
            let in_window = blocks.partition_point(|block| block.end <= window.start)
                ..blocks.partition_point(|block| block.start < window.end);
            // From the row's own block on, and with other reads of the row.
            let from_own = blocks.partition_point(|block| block.end <= query)..blocks.len();
            let keys = selection.single_keys(query, causal);
            let with_keys = keys.map(|key| blocks.partition_point(|block| block.end <= key));
            for place in in_window.chain(from_own).chain(with_keys) {
                if let Some(tokens) = self.tokens.get_mut(place).filter(|tokens| **tokens > 0) {
                    *tokens = selection.summarized(query, blocks[place], causal);
                }
            }
        } else {
            let named = |block: &Span| selection.summaries().binary_search(block).is_ok();
            let of_block = |block: &Span| {
                if named(block) {
                    selection.summarized(query, *block, causal)
                } else {
                    0
                }
            };
            self.tokens.extend(blocks.iter().map(of_block));
        }
        self.weigh();
    }

    fn weigh(&mut self) {
        self.weights.clear();
        let logarithms = &mut self.logarithms;
        self.weights
            .extend(self.tokens.iter().map(|tokens| logarithms.of(*tokens)));
    }
}

impl Logarithms {
    /// ln of `number`; 0 for 0.
    fn of(&mut self, number: usize) -> f32 {
        /// Larger numbers are not kept.
        const MOST: usize = 4096;
        if number > MOST {
            return crate::math::ln(number as f32);
        }
        if number >= self.known.len() {
            self.known.resize(number + 1, f32::NAN);
        }
        let known = &mut self.known[number];
        if known.is_nan() {
            *known = crate::math::ln(number.max(1) as f32);
        }
        *known
    }
}

/// For each of the disjoint blocks, the tokens that its mean replaces if rows read spans alone.
fn rest_of_spans(blocks: &[Span], selection: &Selection) -> impl Iterator<Item = usize> {
    let mut names = selection.summaries().iter().peekable();
    let mut spans = selection.spans().iter().peekable();
    blocks.iter().map(move |block| {
        while names.next_if(|name| *name < block).is_some() {}
        if names.next_if_eq(&block).is_none() {
            return 0;
        }
        while spans.next_if(|span| span.end <= block.start).is_some() {}
        let inside = spans.clone().take_while(|span| span.start < block.end);
        selection.replaced(*block, inside.map(|span| span.intersect(block).len()).sum())
    })
}
