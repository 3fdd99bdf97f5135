use alloc::vec::Vec;

use crate::attend::check;
use crate::error::expect_equal;
use crate::joined::attend_shared_pages;
use crate::parts::PartUnderWay;
use crate::task::{Task, block_rows, run};
use crate::{Arithmetic, AttendError, AttendJob, AttendOptions, Partial, QueryTile};

/// Runs every job, adding job `n` to `partials[n]`.
///
/// With the feature `parallel` the work is spread over rayon's threads: jobs, blocks of their rows, and, in
/// [`Arithmetic::Fused`], parts of a long cache. A row's result does not depend on the number of threads or the rows
/// and jobs beside it.
///
/// In [`Arithmetic::Fused`], jobs may share first pages in the same memory, with the same spans selected there. Such
/// pages are read once for the rows of all these jobs, as when the sequences of a batch share a document. Pages
/// within a row window are read per job. Jobs with diagonals or row extras share none.
///
/// Each call allocates the list of its pieces and the partials of parts; [`attend`](crate::attend) itself allocates
/// nothing once warm.
///
/// # Errors
/// As [`attend`](crate::attend); also when the numbers of jobs and partials differ.
pub fn attend_batch(jobs: &[AttendJob], options: &AttendOptions, partials: &mut [Partial]) -> Result<(), AttendError> {
    let mut stream = BatchStream::new(jobs.iter().map(|job| &job.queries), options);
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
/// let mut stream = BatchStream::new([&queries], &options);
/// for start in [0, 16] {
///     let kv = KvView { head_dim: 16, pages: &[page(start)] };
///     stream.attend(&[AttendJob { queries, kv, selection: &selection }], &options, &mut partials)?;
/// }
/// stream.finish(&mut partials)?;
/// # Ok::<(), AttendError>(())
/// ```
#[derive(Debug)]
pub struct BatchStream {
    /// For each job and block of rows, its unfinished part; empty if the cache is not split.
    parts: Vec<Vec<PartUnderWay>>,
}

impl BatchStream {
    /// Prepares a stream for jobs with these queries; later calls must use the same options.
    pub fn new<'a>(queries: impl IntoIterator<Item = &'a QueryTile<'a>>, options: &AttendOptions) -> Self {
        let blocks = |queries: &QueryTile| match options.arithmetic {
            Arithmetic::Expanded | Arithmetic::Rounded => 0,
            Arithmetic::Fused => queries.rows.div_ceil(block_rows(queries.group)),
        };
        let parts = queries
            .into_iter()
            .map(|queries| (0..blocks(queries)).map(|_| PartUnderWay::default()).collect());
        Self { parts: parts.collect() }
    }

    /// Attends to the pages that the jobs hold now, if any. Jobs come in the order of [`new`](Self::new); pages follow
    /// the pages of earlier calls. The partials are incomplete until [`finish`](Self::finish).
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
        check_counts(self.parts.len(), jobs.len())?;
        for (job, partial) in jobs.iter().zip(partials.iter()) {
            check(&job.queries, &job.kv, options, partial)?;
        }
        let mut jobs = jobs.to_vec();
        if options.arithmetic == Arithmetic::Fused {
            attend_shared_pages(&mut jobs, options, &mut self.parts, partials);
        }
        let states = partials.iter_mut().zip(&mut self.parts);
        let tasks = jobs.iter().zip(states).map(|(job, (partial, parts))| Task {
            job: *job,
            partial,
            parts,
        });
        run(tasks.collect(), options);
        Ok(())
    }

    /// Completes the partials after the last pages.
    ///
    /// # Errors
    /// When the numbers of jobs and partials differ.
    pub fn finish(mut self, partials: &mut [Partial]) -> Result<(), AttendError> {
        check_counts(self.parts.len(), partials.len())?;
        for (parts, partial) in self.parts.iter_mut().zip(partials) {
            let (group, head_dim) = (partial.group(), partial.head_dim());
            let mut rest = partial.sums();
            let count = block_rows(group) * group;
            for part in parts {
                let count = count.min(rest.m.len());
                let (mut here, later) = rest.split_off(count, head_dim);
                part.finish(&mut here);
                rest = later;
            }
        }
        Ok(())
    }
}

fn check_counts(expected: usize, found: usize) -> Result<(), AttendError> {
    expect_equal("numbers of jobs and partials", expected, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Problem, close, noise};
    use crate::{KvView, PageView, Plane, Selection, Span, attend};
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
        let options = AttendOptions::new(1.0).with_arithmetic(Arithmetic::Fused);
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
        close(&partials[0], &expected, 1e-5, "parts");
    }

    #[test]
    fn pages_that_arrive_a_few_at_a_time_give_the_same_bits() {
        // 20 pages of 1000 tokens, not a multiple of key blocks or parts. The ninth is missing.
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
        let options = AttendOptions::new(1.0).with_arithmetic(Arithmetic::Fused);
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
            let mut stream = BatchStream::new(tiles.iter().map(|(queries, _)| queries), &options);
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
                let options = [Arithmetic::Expanded, Arithmetic::Rounded, Arithmetic::Fused]
                    .map(|arithmetic| problem.options.with_arithmetic(arithmetic));
                options.map(|options| {
                    let mut partials = vec![problem.partial(); 4];
                    pool.install(|| attend_batch(&jobs, &options, &mut partials)).unwrap();
                    partials
                })
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
