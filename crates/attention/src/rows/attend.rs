use alloc::vec::Vec;

use super::in_place::InPlace;
use super::view::{Run, keys_of, values_of};
use crate::attend::with_workspace;
use crate::block::aligned;
use crate::call::{Call, Output};
use crate::format::{Bf16, Element, F16, F32};
use crate::kernel::{KEY_BLOCK, StripeRows, WidenRows};
use crate::parts::part_of;
use crate::selection::{diagonal_spans, merge_spans};
use crate::simd::Level;
use crate::visible::{Tokens, Visible};
use crate::workspace::Workspace;
use crate::{
    Arithmetic, AttendError, AttendOptions, KvView, PageView, Partial, Plane, QueryTile, RowView, Rows, Selection, Span,
};

/// One tile of queries over one KV head of a row-major cache.
#[derive(Debug, Clone, Copy)]
pub struct RowJob<'a> {
    /// The queries.
    pub queries: QueryTile<'a>,
    /// Keys and values of the tile.
    pub kv: RowView<'a>,
    /// Tokens that the tile reads.
    pub selection: &'a Selection,
}

/// [`attend`](crate::attend) over a cache with row-major keys and values, such as another engine's.
///
/// In [`Arithmetic::Fused`], for generated tokens, rows are read in place and nothing is copied. In the other
/// arithmetics, for prompts, each block of 128 keys is interleaved into stripes once for all rows of the tile. The
/// scratch for it stays in the processor's cache. Outputs then have the same bits as [`attend`](crate::attend) over the
/// same tokens in f32 planes of one page. Only selections with diagonals differ, because sums are added in another
/// order. No second cache is made either way.
///
/// A row's result does not depend on the other rows of the tile. Values a row does not see must be finite. Summaries
/// and column masses need pages in Riffle's own layout.
///
/// # Errors
/// Shapes that disagree, slices that are too short, pages out of order or of mixed formats.
pub fn attend_rows(
    queries: &QueryTile,
    kv: &RowView,
    selection: &Selection,
    options: &AttendOptions,
    partial: &mut Partial,
) -> Result<(), AttendError> {
    check(queries, kv, options, partial)?;
    let job = RowJob {
        queries: *queries,
        kv: *kv,
        selection,
    };
    attend_at(Level::best(), &job, options, None, partial);
    Ok(())
}

/// Runs every job, adding job `n` to `partials[n]`.
///
/// With the feature `parallel` jobs are spread over rayon's threads. In [`Arithmetic::Fused`] each 4096 positions of a
/// long cache are attended to separately and merged in order. A row's result does not depend on the number of threads.
///
/// # Errors
/// As [`attend_rows`]; also when the numbers of jobs and partials differ.
pub fn attend_rows_batch(
    jobs: &[RowJob],
    options: &AttendOptions,
    partials: &mut [Partial],
) -> Result<(), AttendError> {
    if jobs.len() != partials.len() {
        return Err(AttendError::Mismatch {
            what: "numbers of jobs and partials",
            expected: jobs.len(),
            found: partials.len(),
        });
    }
    for (job, partial) in jobs.iter().zip(partials.iter()) {
        check(&job.queries, &job.kv, options, partial)?;
    }
    let mut pieces = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let parts = match options.arithmetic {
            Arithmetic::Fused => parts_of(&job.kv),
            _ => Vec::new(),
        };
        match parts.len() {
            0 | 1 => pieces.push((index, None)),
            _ => pieces.extend(parts.into_iter().map(|part| (index, Some(part)))),
        }
    }
    let value_dims: Vec<usize> = partials.iter().map(Partial::head_dim).collect();
    let run = |(index, part): &(usize, Option<usize>)| {
        let job = &jobs[*index];
        let mut partial = Partial::new(job.queries.rows, job.queries.group, value_dims[*index]);
        attend_at(Level::best(), job, options, *part, &mut partial);
        partial
    };
    #[cfg(feature = "parallel")]
    let results: Vec<Partial> = {
        use rayon::prelude::*;
        pieces.par_iter().with_max_len(1).map(run).collect()
    };
    #[cfg(not(feature = "parallel"))]
    let results: Vec<Partial> = pieces.iter().map(run).collect();
    for ((index, _), result) in pieces.iter().zip(&results) {
        partials[*index].merge(result)?;
    }
    Ok(())
}

fn check(queries: &QueryTile, kv: &RowView, options: &AttendOptions, partial: &Partial) -> Result<(), AttendError> {
    options.check()?;
    queries.check()?;
    kv.check(partial.head_dim())?;
    if queries.head_dim != kv.head_dim {
        return Err(AttendError::Mismatch {
            what: "head_dim of queries and of K/V",
            expected: kv.head_dim,
            found: queries.head_dim,
        });
    }
    partial.check_shape(queries.rows, queries.group)
}

/// The parts of 4096 positions that contain any block of the cache, ascending.
fn parts_of(kv: &RowView) -> Vec<usize> {
    let mut parts = Vec::new();
    for run in kv.runs() {
        let blocks = run.span.range().step_by(KEY_BLOCK).map(part_of);
        parts.extend(blocks);
    }
    parts.dedup();
    parts
}

/// [`attend_rows`] with checked arguments and chosen instructions, over the blocks of one part or of all.
fn attend_at(level: Level, job: &RowJob, options: &AttendOptions, part: Option<usize>, partial: &mut Partial) {
    if job.queries.rows == 0 || job.queries.group == 0 {
        return;
    }
    let widths = (job.kv.head_dim, partial.head_dim());
    with_workspace(|workspace| match options.arithmetic {
        Arithmetic::Fused => InPlace::new(level, job, options, widths.1).run(part, partial.sums()),
        Arithmetic::Expanded | Arithmetic::Rounded => {
            // Separate scratch for keys and values, refilled for each block.
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (run, block) in blocks(job, options.causal, part) {
                let keys = aligned(&mut keys, KEY_BLOCK * widths.0);
                let values = aligned(&mut values, KEY_BLOCK * widths.1);
                lay_out(level, &run, block, widths, (keys, values));
                let page = PageView {
                    start: block.start,
                    tokens: block.len(),
                    keys: Plane::F32(keys),
                    values: Plane::F32(values),
                };
                attend_to_page(level, job, options, &page, (workspace, partial));
            }
        }
    });
}

fn attend_to_page(
    level: Level,
    job: &RowJob,
    options: &AttendOptions,
    page: &PageView,
    (workspace, partial): (&mut Workspace, &mut Partial),
) {
    let visible = Tokens {
        selection: job.selection,
        causal: options.causal,
    };
    let call = Call {
        level,
        queries: job.queries,
        kv: KvView {
            head_dim: job.kv.head_dim,
            pages: core::slice::from_ref(page),
        },
        value_dim: partial.head_dim(),
        quantised: false,
        visible: &visible,
        options,
        range: Span::new(0, usize::MAX),
        only_part: None,
    };
    call.run(workspace, Output::Partial(partial.sums()));
}

/// Fills keys `[stripes, key_dim, 16]` and values `[tokens, value_dim]` of a block.
fn lay_out(
    level: Level,
    run: &Run,
    block: Span,
    (key_dim, value_dim): (usize, usize),
    (keys, values): (&mut [f32], &mut [f32]),
) {
    match run.pages[0].keys {
        Rows::F32(_) => lay_out_keys::<F32>(level, run, block, key_dim, keys),
        Rows::F16(_) => lay_out_keys::<F16>(level, run, block, key_dim, keys),
        Rows::Bf16(_) => lay_out_keys::<Bf16>(level, run, block, key_dim, keys),
    }
    match run.pages[0].values {
        Rows::F32(_) => lay_out_values::<F32>(level, run, block, value_dim, values),
        Rows::F16(_) => lay_out_values::<F16>(level, run, block, value_dim, values),
        Rows::Bf16(_) => lay_out_values::<Bf16>(level, run, block, value_dim, values),
    }
}

fn lay_out_keys<E: Element>(level: Level, run: &Run, block: Span, head_dim: usize, out: &mut [f32]) {
    let mut rows: [&[E::Raw]; KEY_BLOCK] = [&[]; KEY_BLOCK];
    run.rows(block, head_dim, &mut rows, keys_of::<E>);
    let rows = &rows[..block.len()];
    level.run(StripeRows::<E> { rows, head_dim, out });
}

fn lay_out_values<E: Element>(level: Level, run: &Run, block: Span, head_dim: usize, out: &mut [f32]) {
    let mut rows: [&[E::Raw]; KEY_BLOCK] = [&[]; KEY_BLOCK];
    run.rows(block, head_dim, &mut rows, values_of::<E>);
    let rows = &rows[..block.len()];
    level.run(WidenRows::<E> { rows, head_dim, out });
}

/// Blocks of 128 keys, counted from the start of each run, that contain a token some row may read.
pub(super) fn blocks<'a>(job: &RowJob<'a>, causal: bool, part: Option<usize>) -> Vec<(Run<'a>, Span)> {
    let visible = Tokens {
        selection: job.selection,
        causal,
    };
    let (start, rows) = (job.queries.start, job.queries.rows);
    let mut needs = Vec::new();
    visible.needs(start, rows, &mut needs);
    for distance in visible.diagonals() {
        needs.extend(diagonal_spans(start, rows, *distance, causal));
    }
    merge_spans(&mut needs);
    let mut blocks: Vec<(Run, Span)> = Vec::new();
    for run in job.kv.runs() {
        let mut next = 0;
        let from = needs.partition_point(|need| need.end <= run.span.start);
        for need in needs[from..].iter().take_while(|need| need.start < run.span.end) {
            let need = need.intersect(&run.span);
            if need.is_empty() {
                continue;
            }
            let first = ((need.start - run.span.start) / KEY_BLOCK).max(next);
            next = (need.end - run.span.start).div_ceil(KEY_BLOCK).max(next);
            blocks.extend((first..next).map(|block| {
                let start = run.span.start + block * KEY_BLOCK;
                (run, Span::new(start, (start + KEY_BLOCK).min(run.span.end)))
            }));
        }
    }
    blocks.retain(|(_, block)| part.is_none_or(|part| part_of(block.start) == part));
    blocks
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::{close, noise};
    use crate::{RowPage, attend, write_keys, write_values};

    const HEAD_DIM: usize = 80;

    /// Row-major keys and values of pages of uneven lengths with a gap; tokens are `STRIDE` elements apart.
    struct Cache {
        keys: (Vec<f32>, Vec<u16>),
        values: (Vec<f32>, Vec<u16>),
    }

    const STRIDE: usize = 2 * HEAD_DIM;
    const PAGES: [(usize, usize); 5] = [(0, 16), (16, 16), (32, 250), (300, 1), (301, 140)];
    const TOKENS: usize = 441;

    impl Cache {
        fn new() -> Self {
            let halves = |seed| {
                let bits = noise(seed, TOKENS * STRIDE)
                    .into_iter()
                    .map(|value| (value.to_bits() >> 16) as u16);
                bits.collect()
            };
            Self {
                keys: (noise(1, TOKENS * STRIDE), halves(2)),
                values: (noise(3, TOKENS * STRIDE), halves(4)),
            }
        }

        fn rows<'a>(&'a self, data: &'a (Vec<f32>, Vec<u16>), bf16: bool, start: usize) -> Rows<'a> {
            if bf16 {
                Rows::Bf16(&data.1[start * STRIDE..])
            } else {
                Rows::F32(&data.0[start * STRIDE..])
            }
        }

        fn pages(&self, keys_bf16: bool, values_bf16: bool) -> Vec<RowPage<'_>> {
            let page = |(start, tokens)| RowPage {
                start,
                tokens,
                keys: self.rows(&self.keys, keys_bf16, start),
                values: self.rows(&self.values, values_bf16, start),
                stride: STRIDE,
                value_stride: STRIDE,
            };
            PAGES.into_iter().map(page).collect()
        }

        /// The same tokens in f32 planes, one page for each run, attended to by plain code.
        fn expected(&self, job: &RowJob, options: &AttendOptions) -> Partial {
            let mut planes = Vec::new();
            for run in job.kv.runs() {
                let len = run.span.len().next_multiple_of(16) * HEAD_DIM;
                let (mut keys, mut values) = (vec![0.0; len], vec![0.0; len]);
                for page in run.pages {
                    let slot = page.start - run.span.start;
                    let (mut keys, mut values) = (crate::PlaneMut::F32(&mut keys), crate::PlaneMut::F32(&mut values));
                    write_keys(&mut keys, HEAD_DIM, slot, page.tokens, page.keys, STRIDE).unwrap();
                    write_values(&mut values, HEAD_DIM, slot, page.tokens, page.values, STRIDE).unwrap();
                }
                planes.push((run.span, keys, values));
            }
            let page = |(span, keys, values): &'_ (Span, Vec<f32>, Vec<f32>)| (*span, keys.clone(), values.clone());
            let planes: Vec<_> = planes.iter().map(page).collect();
            let pages: Vec<_> = planes
                .iter()
                .map(|(span, keys, values)| PageView {
                    start: span.start,
                    tokens: span.len(),
                    keys: Plane::F32(keys),
                    values: Plane::F32(values),
                })
                .collect();
            let kv = KvView {
                head_dim: HEAD_DIM,
                pages: &pages,
            };
            let mut partial = Partial::new(job.queries.rows, job.queries.group, HEAD_DIM);
            attend(&job.queries, &kv, job.selection, options, &mut partial).unwrap();
            partial
        }
    }

    fn selections(start: usize, rows: usize) -> [Selection; 3] {
        [
            Selection::full(TOKENS),
            Selection::from_spans((0..TOKENS).step_by(7).map(|token| Span::new(token, token + 1))),
            Selection::from_spans([Span::new(3, 5), Span::new(130, 290)])
                .with_row_window(40)
                .with_diagonals([7, 64, 96, 300, 430])
                .with_row_extras(start, (0..rows).map(|r| [r * 7, 64, 400 - r])),
        ]
    }

    #[test]
    fn a_foreign_cache_gives_what_riffles_own_layout_gives_on_every_instruction_set() {
        let cache = Cache::new();
        for (group, rows) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (7, 1), (4, 5), (1, 40)] {
            let start = TOKENS - rows;
            let data = noise(9, rows * group * HEAD_DIM);
            let queries = QueryTile {
                data: &data,
                rows,
                row_stride: group * HEAD_DIM,
                group,
                head_dim: HEAD_DIM,
                start,
            };
            for (keys_bf16, values_bf16) in [(false, false), (true, true), (true, false)] {
                let pages = cache.pages(keys_bf16, values_bf16);
                let kv = RowView {
                    head_dim: HEAD_DIM,
                    pages: &pages,
                };
                for selection in &selections(start, rows) {
                    let job = RowJob { queries, kv, selection };
                    for (arithmetic, cap) in [(Arithmetic::Fused, None), (Arithmetic::Expanded, Some(2.0))] {
                        let options = AttendOptions::new(0.3).with_arithmetic(arithmetic).with_soft_cap(cap);
                        let expected = cache.expected(&job, &options);
                        for level in Level::all() {
                            let mut found = Partial::new(rows, group, HEAD_DIM);
                            attend_at(level, &job, &options, None, &mut found);
                            close(&found, &expected, 2e-5, level.name());
                        }
                        if arithmetic == Arithmetic::Expanded && selection.diagonals().is_empty() {
                            let mut found = Partial::new(rows, group, HEAD_DIM);
                            attend_rows(&queries, &kv, selection, &options, &mut found).unwrap();
                            assert_eq!(found, expected, "the bits of one page for each run");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_beside_others() {
        let cache = Cache::new();
        let pages = cache.pages(true, true);
        let kv = RowView {
            head_dim: HEAD_DIM,
            pages: &pages,
        };
        let (group, rows) = (3, 9);
        let start = TOKENS - rows;
        let data = noise(5, rows * group * HEAD_DIM);
        for selection in &selections(start, rows) {
            for arithmetic in [Arithmetic::Fused, Arithmetic::Expanded] {
                let options = AttendOptions::new(0.2).with_arithmetic(arithmetic);
                let attend = |first: usize, rows: usize| {
                    let queries = QueryTile {
                        data: &data[first * group * HEAD_DIM..],
                        rows,
                        row_stride: group * HEAD_DIM,
                        group,
                        head_dim: HEAD_DIM,
                        start: start + first,
                    };
                    let mut partial = Partial::new(rows, group, HEAD_DIM);
                    attend_rows(&queries, &kv, selection, &options, &mut partial).unwrap();
                    let mut out = vec![0.0; rows * group * HEAD_DIM];
                    partial.finish_into(&mut out, group * HEAD_DIM, None).unwrap();
                    out
                };
                let together = attend(0, rows);
                for row in 0..rows {
                    let alone = attend(row, 1);
                    let here = &together[row * group * HEAD_DIM..][..group * HEAD_DIM];
                    assert!(alone == here, "row {row} in {arithmetic:?}");
                }
            }
        }
    }
}
