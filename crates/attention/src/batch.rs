use alloc::vec::Vec;

use crate::attend::{check, with_workspace};
use crate::simd::Level;
use crate::tile::{Call, Output};
use crate::visible::{Tokens, Visible};
use crate::{AttendError, AttendJob, AttendOptions, Partial, QueryTile, Selection, Span};

/// Positions per part when a few rows read a long cache: parts are attended to on their own and merged.
const SPLIT: usize = 4096;

/// Runs every job, adding job `n` to `partials[n]`.
///
/// With the feature `parallel` the work is spread over rayon's threads: jobs, blocks of their rows, and,
/// for few rows over many keys, parts of the cache. The parts depend on the job alone, never on the number
/// of threads, so results are the same bits on any machine size and without the feature. Each call allocates the
/// list of its pieces and the partials of parts; [`attend`](crate::attend) itself allocates nothing once warm.
///
/// # Errors
/// As [`attend`](crate::attend); also when the numbers of jobs and partials differ.
pub fn attend_batch(jobs: &[AttendJob], options: &AttendOptions, partials: &mut [Partial]) -> Result<(), AttendError> {
    let splits = jobs.iter().map(|job| {
        let cached = pages_span(job).unwrap_or(Span::new(0, 0));
        Split::new(&job.queries, job.selection, cached, options)
    });
    let mut stream = BatchStream {
        splits: splits.collect(),
    };
    stream.attend(jobs, options, partials)?;
    stream.finish(partials)
}

/// Runs jobs whose pages arrive a few at a time, with the bits of one [`attend_batch`] over all of them.
///
/// ```
/// # use riffle_attention::*;
/// # let source: Vec<f32> = (0..32 * 16).map(|i| (i % 7) as f32 - 3.0).collect();
/// # let (mut keys, mut values) = (vec![0.0; 512], vec![0.0; 512]);
/// # write_keys(&mut PlaneMut::F32(&mut keys), 16, 0, 32, &source, 16)?;
/// # write_values(&mut PlaneMut::F32(&mut values), 16, 0, 32, &source, 16)?;
/// # let page = |start: usize| PageView {
/// #     start,
/// #     tokens: 16,
/// #     keys: Plane::F32(&keys[start * 16..][..256]),
/// #     values: Plane::F32(&values[start * 16..][..256]),
/// # };
/// # let queries = QueryTile { data: &source[496..], rows: 1, row_stride: 16, group: 1, head_dim: 16, start: 31 };
/// let (selection, options) = (Selection::full(32), AttendOptions::new(0.25));
/// let mut partials = [Partial::new(1, 1, 16)];
/// let mut stream = BatchStream::new([(&queries, &selection)], Span::new(0, 32), &options);
/// for start in [0, 16] {
///     let kv = KvView { head_dim: 16, pages: &[page(start)] };
///     stream.attend(&[AttendJob { queries, kv, selection: &selection }], &options, &mut partials)?;
/// }
/// stream.finish(&mut partials)?;
/// # Ok::<(), AttendError>(())
/// ```
#[derive(Debug)]
pub struct BatchStream {
    /// For each job that is attended to in parts, the part under way.
    splits: Vec<Option<Split>>,
}

impl BatchStream {
    /// Jobs of these queries and selections over pages that lie in `cached`.
    pub fn new<'a>(
        jobs: impl IntoIterator<Item = (&'a QueryTile<'a>, &'a Selection)>,
        cached: Span,
        options: &AttendOptions,
    ) -> Self {
        let jobs = jobs.into_iter();
        Self {
            splits: jobs
                .map(|(queries, selection)| Split::new(queries, selection, cached, options))
                .collect(),
        }
    }

    /// Attends to the pages that the jobs hold now, if any: the jobs of [`new`](Self::new) in their order, their pages
    /// after those of earlier calls.
    ///
    /// # Errors
    /// As [`attend_batch`].
    pub fn attend(
        &mut self,
        jobs: &[AttendJob],
        options: &AttendOptions,
        partials: &mut [Partial],
    ) -> Result<(), AttendError> {
        check_counts(jobs.len(), partials.len())?;
        check_counts(self.splits.len(), jobs.len())?;
        for (job, partial) in jobs.iter().zip(partials.iter()) {
            check(&job.queries, &job.kv, options, partial)?;
        }
        #[cfg(feature = "parallel")]
        if rayon::current_num_threads() > 1 && parallel::worthwhile(jobs) {
            parallel::run(jobs, options, &mut self.splits, partials);
            return Ok(());
        }
        for ((job, partial), split) in jobs.iter().zip(partials).zip(&mut self.splits) {
            let Some(split) = split else {
                let everything = Span::new(0, usize::MAX);
                run(job, options, job.queries, everything, partial.slices());
                continue;
            };
            for number in part_numbers(job) {
                split.turn_to(number, partial);
                run(job, options, job.queries, part_span(number), split.partial.slices());
            }
        }
        Ok(())
    }

    /// Completes the partials after the last pages.
    ///
    /// # Errors
    /// When the numbers of jobs and partials differ.
    pub fn finish(self, partials: &mut [Partial]) -> Result<(), AttendError> {
        check_counts(self.splits.len(), partials.len())?;
        for (split, partial) in self.splits.iter().zip(partials) {
            if let Some(split) = split {
                partial.merge_same_shape(&split.partial);
            }
        }
        Ok(())
    }
}

/// A job that is attended to in parts, each on its own and merged in order: what a small tile reads much of.
#[derive(Debug)]
struct Split {
    /// Number of the part under way.
    number: usize,
    partial: Partial,
}

impl Split {
    fn new(queries: &QueryTile, selection: &Selection, cached: Span, options: &AttendOptions) -> Option<Self> {
        if queries.rows == 0 || queries.rows * queries.group > 16 || cached.len() <= 2 * SPLIT {
            return None;
        }
        let mut needs = Vec::new();
        let visible = Tokens {
            selection,
            causal: options.causal,
        };
        visible.needs(queries.start, queries.rows, &mut needs);
        if needs.iter().map(|need| need.intersect(&cached).len()).sum::<usize>() <= 2 * SPLIT {
            return None;
        }
        Some(Self {
            number: 0,
            partial: Partial::new(queries.rows, queries.group, queries.head_dim),
        })
    }

    /// Merges the part under way and begins another, unless it is the same.
    fn turn_to(&mut self, number: usize, whole: &mut Partial) {
        if number != self.number {
            whole.merge_same_shape(&self.partial);
            self.partial
                .reset(self.partial.rows(), self.partial.group(), self.partial.head_dim());
            self.number = number;
        }
    }
}

fn check_counts(expected: usize, found: usize) -> Result<(), AttendError> {
    if expected != found {
        return Err(AttendError::Mismatch {
            what: "numbers of jobs and partials",
            expected,
            found,
        });
    }
    Ok(())
}

fn pages_span(job: &AttendJob) -> Option<Span> {
    let (first, last) = (job.kv.pages.first()?, job.kv.pages.last()?);
    Some(Span::new(first.start, last.start + last.tokens))
}

/// Numbers of the parts that the job's pages lie in.
fn part_numbers(job: &AttendJob) -> core::ops::Range<usize> {
    let span = pages_span(job).unwrap_or(Span::new(0, 0));
    span.start / SPLIT..span.end.div_ceil(SPLIT)
}

fn part_span(number: usize) -> Span {
    Span::new(number * SPLIT, (number + 1) * SPLIT)
}

fn run(
    job: &AttendJob,
    options: &AttendOptions,
    queries: QueryTile,
    range: Span,
    (m, l, o): (&mut [f32], &mut [f32], &mut [f32]),
) {
    let visible = Tokens {
        selection: job.selection,
        causal: options.causal,
    };
    let call = Call {
        level: Level::best(),
        queries,
        kv: job.kv,
        visible: &visible,
        options,
        range,
    };
    with_workspace(|workspace| call.run(workspace, Output::Partial { m, l, o }));
}

#[cfg(feature = "parallel")]
mod parallel {
    use rayon::prelude::*;

    use super::*;
    use crate::tile::BLOCK_ROWS;

    /// One thread's piece of a job: some of its rows, or all of them over part of the cache.
    struct Piece<'a, 'j> {
        job: &'a AttendJob<'j>,
        queries: QueryTile<'j>,
        range: Span,
        output: (&'a mut [f32], &'a mut [f32], &'a mut [f32]),
    }

    /// Handing work to other threads costs some microseconds; less than that is done here.
    pub(super) fn worthwhile(jobs: &[AttendJob]) -> bool {
        let work = jobs.iter().map(|job| {
            let keys: usize = job.kv.pages.iter().map(|page| page.tokens).sum();
            let rows = job.queries.rows.saturating_mul(job.queries.group);
            rows.saturating_mul(keys).saturating_mul(job.queries.head_dim)
        });
        work.fold(0, usize::saturating_add) > 1 << 20
    }

    pub(super) fn run(
        jobs: &[AttendJob],
        options: &AttendOptions,
        splits: &mut [Option<Split>],
        partials: &mut [Partial],
    ) {
        // The first part of a job goes on in its split; those after it begin here.
        let mut later: Vec<Vec<Partial>> = Vec::with_capacity(jobs.len());
        for ((job, split), partial) in jobs.iter().zip(&mut *splits).zip(&mut *partials) {
            let parts = part_numbers(job);
            let Some(split) = split.as_mut().filter(|_| !parts.is_empty()) else {
                later.push(Vec::new());
                continue;
            };
            split.turn_to(parts.start, partial);
            let queries = &job.queries;
            let fresh = parts
                .skip(1)
                .map(|_| Partial::new(queries.rows, queries.group, queries.head_dim));
            later.push(fresh.collect());
        }
        let mut pieces = Vec::new();
        let targets = partials.iter_mut().zip(&mut *splits).zip(&mut later);
        for (job, ((partial, split), later)) in jobs.iter().zip(targets) {
            if job.kv.pages.is_empty() {
                continue;
            }
            let queries = job.queries;
            if let Some(split) = split {
                let parts = core::iter::once(&mut split.partial).chain(later);
                for (part, number) in parts.zip(part_numbers(job)) {
                    pieces.push(Piece {
                        job,
                        queries,
                        range: part_span(number),
                        output: part.slices(),
                    });
                }
                continue;
            }
            let step = (BLOCK_ROWS / queries.group.max(1)).max(1);
            let width = queries.group * queries.head_dim;
            let (mut m, mut l, mut o) = partial.slices();
            for first in (0..queries.rows).step_by(step) {
                let rows = step.min(queries.rows - first);
                let (m_here, m_rest) = m.split_at_mut(rows * queries.group);
                let (l_here, l_rest) = l.split_at_mut(rows * queries.group);
                let (o_here, o_rest) = o.split_at_mut(rows * width);
                (m, l, o) = (m_rest, l_rest, o_rest);
                let queries = QueryTile {
                    data: &queries.data[first * queries.row_stride..],
                    rows,
                    start: queries.start + first,
                    ..queries
                };
                pieces.push(Piece {
                    job,
                    queries,
                    range: Span::new(0, usize::MAX),
                    output: (m_here, l_here, o_here),
                });
            }
        }
        // Later rows read more; taking the longest first keeps the threads even at the end.
        pieces.reverse();
        pieces.into_par_iter().with_max_len(1).for_each(|piece| {
            super::run(piece.job, options, piece.queries, piece.range, piece.output);
        });
        for (((job, split), later), partial) in jobs.iter().zip(splits).zip(later).zip(partials) {
            let Some(split) = split else { continue };
            for (part, number) in later.into_iter().zip(part_numbers(job).skip(1)) {
                partial.merge_same_shape(&split.partial);
                *split = Split { number, partial: part };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Problem, close, noise};
    use crate::{KvView, PageView, Plane, Selection, attend};
    use alloc::vec;

    #[test]
    fn a_long_cache_read_in_parts_equals_one_call() {
        let (keys, values) = (noise(1, 16 * 1024), noise(2, 16 * 1024));
        let page = |index: usize| PageView {
            start: index * 1000,
            tokens: 1000,
            keys: Plane::F32(&keys),
            values: Plane::F32(&values),
        };
        let pages: Vec<_> = (0..20).map(page).collect();
        let queries = noise(3, 2 * 32);
        let tile = QueryTile {
            data: &queries,
            rows: 2,
            row_stride: 32,
            group: 2,
            head_dim: 16,
            start: 19_990,
        };
        let kv = KvView {
            head_dim: 16,
            pages: &pages,
        };
        let options = AttendOptions::new(1.0);
        let selection = Selection::full(20_000);
        let mut expected = Partial::new(2, 2, 16);
        attend(&tile, &kv, &selection, &options, &mut expected).unwrap();
        let mut partials = vec![Partial::new(2, 2, 16)];
        attend_batch(
            &[AttendJob {
                queries: tile,
                kv,
                selection: &selection,
            }],
            &options,
            &mut partials,
        )
        .unwrap();
        close(&partials[0], &expected, false, "parts");
    }

    #[test]
    fn pages_that_arrive_a_few_at_a_time_give_the_same_bits() {
        // 20 pages of 1000 tokens, of a size that neither key blocks nor parts divide; the ninth is not there.
        let planes: Vec<_> = (0..20)
            .map(|page| (noise(page, 16 * 1024), noise(99 + page, 16 * 1024)))
            .collect();
        let page = |index: usize| PageView {
            start: index * 1000,
            tokens: 1000,
            keys: Plane::F32(&planes[index].0),
            values: Plane::F32(&planes[index].1),
        };
        let pages: Vec<_> = (0..20).filter(|index| *index != 8).map(page).collect();
        let queries = noise(3, 40 * 32);
        let tile = |rows: usize| QueryTile {
            data: &queries,
            rows,
            row_stride: 32,
            group: 2,
            head_dim: 16,
            start: 20_000 - rows,
        };
        let options = AttendOptions::new(1.0);
        let few = Selection::from_spans([Span::new(0, 70), Span::new(3000, 3100)]).with_row_window(300);
        let tiles = [
            (tile(1), Selection::full(20_000)),
            (tile(40), few),
            (tile(2), Selection::full(20_000)),
        ];
        fn jobs<'a>(tiles: &'a [(QueryTile<'a>, Selection)], pages: &'a [PageView<'a>]) -> Vec<AttendJob<'a>> {
            let job = |(queries, selection): &'a (QueryTile<'a>, Selection)| AttendJob {
                queries: *queries,
                kv: KvView { head_dim: 16, pages },
                selection,
            };
            tiles.iter().map(job).collect()
        }
        let partials = || {
            tiles
                .iter()
                .map(|(tile, _)| Partial::new(tile.rows, 2, 16))
                .collect::<Vec<_>>()
        };
        let mut expected = partials();
        attend_batch(&jobs(&tiles, &pages), &options, &mut expected).unwrap();
        for together in [1, 2, 5, 18] {
            let mut found = partials();
            let named = tiles.iter().map(|(queries, selection)| (queries, selection));
            let mut stream = BatchStream::new(named, Span::new(0, 20_000), &options);
            for pages in pages.chunks(together) {
                stream.attend(&jobs(&tiles, pages), &options, &mut found).unwrap();
                stream.attend(&jobs(&tiles, &[]), &options, &mut found).unwrap();
            }
            stream.finish(&mut found).unwrap();
            assert_eq!(found, expected, "{together} pages at a time");
        }
    }

    #[cfg(feature = "parallel")]
    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        let problems: Vec<_> = Problem::assorted();
        let views: Vec<Vec<_>> = problems
            .iter()
            .map(|problem| problem.pages.iter().map(|page| page.view()).collect())
            .collect();
        for (problem, views) in problems.iter().zip(&views) {
            let kv = KvView {
                head_dim: problem.head_dim,
                pages: views,
            };
            let job = AttendJob {
                queries: problem.tile(),
                kv,
                selection: &problem.selection,
            };
            let jobs = [job; 4];
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut partials = vec![problem.partial(); 4];
                pool.install(|| attend_batch(&jobs, &problem.options, &mut partials))
                    .unwrap();
                partials
            };
            assert_eq!(run(1), run(3));
        }
    }

    #[test]
    fn jobs_and_partials_must_match() {
        let problem = &Problem::assorted()[0];
        let views: Vec<_> = problem.pages.iter().map(|page| page.view()).collect();
        let kv = KvView {
            head_dim: problem.head_dim,
            pages: &views,
        };
        let job = AttendJob {
            queries: problem.tile(),
            kv,
            selection: &problem.selection,
        };
        assert!(attend_batch(&[job], &problem.options, &mut []).is_err());
    }
}
