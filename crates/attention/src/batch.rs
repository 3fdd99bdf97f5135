use alloc::vec::Vec;

use crate::attend::{check, with_workspace};
use crate::simd::Level;
use crate::tile::{Call, Output};
use crate::visible::{Tokens, Visible};
use crate::{AttendError, AttendJob, AttendOptions, Partial, QueryTile, Span};

/// Positions per part when a few rows read a long cache: parts are attended to on their own and merged.
const SPLIT: usize = 4096;

/// Runs every job, adding job `n` to `partials[n]`.
///
/// With the feature `parallel` the work is spread over rayon's threads: jobs, blocks of their rows, and,
/// for few rows over many keys, parts of the cache. The parts depend on the job alone, never on the number
/// of threads, so results are the same bits on any machine size and without the feature.
///
/// # Errors
/// As [`attend`](crate::attend); also when the numbers of jobs and partials differ.
pub fn attend_batch(jobs: &[AttendJob], options: &AttendOptions, partials: &mut [Partial]) -> Result<(), AttendError> {
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
    #[cfg(feature = "parallel")]
    if rayon::current_num_threads() > 1 && parallel::worthwhile(jobs) {
        parallel::run(jobs, options, partials);
        return Ok(());
    }
    let mut part = Partial::new(0, 0, 0);
    for (job, partial) in jobs.iter().zip(partials) {
        match parts(job, options) {
            None => whole(job, options, partial),
            Some(parts) => {
                for range in parts {
                    part.reset(job.queries.rows, job.queries.group, job.queries.head_dim);
                    run(job, options, job.queries, range, &mut part.m, &mut part.l, &mut part.o);
                    partial.merge_same_shape(&part);
                }
            }
        }
    }
    Ok(())
}

fn whole(job: &AttendJob, options: &AttendOptions, partial: &mut Partial) {
    let everything = Span::new(0, usize::MAX);
    run(
        job,
        options,
        job.queries,
        everything,
        &mut partial.m,
        &mut partial.l,
        &mut partial.o,
    );
}

fn run(
    job: &AttendJob,
    options: &AttendOptions,
    queries: QueryTile,
    range: Span,
    m: &mut [f32],
    l: &mut [f32],
    o: &mut [f32],
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

/// The parts of the cache to attend to one by one, where a small tile reads much.
fn parts(job: &AttendJob, options: &AttendOptions) -> Option<impl Iterator<Item = Span> + use<>> {
    let queries = &job.queries;
    if queries.rows == 0 || queries.rows * queries.group > 16 {
        return None;
    }
    let cached = Span::new(
        job.kv.pages.first()?.start,
        job.kv.pages.last().map(|page| page.start + page.tokens)?,
    );
    if cached.len() <= 2 * SPLIT {
        return None;
    }
    let mut needs = Vec::new();
    let visible = Tokens {
        selection: job.selection,
        causal: options.causal,
    };
    visible.needs(queries.start, queries.rows, &mut needs);
    if needs.iter().map(|need| need.intersect(&cached).len()).sum::<usize>() <= 2 * SPLIT {
        return None;
    }
    let parts = cached.start / SPLIT..cached.end.div_ceil(SPLIT);
    Some(parts.map(|part| Span::new(part * SPLIT, (part + 1) * SPLIT)))
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
        m: &'a mut [f32],
        l: &'a mut [f32],
        o: &'a mut [f32],
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

    pub(super) fn run(jobs: &[AttendJob], options: &AttendOptions, partials: &mut [Partial]) {
        let ranges: Vec<Vec<Span>> = jobs
            .iter()
            .map(|job| parts(job, options).into_iter().flatten().collect())
            .collect();
        let mut split: Vec<Vec<Partial>> = jobs
            .iter()
            .zip(&ranges)
            .map(|(job, ranges)| {
                let queries = &job.queries;
                ranges
                    .iter()
                    .map(|_| Partial::new(queries.rows, queries.group, queries.head_dim))
                    .collect()
            })
            .collect();
        let mut pieces = Vec::new();
        let targets = partials.iter_mut().zip(&mut split).zip(&ranges);
        for (job, ((partial, split), ranges)) in jobs.iter().zip(targets) {
            if !ranges.is_empty() {
                for (part, range) in split.iter_mut().zip(ranges) {
                    let Partial { m, l, o, .. } = part;
                    pieces.push(Piece {
                        job,
                        queries: job.queries,
                        range: *range,
                        m,
                        l,
                        o,
                    });
                }
                continue;
            }
            let queries = job.queries;
            let step = (BLOCK_ROWS / queries.group.max(1)).max(1);
            let width = queries.group * queries.head_dim;
            let (mut m, mut l, mut o) = (&mut partial.m[..], &mut partial.l[..], &mut partial.o[..]);
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
                    m: m_here,
                    l: l_here,
                    o: o_here,
                });
            }
        }
        // Later rows read more; taking the longest first keeps the threads even at the end.
        pieces.reverse();
        pieces.into_par_iter().with_max_len(1).for_each(|piece| {
            super::run(
                piece.job,
                options,
                piece.queries,
                piece.range,
                piece.m,
                piece.l,
                piece.o,
            );
        });
        for (partial, split) in partials.iter_mut().zip(&split) {
            for part in split {
                partial.merge_same_shape(part);
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
        close(&partials[0], &expected, "parts");
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
