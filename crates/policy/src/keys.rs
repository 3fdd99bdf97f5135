//! Keys out of pages, and q·k logits over them, in a fixed order whatever the page size.

use riffle_attention::{LANES, PageView, Plane, bf16_to_f32, read_keys};

use crate::kernel::{Lanes, dots, widen_f16};

/// Keys `first..first + out.len() / head_dim` as f32, `[tokens, head_dim]`; zeros where no page holds the token.
pub(crate) fn read_tokens(pages: &[PageView<'_>], head_dim: usize, first: usize, out: &mut [f32]) {
    let end = first + out.len() / head_dim;
    out.fill(0.0);
    let after = pages.partition_point(|page| page.start + page.tokens <= first);
    for page in pages[after..].iter().take_while(|page| page.start < end) {
        let from = page.start.max(first);
        let count = (page.start + page.tokens).min(end) - from;
        let out = &mut out[(from - first) * head_dim..];
        read_keys(&page.keys, head_dim, from - page.start, count, out, head_dim)
            .expect("pages hold the tokens they say, of the queries' head_dim");
    }
}

/// Rows of logits; kept between calls, because memory that is new costs more than the products.
#[derive(Default)]
pub(crate) struct Logits {
    data: Vec<f32>,
    groups: usize,
    row_stride: usize,
}

impl Logits {
    /// Fills in `vectors · keys × scale`, `[vectors, groups]`.
    ///
    /// A group is `stride` consecutive keys side by side, so that vectors are `[count, stride × head_dim]` and group
    /// `j` begins at token `j × stride`; with stride 1 groups are keys. Each logit is summed over its elements in
    /// order.
    pub(crate) fn compute(
        &mut self,
        vectors: &[f32],
        pages: &[PageView<'_>],
        head_dim: usize,
        stride: usize,
        groups: usize,
        scale: f32,
    ) {
        let width = stride * head_dim;
        let count = vectors.len() / width;
        self.groups = groups;
        // An odd number of cache lines, lest all rows of a long sequence fall into the same few lines of the cache.
        self.row_stride = groups.next_multiple_of(2 * LANES) + LANES;
        if self.data.len() < count * self.row_stride {
            self.data.resize(count * self.row_stride, 0.0);
        }
        let mut rows = vec![0.0; LANES * head_dim];
        let mut stripe_keys: Vec<Lanes> = vec![[0.0; LANES]; head_dim];
        // [width, LANES]
        let mut keys: Vec<Lanes> = vec![[0.0; LANES]; width];
        let mut sums: Vec<Lanes> = vec![[0.0; LANES]; count];
        for first in (0..groups).step_by(LANES) {
            if stride == 1 {
                read_lanes(pages, first, &mut keys, &mut rows);
            } else {
                // Stripe by stripe: token t of them is number t % stride of group t / stride.
                for stripe in 0..stride {
                    read_lanes(pages, first * stride + stripe * LANES, &mut stripe_keys, &mut rows);
                    for (lane, token) in (stripe * LANES..(stripe + 1) * LANES).enumerate() {
                        let group_keys = &mut keys[token % stride * head_dim..][..head_dim];
                        for (key, value) in group_keys.iter_mut().zip(&stripe_keys) {
                            key[token / stride] = value[lane];
                        }
                    }
                }
            }
            dots(vectors, &keys, &mut sums);
            // The row's stride leaves room for a whole last stripe.
            for (sums, row) in sums.iter().zip(self.data.chunks_exact_mut(self.row_stride)) {
                for (out, sum) in row[first..first + LANES].iter_mut().zip(sums) {
                    *out = sum * scale;
                }
            }
        }
    }

    /// The rows computed last, in order; rows of earlier calls may follow.
    pub(crate) fn rows_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let groups = self.groups;
        self.data
            .chunks_exact_mut(self.row_stride.max(1))
            .map(move |row| &mut row[..groups])
    }
}

/// Reads the 16 keys from token `first` on, `[head_dim, LANES]`, with zeros where no page holds the token; `rows` is
/// scratch.
pub(crate) fn read_lanes(pages: &[PageView<'_>], first: usize, keys: &mut [Lanes], rows: &mut [f32]) {
    if read_stripe(pages, first, keys) {
        return;
    }
    read_tokens(pages, keys.len(), first, rows);
    for (lane, row) in rows.chunks_exact(keys.len()).enumerate() {
        keys.iter_mut().zip(row).for_each(|(key, value)| key[lane] = *value);
    }
}

/// Reads 16 keys that are one whole stripe of a float page, as they lie; false where they are not.
fn read_stripe(pages: &[PageView<'_>], first: usize, keys: &mut [Lanes]) -> bool {
    let after = pages.partition_point(|page| page.start + page.tokens <= first);
    let Some(page) = pages
        .get(after)
        .filter(|page| page.start <= first && first + LANES <= page.start + page.tokens)
    else {
        return false;
    };
    let slot = first - page.start;
    if !slot.is_multiple_of(LANES) {
        return false;
    }
    let elements = slot * keys.len()..(slot + LANES) * keys.len();
    let keys = keys.as_flattened_mut();
    match page.keys {
        Plane::F32(plane) => keys.copy_from_slice(&plane[elements]),
        Plane::F16(plane) => {
            widen_f16(&plane[elements], keys);
        }
        Plane::Bf16(plane) => {
            for (key, bits) in keys.iter_mut().zip(&plane[elements]) {
                *key = bf16_to_f32(*bits);
            }
        }
        Plane::Q8_0(_) | Plane::Q4_0(_) => return false,
    }
    true
}
