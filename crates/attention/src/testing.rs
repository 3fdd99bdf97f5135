//! Problems of odd shapes for unit tests.

use alloc::vec::Vec;

use crate::*;

pub(crate) struct Page {
    start: usize,
    tokens: usize,
    keys: PlaneBuf,
    values: PlaneBuf,
}

impl Page {
    pub(crate) fn view(&self) -> PageView<'_> {
        PageView {
            start: self.start,
            tokens: self.tokens,
            keys: self.keys.plane(),
            values: self.values.plane(),
        }
    }
}

pub(crate) struct Problem {
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) group: usize,
    pub(crate) rows: usize,
    pub(crate) start: usize,
    pub(crate) pages: Vec<Page>,
    pub(crate) queries: Vec<f32>,
    pub(crate) selection: Selection,
    pub(crate) options: AttendOptions<'static>,
}

/// Values in −1..1 from a small deterministic generator.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

impl Problem {
    pub(crate) fn tile(&self) -> QueryTile<'_> {
        QueryTile {
            data: &self.queries,
            rows: self.rows,
            row_stride: self.group * self.head_dim,
            group: self.group,
            head_dim: self.head_dim,
            start: self.start,
        }
    }

    pub(crate) fn quantised(&self) -> bool {
        let planes = self.pages.iter().flat_map(|page| [&page.keys, &page.values]);
        planes.into_iter().any(|plane| plane.plane().format().is_quantised())
    }

    pub(crate) fn partial(&self) -> Partial {
        Partial::new(self.rows, self.group, self.value_dim)
    }

    /// All formats, every tile width, whole and broken blocks, masks, windows, extras, soft caps, and values narrower
    /// and wider than keys.
    pub(crate) fn assorted() -> Vec<Self> {
        let mut problems = Vec::new();
        let sizes = [
            (16, 16, 1, 1),
            (32, 32, 2, 1),
            (64, 64, 3, 1),
            (80, 80, 1, 7),
            (96, 96, 4, 2),
            (128, 128, 2, 13),
            (48, 48, 5, 9),
            (256, 256, 6, 1),
            (16, 48, 2, 3),
            (64, 32, 3, 7),
            (192, 128, 4, 1),
            (576, 512, 1, 2),
        ];
        for (case, (head_dim, value_dim, group, rows)) in sizes.into_iter().enumerate() {
            for (index, format) in Format::ALL.into_iter().enumerate() {
                let seed = (case * 10 + index) as u64;
                let value_format = Format::ALL[(index + case) % Format::ALL.len()];
                let starts = [(0, 256), (256, 256), (768, 37)];
                let page = |place| Page::noise(place, seed, (format, head_dim), (value_format, value_dim));
                let mut pages = Vec::from(starts.map(page));
                let selections = [
                    Selection::full(805),
                    Selection::from_spans([Span::new(3, 5), Span::new(130, 300)])
                        .with_row_window(40)
                        .with_diagonals([7, 64, 96, 500, 790])
                        .with_row_extras(800 - rows, (0..rows).map(|r| [r * 7, 64, 500 - r])),
                ];
                for selection in selections {
                    problems.push(Self {
                        head_dim,
                        value_dim,
                        group,
                        rows,
                        start: 800 - rows,
                        pages: core::mem::take(&mut pages),
                        queries: noise(seed + 99, rows * group * head_dim)
                            .iter()
                            .map(|q| q * 3.0)
                            .collect(),
                        selection,
                        options: AttendOptions::new(1.0 / (head_dim as f32).sqrt())
                            .with_soft_cap((case % 3 == 2).then_some(2.0)),
                    });
                    let last = problems.len() - 1;
                    pages = problems[last].pages.iter().map(Page::copy).collect();
                }
            }
        }
        problems
    }
}

impl Page {
    fn noise(
        (start, tokens): (usize, usize),
        seed: u64,
        (format, head_dim): (Format, usize),
        (value_format, value_dim): (Format, usize),
    ) -> Self {
        let mut keys = PlaneBuf::new(format, 256, head_dim);
        let mut values = PlaneBuf::new(value_format, 256, value_dim);
        let source = noise(seed + start as u64, tokens * head_dim);
        write_keys(&mut keys.plane_mut(), head_dim, 0, tokens, &source, head_dim).unwrap();
        let source = noise(seed + start as u64 + 1, tokens * value_dim);
        write_values(&mut values.plane_mut(), value_dim, 0, tokens, &source, value_dim).unwrap();
        Self {
            start,
            tokens,
            keys,
            values,
        }
    }

    fn copy(&self) -> Self {
        Self {
            start: self.start,
            tokens: self.tokens,
            keys: self.keys.clone(),
            values: self.values.clone(),
        }
    }
}

/// Tolerance between two ways to compute a problem. Integer sums over quantised planes have 15 bits of queries and
/// weights; weights in [`Arithmetic::Rounded`] have a last bit of 2⁻¹³; the rest is single precision.
pub(crate) fn tolerance_of(problem: &Problem) -> f32 {
    match problem.options.arithmetic {
        Arithmetic::Rounded => 3e-4,
        _ if problem.quantised() => 1e-4,
        _ => 1e-5,
    }
}

/// Fails unless both partials are equal, with outputs up to `tolerance`.
pub(crate) fn close(ours: &Partial, expected: &Partial, tolerance: f32, what: &str) {
    for row in 0..ours.rows() {
        for head in 0..ours.group() {
            let (a, b) = (ours.log_sum_exp(row, head), expected.log_sum_exp(row, head));
            assert!(a == b || (a - b).abs() < 3e-5, "{what}: log_sum_exp {a} for {b}");
        }
    }
    let len = ours.o.len();
    let (mut a, mut b) = (vec![0.0; len], vec![0.0; len]);
    let stride = ours.group() * ours.head_dim();
    ours.finish_into(&mut a, stride, None).unwrap();
    expected.finish_into(&mut b, stride, None).unwrap();
    for (at, (a, b)) in a.iter().zip(&b).enumerate() {
        assert!((a - b).abs() < tolerance, "{what}: output {at}: {a} for {b}");
    }
}
