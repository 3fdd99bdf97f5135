//! Splits jobs into work for threads: blocks of rows, and parts of a long cache.

use alloc::vec::Vec;

use crate::attend::with_workspace;
use crate::call::{BLOCK_ROWS, Call, Output};
use crate::parts::{PartUnderWay, Parts};
use crate::simd::Level;
use crate::visible::Tokens;
use crate::{AttendJob, AttendOptions, Partial, QueryTile, Span};

/// A job and its output.
pub(crate) struct Task<'a> {
    pub(crate) job: AttendJob<'a>,
    pub(crate) partial: &'a mut Partial,
    /// The unfinished part of each block of rows; empty if the cache is not split.
    pub(crate) parts: &'a mut [PartUnderWay],
}

/// Query positions per block of rows, of `group` heads each.
pub(crate) fn block_rows(group: usize) -> usize {
    (BLOCK_ROWS / group.max(1)).max(1)
}

/// Runs all tasks, on all threads if that pays.
pub(crate) fn run(tasks: Vec<Task>, options: &AttendOptions) {
    #[cfg(feature = "parallel")]
    if rayon::current_num_threads() > 1 && parallel::worthwhile(&tasks) {
        return parallel::run(tasks, options);
    }
    for task in tasks {
        for piece in pieces(&task.job, task.partial, task.parts) {
            piece.run(options);
        }
    }
}

/// Some rows of a job and their output.
struct TaskPiece<'a, 'j> {
    job: &'a AttendJob<'j>,
    queries: QueryTile<'j>,
    /// Elements of one value.
    value_dim: usize,
    output: Output<'a>,
    /// The part of the cache to read; `None` for the whole cache.
    only_part: Option<usize>,
}

impl TaskPiece<'_, '_> {
    fn run(self, options: &AttendOptions) {
        let visible = Tokens {
            selection: self.job.selection,
            causal: options.causal,
        };
        let call = Call {
            level: Level::best(),
            queries: self.queries,
            kv: self.job.kv,
            value_dim: self.value_dim,
            quantised: self.job.kv.is_quantised(),
            visible: &visible,
            options,
            range: Span::new(0, usize::MAX),
            only_part: self.only_part,
        };
        with_workspace(|workspace| call.run(workspace, self.output));
    }
}

/// A job's blocks of rows; each has an unfinished part if the cache is split.
fn pieces<'a, 'j>(
    job: &'a AttendJob<'j>,
    partial: &'a mut Partial,
    parts: &'a mut [PartUnderWay],
) -> impl Iterator<Item = TaskPiece<'a, 'j>> {
    let (queries, step) = (job.queries, block_rows(job.queries.group));
    let value_dim = partial.head_dim();
    let (mut rest, mut parts) = (Some(partial.sums()), parts.iter_mut());
    (0..queries.rows).step_by(step).filter_map(move |first| {
        let rows = step.min(queries.rows - first);
        let (here, later) = rest.take()?.split_off(rows * queries.group, value_dim);
        rest = Some(later);
        let output = match parts.next() {
            None => Output::Partial(here),
            Some(now) => Output::Parts(Parts {
                whole: here,
                now,
                shape: (rows, queries.group, value_dim),
            }),
        };
        Some(TaskPiece {
            job,
            queries: QueryTile {
                data: &queries.data[first * queries.row_stride..],
                rows,
                start: queries.start + first,
                ..queries
            },
            value_dim,
            output,
            only_part: None,
        })
    })
}

#[cfg(feature = "parallel")]
mod parallel {
    use alloc::vec::Vec;

    use rayon::prelude::*;

    use super::{Task, TaskPiece, pieces};
    use crate::call::Output;
    use crate::parts::{PART_TOKENS, PartUnderWay, parts_of_page};
    use crate::visible::{Tokens, Visible};
    use crate::{AttendJob, AttendOptions, Partial, Span};

    /// True if the work is worth some microseconds for handing it to other threads.
    pub(super) fn worthwhile(tasks: &[Task]) -> bool {
        let work = tasks.iter().map(|task| {
            let keys: usize = task.job.kv.pages.iter().map(|page| page.tokens).sum();
            let rows = task.job.queries.rows.saturating_mul(task.job.queries.group);
            rows.saturating_mul(keys).saturating_mul(task.job.queries.head_dim)
        });
        work.fold(0, usize::saturating_add) > 1 << 20
    }

    pub(super) fn run(mut tasks: Vec<Task>, options: &AttendOptions) {
        tasks.retain(|task| !task.job.kv.pages.is_empty());
        // The first part of a job continues from its state; later parts start empty.
        let mut later: Vec<Vec<(usize, Partial)>> = Vec::with_capacity(tasks.len());
        let mut first: Vec<Option<usize>> = Vec::with_capacity(tasks.len());
        for task in &tasks {
            let queries = &task.job.queries;
            let mut numbers = spread(&task.job, options)
                .filter(|_| task.parts.len() == 1)
                .unwrap_or(0..0);
            first.push(numbers.next());
            let value_dim = task.partial.head_dim();
            let fresh = |number| (number, Partial::new(queries.rows, queries.group, value_dim));
            later.push(numbers.map(fresh).collect());
        }
        let mut all = Vec::new();
        for ((task, later), first) in tasks.iter_mut().zip(&mut later).zip(first) {
            all.extend(pieces(&task.job, task.partial, task.parts).map(|piece| TaskPiece {
                only_part: first,
                ..piece
            }));
            all.extend(later.iter_mut().map(|(number, partial)| TaskPiece {
                job: &task.job,
                queries: task.job.queries,
                value_dim: partial.head_dim(),
                output: Output::Partial(partial.sums()),
                only_part: Some(*number),
            }));
        }
        // Later rows read more. Starting with the longest keeps all threads busy until the end.
        all.reverse();
        all.into_par_iter().with_max_len(1).for_each(|piece| piece.run(options));
        for (task, later) in tasks.into_iter().zip(later) {
            for (number, apart) in later {
                task.parts[0].finish(&mut task.partial.sums());
                task.parts[0] = PartUnderWay::apart(number, apart);
            }
        }
    }

    /// The parts of the cache that the job's pages overlap, if its rows read enough to share it among threads.
    fn spread(job: &AttendJob, options: &AttendOptions) -> Option<core::ops::Range<usize>> {
        let (first, last) = (job.kv.pages.first()?, job.kv.pages.last()?);
        let here = Span::new(first.start, last.start + last.tokens);
        if here.len() <= PART_TOKENS {
            return None;
        }
        let mut needs = Vec::new();
        let visible = Tokens {
            selection: job.selection,
            causal: options.causal,
        };
        visible.needs(job.queries.start, job.queries.rows, &mut needs);
        let read: usize = needs.iter().map(|need| need.intersect(&here).len()).sum();
        if read <= PART_TOKENS {
            return None;
        }
        let mut held = job.kv.pages.iter().filter(|page| page.tokens > 0);
        let (begin, _) = parts_of_page(held.next()?).next()?;
        let (end, _) = parts_of_page(held.next_back()?).last()?;
        Some(begin..end + 1)
    }
}
