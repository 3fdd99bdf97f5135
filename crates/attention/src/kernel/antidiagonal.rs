use crate::simd::{Kernel, Simd};

/// Long queries scored together.
pub(crate) const LONG_ROWS: usize = 4;

/// Stripes scored together.
const TOGETHER: usize = 4;

/// Logits of long queries with long keys of `stride` consecutive tokens, without moving keys out of their stripes.
///
/// A lane of a stripe is one token of a long key. Each lane is multiplied with its own part of the long query. The
/// lanes of a long key are summed at the end.
pub(crate) struct Antidiagonal<'a> {
    /// `[head_dim, LONG_ROWS, 16]`: for each lane, the matching part of each long query.
    pub(crate) queries: &'a [[[f32; 16]; LONG_ROWS]],
    /// Whole stripes, `[stripes, head_dim, 16]`.
    pub(crate) keys: &'a [f32],
    /// Number of tokens in `keys`; later lanes are undefined.
    pub(crate) tokens: usize,
    /// A power of two up to 16.
    pub(crate) stride: usize,
    /// `[LONG_ROWS, out_stride]`; the first long key's logits are at index `at`.
    pub(crate) out: &'a mut [f32],
    pub(crate) out_stride: usize,
    pub(crate) at: usize,
}

impl Kernel for Antidiagonal<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let stripes = self.tokens.div_ceil(16);
        let mut stripe = 0;
        while stripe + TOGETHER <= stripes {
            some_stripes::<S, TOGETHER>(simd, &mut self, stripe);
            stripe += TOGETHER;
        }
        while stripe < stripes {
            some_stripes::<S, 1>(simd, &mut self, stripe);
            stripe += 1;
        }
    }
}

#[inline(always)]
fn some_stripes<S: Simd, const N: usize>(simd: S, task: &mut Antidiagonal<'_>, stripe: usize) {
    let head_dim = task.queries.len();
    let keys: [&[[f32; 16]]; N] = core::array::from_fn(|n| {
        task.keys[(stripe + n) * 16 * head_dim..]
            .as_chunks()
            .0
            .split_at(head_dim)
            .0
    });
    let mut sums = [[simd.splat(0.0); N]; LONG_ROWS];
    for (d, query) in task.queries.iter().enumerate() {
        let key: [S::V; N] = simd.each(|n| simd.load(&keys[n][d]));
        for r in 0..LONG_ROWS {
            let q = simd.load(&query[r]);
            for n in 0..N {
                sums[r][n] = simd.fma(q, key[n], sums[r][n]);
            }
        }
    }
    let mut block = [simd.splat(0.0); 16];
    for r in 0..LONG_ROWS {
        for n in 0..N {
            let valid = task.tokens - (stripe + n) * 16;
            let sum = sums[r][n];
            block[r * N + n] = if valid < 16 {
                simd.select((1 << valid) - 1, sum, simd.splat(0.0))
            } else {
                sum
            };
        }
    }
    // Vector `lane` now holds lane `lane` of all sums.
    let lanes = simd.transpose(block);
    let groups = 16 / task.stride;
    for group in 0..groups {
        let mut sum = lanes[group * task.stride];
        for lane in 1..task.stride {
            sum = simd.add(sum, lanes[group * task.stride + lane]);
        }
        let mut sums = [0.0; 16];
        simd.store(sum, &mut sums);
        for r in 0..LONG_ROWS {
            let out = &mut task.out[r * task.out_stride + task.at..];
            for n in 0..N {
                if let Some(out) = out.get_mut((stripe + n) * groups + group) {
                    *out = sums[r * N + n];
                }
            }
        }
    }
}
