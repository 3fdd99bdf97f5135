//! Jobs that hold the same pages are attended together, and each keeps its own bits.

use crate::testing::*;
use proptest::prelude::*;
use riffle_attention::*;

/// Several sequences that share the beginning of one document.
#[derive(Debug, Clone)]
struct Sequences {
    seed: u64,
    head_dim: usize,
    value_dim: usize,
    group: usize,
    page_tokens: usize,
    formats: (Format, Format),
    soft_cap: Option<f32>,
    causal: bool,
    /// Tokens of each page of the document; a partial page leaves a gap after them.
    document: Vec<usize>,
    /// The pages, rows and selection of each sequence.
    each: Vec<Sequence>,
}

#[derive(Debug, Clone)]
struct Sequence {
    /// Number of the document's pages in the sequence, at most all.
    shared: usize,
    /// Tokens of the sequence's own pages after the shared ones.
    own: Vec<usize>,
    rows: usize,
    selection: Selection,
    /// True if the sequence's partial already has content.
    begun: bool,
}

impl Sequences {
    fn options(&self) -> AttendOptions<'static> {
        AttendOptions::for_head_dim(self.head_dim)
            .with_arithmetic(Arithmetic::Fused)
            .with_soft_cap(self.soft_cap)
            .with_causal(self.causal)
    }

    fn pages(&self, seed: u64, first: usize, lengths: &[usize]) -> Vec<Page> {
        let mut pages = pages(
            &mut Noise::new(self.seed ^ seed),
            (self.head_dim, self.value_dim),
            self.page_tokens,
            lengths,
            self.formats,
        );
        for page in &mut pages {
            page.start += first * self.page_tokens;
        }
        pages
    }

    fn partial(&self, sequence: &Sequence) -> Partial {
        let mut partial = Partial::new(sequence.rows, self.group, self.value_dim);
        if sequence.begun {
            partial.m.fill(0.25);
            partial.l.fill(3.0);
            partial.o = Noise::new(self.seed).values(partial.o.len());
        }
        partial
    }

    /// Runs the sequences together, all pages at once and `together` at a time, and compares each with its result
    /// alone.
    fn check(&self, together: usize) {
        let document = self.pages(1, 0, &self.document);
        let own: Vec<Vec<Page>> = self
            .each
            .iter()
            .enumerate()
            .map(|(n, sequence)| self.own_pages(n, sequence))
            .collect();
        let views: Vec<Vec<PageView>> = self
            .each
            .iter()
            .zip(&own)
            .map(|(sequence, own)| {
                document
                    .iter()
                    .take(sequence.shared)
                    .chain(own)
                    .map(Page::view)
                    .collect()
            })
            .collect();
        let row_stride = self.group * self.head_dim + 3;
        let data = Noise::new(self.seed ^ 9).values(8 * 4 * row_stride);
        let jobs = self.jobs(&data, row_stride, &views);
        let options = self.options();
        let mut alone = self.partials();
        for (job, partial) in jobs.iter().zip(&mut alone) {
            attend_batch(&[*job], &options, core::slice::from_mut(partial)).unwrap();
        }
        on_threads(|| {
            let mut batch = self.partials();
            attend_batch(&jobs, &options, &mut batch).unwrap();
            let streamed = self.streamed(&jobs, together);
            for (n, alone) in alone.iter().enumerate() {
                assert_eq!(bits(&batch[n]), bits(alone), "sequence {n}, all pages at once");
                assert_eq!(
                    bits(&streamed[n]),
                    bits(alone),
                    "sequence {n}, {together} pages at a time"
                );
            }
        });
    }

    fn partials(&self) -> Vec<Partial> {
        self.each.iter().map(|sequence| self.partial(sequence)).collect()
    }

    /// The last rows of each sequence over its pages; `data` holds at least four rows of each.
    fn jobs<'a>(&'a self, data: &'a [f32], row_stride: usize, views: &'a [Vec<PageView<'a>>]) -> Vec<AttendJob<'a>> {
        let sequences = self.each.iter().zip(views).enumerate();
        let jobs = sequences.map(|(n, (sequence, pages))| {
            let tokens = pages.last().map_or(0, |page| page.start + page.tokens);
            AttendJob {
                queries: QueryTile {
                    data: &data[n * 4 * row_stride..],
                    rows: sequence.rows,
                    row_stride,
                    group: self.group,
                    head_dim: self.head_dim,
                    start: tokens.saturating_sub(sequence.rows),
                },
                kv: KvView {
                    head_dim: self.head_dim,
                    pages,
                },
                selection: &sequence.selection,
            }
        });
        jobs.collect()
    }

    /// The partials of the jobs if `together` pages of each arrive at a time.
    fn streamed(&self, jobs: &[AttendJob], together: usize) -> Vec<Partial> {
        let (options, mut partials) = (self.options(), self.partials());
        let mut stream = BatchStream::new(jobs.iter().map(|job| &job.queries), &options);
        let most = jobs.iter().map(|job| job.kv.pages.len()).max().unwrap_or(0);
        for first in (0..most).step_by(together) {
            let now = jobs.iter().map(|job| {
                let pages = job.kv.pages;
                let pages = &pages[first.min(pages.len())..(first + together).min(pages.len())];
                AttendJob {
                    kv: KvView { pages, ..job.kv },
                    ..*job
                }
            });
            let now: Vec<AttendJob> = now.collect();
            stream.attend(&now, &options, &mut partials).unwrap();
        }
        stream.finish(&mut partials).unwrap();
        partials
    }

    fn own_pages(&self, number: usize, sequence: &Sequence) -> Vec<Page> {
        let first = sequence.shared.min(self.document.len());
        self.pages(number as u64 + 2, first, &sequence.own)
    }
}

fn bits(partial: &Partial) -> Vec<u32> {
    let all = partial.m.iter().chain(&partial.l).chain(&partial.o);
    all.map(|x| x.to_bits()).collect()
}

/// Runs with every number of threads up to the machine's.
fn on_threads(work: impl Fn() + Sync) {
    #[cfg(feature = "parallel")]
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(&work);
    }
    #[cfg(not(feature = "parallel"))]
    work();
}

/// Selections of sequences: mostly equal, sometimes different.
fn selections(tokens: usize, count: usize) -> impl Strategy<Value = Vec<Selection>> {
    let own = proptest::collection::vec(selection(tokens, tokens, 4), count);
    let spans = proptest::collection::vec((0..tokens + 8, 0..tokens / 2 + 2), 1..5);
    let windows = proptest::collection::vec(prop_oneof![Just(0usize), 1..tokens], count);
    let ends = proptest::collection::vec(prop_oneof![Just(2 * tokens), tokens / 2..tokens], count);
    prop_oneof![
        2 => Just(vec![Selection::full(2 * tokens); count]),
        2 => ends.prop_map(|ends| ends.into_iter().map(Selection::full).collect()),
        2 => (spans, windows).prop_map(|(spans, windows)| {
            let selection = Selection::from_spans(spans.into_iter().map(|(first, len)| Span::new(first, first + len)));
            windows.into_iter().map(|window| selection.clone().with_row_window(window)).collect()
        }),
        1 => own,
    ]
}

fn sequences() -> impl Strategy<Value = Sequences> {
    let sizes = (
        any::<u64>(),
        prop_oneof![Just(16usize), Just(64), Just(80), Just(128)],
        prop_oneof![Just(1usize), Just(2), Just(3), Just(4), Just(8)],
        prop_oneof![Just(64usize), Just(256), Just(1024)],
        (format(), format()),
        prop_oneof![3 => Just(None), 1 => (0.5f32..20.0).prop_map(Some)],
        prop_oneof![6 => Just(true), 1 => Just(false)],
    );
    (sizes, 2..=8usize)
        .prop_flat_map(|(sizes, count)| {
            let page_tokens = sizes.3;
            let short = prop_oneof![3 => Just(page_tokens), 1 => 1..=page_tokens];
            let document = proptest::collection::vec(short.clone(), 1..=10);
            let shared = prop_oneof![2 => Just(99usize), 1 => 0..=10usize];
            let own = proptest::collection::vec(short, 0..3);
            let begun = prop_oneof![3 => Just(false), 1 => any::<bool>()];
            let each = proptest::collection::vec((shared, own, 1..=4usize, begun), count);
            let selections = selections(11 * page_tokens, count);
            (Just(sizes), value_dim(sizes.1), document, each, selections)
        })
        .prop_map(|(sizes, value_dim, document, each, selections)| Sequences {
            seed: sizes.0,
            head_dim: sizes.1,
            value_dim,
            group: sizes.2,
            page_tokens: sizes.3,
            formats: sizes.4,
            soft_cap: sizes.5,
            causal: sizes.6,
            document,
            each: each
                .into_iter()
                .zip(selections)
                .map(|((shared, own, rows, begun), selection)| Sequence {
                    shared,
                    own,
                    rows,
                    selection,
                    begun,
                })
                .collect(),
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn sequences_that_share_pages_have_the_bits_they_have_alone(sequences in sequences(), together in 1..6usize) {
        sequences.check(together);
    }
}

#[test]
fn questions_about_one_long_document_have_the_bits_they_have_alone() {
    for format in Format::ALL {
        // A little more than three parts of a cache; its last page is not full.
        let question = |n: usize| Sequence {
            shared: 13,
            own: vec![40 + 7 * n],
            rows: 1 + n % 3,
            selection: Selection::full(1 << 20),
            begun: n == 5,
        };
        let sequences = Sequences {
            seed: 5,
            head_dim: 64,
            value_dim: 64,
            group: 4,
            page_tokens: 1024,
            formats: (format, format),
            soft_cap: None,
            causal: true,
            document: [vec![1024; 12], vec![717]].concat(),
            each: (0..8).map(question).collect(),
        };
        sequences.check(3);
    }
}
