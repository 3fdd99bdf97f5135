//! Random caches, queries and selections shared by the tests of the kernels.
#![allow(dead_code, unreachable_pub)]

use proptest::prelude::*;
use riffle_attention::*;

/// A small deterministic generator of values in −1..1.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn value(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / 8_388_608.0 - 1.0
    }

    pub fn values(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.value()).collect()
    }
}

/// A plane of poison values: reads after the valid tokens must not affect results.
pub fn plane(format: Format, tokens: usize, head_dim: usize) -> PlaneBuf {
    PlaneBuf::filled(format, tokens, head_dim, 0xff)
}

pub struct Page {
    pub start: usize,
    pub tokens: usize,
    pub keys: PlaneBuf,
    pub values: PlaneBuf,
}

impl Page {
    pub fn view(&self) -> PageView<'_> {
        PageView {
            start: self.start,
            tokens: self.tokens,
            keys: self.keys.plane(),
            values: self.values.plane(),
        }
    }
}

/// A cache of one KV head in pages of `page_tokens`, with these widths of keys and values. `lengths` are the valid
/// tokens of each page; a zero leaves a gap of one page.
pub fn pages(
    noise: &mut Noise,
    (key_dim, value_dim): (usize, usize),
    page_tokens: usize,
    lengths: &[usize],
    formats: (Format, Format),
) -> Vec<Page> {
    let mut pages = Vec::new();
    for (index, &tokens) in lengths.iter().enumerate() {
        if tokens == 0 {
            continue;
        }
        let mut page = Page {
            start: index * page_tokens,
            tokens,
            keys: plane(formats.0, page_tokens, key_dim),
            values: plane(formats.1, page_tokens, value_dim),
        };
        let keys: Vec<f32> = noise.values(tokens * key_dim).iter().map(|v| v * 2.0).collect();
        let values = noise.values(tokens * value_dim);
        write_keys(&mut page.keys.plane_mut(), key_dim, 0, tokens, &keys, key_dim).unwrap();
        write_values(&mut page.values.plane_mut(), value_dim, 0, tokens, &values, value_dim).unwrap();
        pages.push(page);
    }
    pages
}

/// A whole problem as plain numbers, so that proptest can shrink it.
#[derive(Debug, Clone)]
pub struct Shape {
    pub seed: u64,
    pub head_dim: usize,
    pub value_dim: usize,
    pub group: usize,
    pub rows: usize,
    pub start: usize,
    pub page_tokens: usize,
    pub lengths: Vec<usize>,
    pub formats: (Format, Format),
    pub selection: Selection,
    pub soft_cap: Option<f32>,
    pub causal: bool,
}

impl Shape {
    pub fn options(&self) -> AttendOptions<'static> {
        AttendOptions::new(1.0 / (self.head_dim as f32).sqrt())
            .with_soft_cap(self.soft_cap)
            .with_causal(self.causal)
    }

    pub fn pages(&self) -> Vec<Page> {
        pages(
            &mut Noise::new(self.seed),
            (self.head_dim, self.value_dim),
            self.page_tokens,
            &self.lengths,
            self.formats,
        )
    }

    /// Queries with a stride wider than their heads.
    pub fn queries(&self) -> Vec<f32> {
        Noise::new(self.seed ^ 0xabcdef)
            .values(self.rows * self.row_stride())
            .iter()
            .map(|v| v * 3.0)
            .collect()
    }

    pub fn row_stride(&self) -> usize {
        self.group * self.head_dim + 5
    }

    pub fn tile<'a>(&self, data: &'a [f32]) -> QueryTile<'a> {
        QueryTile {
            data,
            rows: self.rows,
            row_stride: self.row_stride(),
            group: self.group,
            head_dim: self.head_dim,
            start: self.start,
        }
    }

    pub fn kv<'a>(&self, pages: &'a [PageView<'a>]) -> KvView<'a> {
        KvView {
            head_dim: self.head_dim,
            pages,
        }
    }

    pub fn partial(&self) -> Partial {
        Partial::new(self.rows, self.group, self.value_dim)
    }

    /// The exact answer over these pages.
    pub fn exact(&self, pages: &[PageView]) -> reference::ReferenceOutput {
        let queries = self.queries();
        let job = AttendJob {
            queries: self.tile(&queries),
            kv: self.kv(pages),
            selection: &self.selection,
        };
        let (value_dim, summaries, sinks) = (self.value_dim, &[][..], None);
        let job = reference::ReferenceJob {
            job,
            value_dim,
            summaries,
            sinks,
        };
        job.attend(&self.options()).unwrap()
    }
}

/// Widths of values for keys of `head_dim`: mostly equal, sometimes narrower or wider.
pub fn value_dim(head_dim: usize) -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(head_dim), 1 => Just(16usize), 1 => Just(48), 1 => Just(128)]
}

pub fn format() -> impl Strategy<Value = Format> {
    proptest::sample::select(&Format::ALL[..])
}

pub fn selection(tokens: usize, start: usize, rows: usize) -> impl Strategy<Value = Selection> {
    let end = tokens + 8;
    let spans = proptest::collection::vec((0..end, 0..end.min(90)), 0..4);
    let extras = proptest::collection::vec(proptest::collection::vec(0..end, 0..4), rows);
    prop_oneof![
        2 => Just(Selection::full(tokens)),
        1 => Just(Selection::none()),
        // Scattered tokens.
        2 => (0..40usize, 1..40usize).prop_map(move |(first, step)| {
            Selection::from_spans((first..end).step_by(step).map(|token| Span::new(token, token + 1)))
        }),
        5 => (
            spans,
            prop_oneof![Just(0usize), 1..200usize],
            prop_oneof![2 => Just(Vec::new()), 1 => proptest::collection::vec(0..end, 1..8)],
            prop_oneof![Just(None), extras.prop_map(Some)],
        ).prop_map(
            move |(spans, window, diagonals, extras)| {
                let selection = Selection::from_spans(spans.into_iter().map(|(a, n)| Span::new(a, a + n)))
                    .with_row_window(window)
                    .with_diagonals(diagonals);
                match extras {
                    Some(extras) => selection.with_row_extras(start, extras),
                    None => selection,
                }
            }
        )
    ]
}

pub fn shape() -> impl Strategy<Value = Shape> {
    let sizes = (
        any::<u64>(),
        prop_oneof![
            Just(16usize),
            Just(32),
            Just(64),
            Just(80),
            Just(96),
            Just(128),
            Just(256)
        ],
        prop_oneof![Just(1usize), Just(2), Just(3), Just(4), Just(6), Just(8)],
        prop_oneof![4 => 1..4usize, 2 => 4..40usize],
        prop_oneof![Just(16usize), Just(32), Just(64), Just(256)],
        (format(), format()),
    );
    sizes
        .prop_flat_map(|(seed, head_dim, group, rows, page_tokens, formats)| {
            let lengths = proptest::collection::vec(0..=page_tokens, 0..5);
            let full = proptest::collection::vec(Just(page_tokens), 0..5);
            let lengths = prop_oneof![lengths, full];
            let sizes = value_dim(head_dim)
                .prop_map(move |value_dim| (seed, (head_dim, value_dim), group, rows, page_tokens, formats));
            (sizes, lengths)
        })
        .prop_flat_map(|(sizes, lengths)| {
            let tokens = sizes.4 * lengths.len();
            let start = prop_oneof![0..=tokens, Just(tokens.saturating_sub(sizes.3))];
            (Just(sizes), Just(lengths), start)
        })
        .prop_flat_map(|(sizes, lengths, start)| {
            let tokens = sizes.4 * lengths.len();
            let soft_cap = prop_oneof![3 => Just(None), 1 => (0.5f32..20.0).prop_map(Some)];
            let causal = prop_oneof![4 => Just(true), 1 => Just(false)];
            (
                Just((sizes, lengths, start)),
                selection(tokens, start, sizes.3),
                soft_cap,
                causal,
            )
        })
        .prop_map(|((sizes, lengths, start), selection, soft_cap, causal)| Shape {
            seed: sizes.0,
            head_dim: sizes.1.0,
            value_dim: sizes.1.1,
            group: sizes.2,
            rows: sizes.3,
            start,
            page_tokens: sizes.4,
            lengths,
            formats: sizes.5,
            selection,
            soft_cap,
            causal,
        })
}

/// Compares normalised outputs and log-sum-exps with the f64 reference.
pub fn assert_matches(partial: &Partial, expected: &reference::ReferenceOutput, tolerance: f64) {
    let (rows, group, head_dim) = (partial.rows(), partial.group(), partial.head_dim());
    let mut out = vec![0.0; rows * group * head_dim];
    partial.finish_into(&mut out, group * head_dim, None).unwrap();
    for (at, (ours, exact)) in out.iter().zip(&expected.output).enumerate() {
        let difference = (f64::from(*ours) - exact).abs();
        assert!(difference <= tolerance, "output {at}: {ours} for {exact}");
    }
    for (at, exact) in expected.log_sum_exp.iter().enumerate() {
        let ours = f64::from(partial.log_sum_exp(at / group, at % group));
        let both_empty = ours == f64::NEG_INFINITY && *exact == f64::NEG_INFINITY;
        assert!(
            both_empty || (ours - exact).abs() <= tolerance * 4.0,
            "lse {at}: {ours} for {exact}"
        );
    }
}
