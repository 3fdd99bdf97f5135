//! Keys out of pages, and q·k logits over them, in a fixed order whatever the page size.

use riffle_attention::{LANES, PageView, read_keys};

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

/// Logits `vectors · keys × scale`, `[vectors, groups]`.
///
/// A group is `stride` consecutive keys side by side, so that vectors are `[count, stride × head_dim]` and group `j`
/// begins at token `j × stride`; with stride 1 groups are keys. Each logit is summed over its elements in order.
pub(crate) fn logits(
    vectors: &[f32],
    pages: &[PageView<'_>],
    head_dim: usize,
    stride: usize,
    groups: usize,
    scale: f32,
) -> Vec<f32> {
    let width = stride * head_dim;
    let count = vectors.len() / width;
    let mut out = vec![0.0; count * groups];
    let mut rows = vec![0.0; LANES * width];
    // [width, LANES]
    let mut lanes = vec![[0.0f32; LANES]; width];
    for first in (0..groups).step_by(LANES) {
        let valid = LANES.min(groups - first);
        read_tokens(pages, head_dim, first * stride, &mut rows);
        for (lane, row) in rows.chunks_exact(width).enumerate() {
            for (column, value) in lanes.iter_mut().zip(row) {
                column[lane] = *value;
            }
        }
        for (vector, out) in vectors.chunks_exact(width).zip(out.chunks_exact_mut(groups)) {
            let mut sums = [0.0f32; LANES];
            for (value, column) in vector.iter().zip(&lanes) {
                for (sum, key) in sums.iter_mut().zip(column) {
                    *sum += value * key;
                }
            }
            for (out, sum) in out[first..first + valid].iter_mut().zip(sums) {
                *out = sum * scale;
            }
        }
    }
    out
}

/// Turns logits into their softmax and returns nothing else to normalise; an empty slice stays empty.
pub(crate) fn softmax(logits: &mut [f32]) {
    let top = logits.iter().fold(f32::NEG_INFINITY, |top, logit| top.max(*logit));
    let mut total = 0.0f64;
    for logit in logits.iter_mut() {
        *logit = exp(*logit - top);
        total += f64::from(*logit);
    }
    let factor = (1.0 / total) as f32;
    for weight in logits {
        *weight *= factor;
    }
}

/// e^x for x ≤ 0, the same bits on every machine: 2^n · p(r) with |r| ≤ ½ ln 2, relative error below 3e-7.
fn exp(x: f32) -> f32 {
    // To nearest by adding and subtracting 1.5 · 2^23.
    const MAGIC: f32 = 12_582_912.0;
    let x = x.max(-87.0);
    let n = (x * std::f32::consts::LOG2_E + MAGIC) - MAGIC;
    // ln 2 in two parts, the first exact times n.
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut p = 1.0 / 720.0;
    for factor in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + factor;
    }
    p * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_its_error() {
        for step in 0..870_000 {
            let x = -(step as f32) * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 3e-7, "{x}: {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn a_softmax_sums_to_one_and_of_nothing_is_nothing() {
        let mut weights = [3.0, -80.0, 2.0, 3.0];
        softmax(&mut weights);
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(weights[0], weights[3]);
        softmax(&mut []);
    }
}
