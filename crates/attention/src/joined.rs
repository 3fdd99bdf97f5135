//! Reads pages that several jobs share once, for the rows of all of them.
//!
//! Rows in [`Arithmetic::Fused`](crate::Arithmetic::Fused) do not depend on their neighbours. A stream may be split at
//! any page without a change of bits. So jobs with the same next pages are joined into one job of all their rows. It
//! starts from copies of their partial sums; after these pages each job continues alone.

use alloc::vec;
use alloc::vec::Vec;

use crate::call::BLOCK_ROWS;
use crate::parts::{Footing, PartUnderWay};
use crate::task::{Task, run};
use crate::{AttendJob, AttendOptions, KvView, PageView, Partial, QueryTile, Selection, Span};

/// Fewest tokens that joined jobs share: joining and separating them costs about as much as a few tens of tokens.
const LEAST_TOKENS: usize = 256;

/// Attends to the pages that several jobs share and read alike, and removes these pages from the jobs.
pub(crate) fn attend_shared_pages(
    jobs: &mut [AttendJob],
    options: &AttendOptions,
    parts: &mut [Vec<PartUnderWay>],
    partials: &mut [Partial],
) {
    // Jobs that separate at some page may share later pages in smaller groups.
    loop {
        let groups = groups(jobs, options, parts, partials);
        if groups.is_empty() {
            return;
        }
        let joined = groups.iter().map(|group| Joined::new(group, jobs, parts, partials));
        let mut joined: Vec<_> = joined.collect();
        run(joined.iter_mut().map(Joined::task).collect(), options);
        for (group, joined) in groups.iter().zip(&joined) {
            joined.part(group, parts, partials);
            for member in &group.members {
                jobs[*member].kv.pages = &jobs[*member].kv.pages[group.pages..];
            }
        }
    }
}

/// Jobs with the same first pages.
struct Group {
    /// The jobs of the group, at least two.
    members: Vec<usize>,
    /// Number of pages that the members share and read alike.
    pages: usize,
}

/// Groups of jobs that share pages now; no job is in two groups.
fn groups(
    jobs: &[AttendJob],
    options: &AttendOptions,
    parts: &[Vec<PartUnderWay>],
    partials: &[Partial],
) -> Vec<Group> {
    let first_keys = |(number, job): (usize, &AttendJob)| {
        let page = job.kv.pages.first().filter(|_| parts[number].len() == 1)?;
        Some((page.keys.address(), number))
    };
    let mut order: Vec<_> = jobs.iter().enumerate().filter_map(first_keys).collect();
    order.sort_unstable();
    let mut groups = Vec::new();
    for same in order.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
        let candidate = |(_, number): &(_, usize)| Candidate {
            number: *number,
            job: &jobs[*number],
            value_dim: partials[*number].head_dim(),
            own_from: own_from(&jobs[*number], options),
            footing: parts[*number][0].footing(&partials[*number]),
        };
        let mut left: Vec<Candidate> = same.iter().map(candidate).collect();
        while left.len() > 1 {
            left = Group::take(left, &mut groups);
        }
    }
    groups
}

/// A job that might share its first pages.
struct Candidate<'a> {
    number: usize,
    job: &'a AttendJob<'a>,
    /// Elements of one value.
    value_dim: usize,
    /// First position at which the job's rows may read different tokens.
    own_from: usize,
    footing: Footing,
}

impl Group {
    /// Joins the first candidate with all that share enough with it, and returns the rest.
    fn take<'a>(candidates: Vec<Candidate<'a>>, groups: &mut Vec<Self>) -> Vec<Candidate<'a>> {
        let mut candidates = candidates.into_iter();
        let Some(first) = candidates.next() else {
            return Vec::new();
        };
        let size = |job: &AttendJob| job.queries.rows * job.queries.group;
        let (mut rows, mut others) = (size(first.job), Vec::new());
        let mut group = Self {
            members: vec![first.number],
            pages: usize::MAX,
        };
        for candidate in candidates {
            let pages = first.shared_pages(&candidate);
            if pages == 0 || rows + size(candidate.job) > BLOCK_ROWS {
                others.push(candidate);
                continue;
            }
            rows += size(candidate.job);
            group.members.push(candidate.number);
            group.pages = group.pages.min(pages);
        }
        if group.members.len() > 1 {
            groups.push(group);
        }
        others
    }
}

impl Candidate<'_> {
    /// Number of first pages that both hold and read alike; 0 if they read too few tokens of them.
    fn shared_pages(&self, other: &Self) -> usize {
        let (a, b) = (self.job, other.job);
        let shape = |of: &Self| (of.job.queries.group, of.job.queries.head_dim, of.value_dim);
        if self.footing != other.footing || shape(self) != shape(other) {
            return 0;
        }
        let Some(first) = a.kv.pages.first() else { return 0 };
        let differ = first_difference(a.selection.spans(), b.selection.spans(), first.start);
        let limit = self.own_from.min(other.own_from).min(differ);
        let pairs = a.kv.pages.iter().zip(b.kv.pages);
        let alike = pairs.take_while(|(a, b)| a.start + a.tokens <= limit && same_memory(a, b));
        let pages = alike.count();
        if tokens_read(a.selection, &a.kv.pages[..pages]) < LEAST_TOKENS {
            0
        } else {
            pages
        }
    }
}

fn same_memory(a: &PageView, b: &PageView) -> bool {
    (a.start, a.tokens) == (b.start, b.tokens) && a.keys.is_same_memory(&b.keys) && a.values.is_same_memory(&b.values)
}

/// First position at which more than the spans decides: causality or a row window.
fn own_from(job: &AttendJob, options: &AttendOptions) -> usize {
    let (selection, start) = (job.selection, job.queries.start);
    if job.queries.rows == 0 || !selection.diagonals().is_empty() || selection.has_row_extras() {
        return 0;
    }
    // A tile of all rows, with positions after the shared pages.
    let last = usize::MAX - BLOCK_ROWS;
    let causal = if options.causal { last.min(start + 1) } else { last };
    match selection.row_window() {
        0 => causal,
        _ => causal.min(selection.window_of(start, options.causal).start),
    }
}

/// First position from `from` on that only one of the two lists of disjoint, ascending spans contains.
fn first_difference(a: &[Span], b: &[Span], from: usize) -> usize {
    let from_here = |spans: &'_ [Span]| spans.partition_point(|span| span.end <= from);
    let (a, b) = (&a[from_here(a)..], &b[from_here(b)..]);
    let start = |span: &Span| span.start.max(from);
    for (a, b) in a.iter().zip(b) {
        if start(a) != start(b) {
            return start(a).min(start(b));
        }
        if a.end != b.end {
            return a.end.min(b.end);
        }
    }
    let common = a.len().min(b.len());
    let longer = a.get(common).or(b.get(common));
    longer.map_or(usize::MAX, start)
}

/// Number of tokens of the pages within the selection's spans.
fn tokens_read(selection: &Selection, pages: &[PageView]) -> usize {
    let read = |page: &PageView| {
        let page = Span::new(page.start, page.start + page.tokens);
        let first = selection.spans().partition_point(|span| span.end <= page.start);
        let spans = selection.spans()[first..].iter();
        spans
            .take_while(|span| span.start < page.end)
            .map(|span| span.intersect(&page).len())
            .sum::<usize>()
    };
    pages.iter().map(read).sum()
}

/// A group as one job.
struct Joined<'a> {
    /// `[rows, group, head_dim]`, in the order of the members.
    queries: Vec<f32>,
    /// End of the last shared page.
    end: usize,
    kv: KvView<'a>,
    /// Spans of the shared pages, equal for all members.
    selection: Selection,
    partial: Partial,
    parts: [PartUnderWay; 1],
}

impl<'a> Joined<'a> {
    fn new(group: &Group, jobs: &[AttendJob<'a>], parts: &[Vec<PartUnderWay>], partials: &[Partial]) -> Self {
        let members = || group.members.iter().copied();
        let first = &jobs[group.members[0]];
        let (head_dim, pages) = (first.kv.head_dim, &first.kv.pages[..group.pages]);
        let mut queries = Vec::new();
        for tile in members().map(|member| &jobs[member].queries) {
            for row in 0..tile.rows {
                queries.extend_from_slice(&tile.data[row * tile.row_stride..][..tile.group * head_dim]);
            }
        }
        let shared = Span::new(pages[0].start, pages.last().map_or(0, |page| page.start + page.tokens));
        let spans = first.selection.spans().iter().map(|span| span.intersect(&shared));
        Self {
            queries,
            end: shared.end,
            kv: KvView { head_dim, pages },
            selection: Selection::from_spans(spans),
            partial: Partial::concatenated(members().map(|member| &partials[member])),
            parts: [PartUnderWay::concatenated(members().map(|member| &parts[member][0]))],
        }
    }

    fn task(&mut self) -> Task<'_> {
        let (rows, group, head_dim) = (self.partial.rows(), self.partial.group(), self.kv.head_dim);
        Task {
            job: AttendJob {
                queries: QueryTile {
                    data: &self.queries,
                    rows,
                    row_stride: group * head_dim,
                    group,
                    head_dim,
                    start: self.end,
                },
                kv: self.kv,
                selection: &self.selection,
            },
            partial: &mut self.partial,
            parts: &mut self.parts,
        }
    }

    /// Returns each member's rows.
    fn part(&self, group: &Group, parts: &mut [Vec<PartUnderWay>], partials: &mut [Partial]) {
        let mut first = 0;
        for member in group.members.iter().copied() {
            let rows = partials[member].rows();
            self.partial.copy_rows(first, &mut partials[member]);
            self.parts[0].copy_rows(first, &partials[member], &mut parts[member][0]);
            first += rows;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;
    use crate::{Arithmetic, Plane};

    /// Pages of 200 tokens that remain for jobs of these selections after they share as many of eight pages as
    /// possible. Each job has one query at position 2000.
    fn left(selections: &[Selection], pages: &[Vec<PageView>], begun: &[usize]) -> Vec<usize> {
        let queries = noise(3, 32);
        let jobs = selections.iter().zip(pages).map(|(selection, pages)| AttendJob {
            queries: QueryTile {
                data: &queries,
                rows: 1,
                row_stride: 32,
                group: 2,
                head_dim: 16,
                start: 2000,
            },
            kv: KvView { head_dim: 16, pages },
            selection,
        });
        let mut jobs: Vec<AttendJob> = jobs.collect();
        let mut partials = vec![Partial::new(1, 2, 16); jobs.len()];
        for begun in begun {
            partials[*begun].m.fill(1.0);
        }
        let mut parts: Vec<_> = jobs.iter().map(|_| vec![PartUnderWay::default()]).collect();
        let options = AttendOptions::new(1.0).with_arithmetic(Arithmetic::Fused);
        attend_shared_pages(&mut jobs, &options, &mut parts, &mut partials);
        jobs.iter().map(|job| job.kv.pages.len()).collect()
    }

    #[test]
    fn jobs_are_joined_over_the_pages_that_they_share_and_read_alike() {
        let planes: Vec<_> = (0..20)
            .map(|page| (noise(page, 208 * 16), noise(99 + page, 208 * 16)))
            .collect();
        let page = |number: usize, start: usize| PageView {
            start,
            tokens: 200,
            keys: Plane::F32(&planes[number].0),
            values: Plane::F32(&planes[number].1),
        };
        let document = |own: usize| -> Vec<PageView> {
            let shared = (0..8).map(|number| page(number, 200 * number));
            shared.chain([page(own, 1600)]).collect()
        };
        let full = || Selection::full(5000);
        let three = [document(10), document(11), document(12)];
        assert_eq!(left(&[full(), full(), full()], &three, &[]), [1, 1, 1]);
        // Ends of spans after the shared pages make no difference; ends within them do.
        assert_eq!(
            left(&[full(), Selection::full(1600), Selection::full(1000)], &three, &[]),
            [1, 1, 4]
        );
        // A window from 1001 on leaves the sixth page to each job.
        let window = || full().with_row_window(1000);
        assert_eq!(left(&[window(), window(), full()], &three, &[]), [4, 4, 4]);
        // Fewer than 256 tokens are read together.
        let few = Selection::from_spans([Span::new(100, 355)]);
        assert_eq!(left(&[few.clone(), few.clone(), few], &three, &[]), [9, 9, 9]);
        // Diagonals, extras, and a partial that is not empty.
        let apart = [
            full(),
            full().with_diagonals([100]),
            full().with_row_extras(2000, [[1]]),
        ];
        assert_eq!(left(&apart, &three, &[]), [9, 9, 9]);
        assert_eq!(left(&[full(), full(), full()], &three, &[1]), [1, 9, 1]);
        // Three pages in common with all jobs, five more with one other. Equal pages elsewhere in memory do not
        // count.
        let branch = |own: usize, from: usize| -> Vec<PageView> {
            let mut pages = document(own);
            pages[3] = page(from, 600);
            pages
        };
        let copy = (planes[0].0.clone(), planes[0].1.clone());
        let mut elsewhere = document(13);
        elsewhere[0].keys = Plane::F32(&copy.0);
        let five = [document(10), branch(11, 14), document(12), branch(13, 14), elsewhere];
        assert_eq!(
            left(&[full(), full(), full(), full(), full()], &five, &[]),
            [1, 1, 1, 1, 9]
        );
        // Values elsewhere in memory, and a page with fewer tokens.
        let (mut values, mut shorter) = (document(10), document(11));
        values[2].values = Plane::F32(&copy.1);
        shorter[2].tokens = 199;
        assert_eq!(
            left(&[full(), full(), full()], &[document(12), values, shorter], &[]),
            [7, 7, 7]
        );
    }
}
