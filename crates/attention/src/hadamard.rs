//! The Walsh–Hadamard transform of heads, which spreads outliers over all dimensions before they are quantised.

use crate::LANES;
use crate::simd::{Kernel, Level, Simd};

/// Rotates every head of `data`, `[heads, head_dim]`, by the normalised Walsh–Hadamard matrix.
///
/// The matrix is its own inverse and preserves products. If queries and keys are both rotated, logits stay the same.
/// Rotated values give rotated outputs, which a second call rotates back. A head length that is not a power of two is
/// rotated in blocks: their length is the largest power of two that divides it. The method is QuaRot's, Ashkboos et al.
/// 2024, arXiv:2404.00456.
///
/// Elements after the last whole head are unchanged.
pub fn rotate_heads(data: &mut [f32], head_dim: usize) {
    Level::best().run(Rotate { data, head_dim });
}

/// As [`rotate_heads`], with the same bits on every instruction set.
struct Rotate<'a> {
    data: &'a mut [f32],
    head_dim: usize,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { data, head_dim } = self;
        if head_dim == 0 {
            return;
        }
        let block = 1usize << head_dim.trailing_zeros();
        let scale = 1.0 / crate::math::sqrt(block as f32);
        let whole = data.len() / head_dim * head_dim;
        for block in data[..whole].chunks_exact_mut(block) {
            rotate(block, scale);
        }
    }
}

/// `block` has a power of two of elements.
#[inline(always)]
fn rotate(block: &mut [f32], scale: f32) {
    for value in block.iter_mut() {
        *value *= scale;
    }
    let mut stride = block.len() / 2;
    while stride >= LANES {
        for pair in block.chunks_exact_mut(2 * stride) {
            let (low, high) = pair.split_at_mut(stride);
            butterflies(low, high);
        }
        stride /= 2;
    }
    let (rows, rest) = block.as_chunks_mut::<LANES>();
    for row in rows {
        rotate_row(row);
    }
    // A block with fewer elements than `LANES`.
    let mut stride = rest.len() / 2;
    while stride > 0 {
        for pair in rest.chunks_exact_mut(2 * stride) {
            let (low, high) = pair.split_at_mut(stride);
            butterflies(low, high);
        }
        stride /= 2;
    }
}

#[inline(always)]
fn rotate_row(row: &mut [f32; LANES]) {
    turn::<8>(row);
    turn::<4>(row);
    turn::<2>(row);
    turn::<1>(row);
}

/// One stride within a row, as a permutation of the whole row that the compiler turns into vector shuffles.
#[inline(always)]
fn turn<const STRIDE: usize>(row: &mut [f32; LANES]) {
    let own = *row;
    for lane in 0..LANES {
        let signed = if lane & STRIDE == 0 { own[lane] } else { -own[lane] };
        row[lane] = signed + own[lane ^ STRIDE];
    }
}

#[inline(always)]
fn butterflies(low: &mut [f32], high: &mut [f32]) {
    for (low, high) in low.iter_mut().zip(high) {
        (*low, *high) = (*low + *high, *low - *high);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn heads(head_dim: usize) -> Vec<f32> {
        (0..3 * head_dim + 5)
            .map(|i| ((i * i + 7 * i) % 101) as f32 - 50.0)
            .collect()
    }

    #[test]
    fn a_head_is_multiplied_by_the_matrix_of_signs() {
        for head_dim in [2, 8, 16, 32, 48, 64, 80, 96, 128, 256] {
            let original = heads(head_dim);
            let mut rotated = original.clone();
            rotate_heads(&mut rotated, head_dim);
            let block = 1usize << head_dim.trailing_zeros();
            let whole = original.len() / head_dim * head_dim;
            for (at, value) in rotated[..whole].iter().enumerate() {
                let (start, row) = (at / block * block, at % block);
                let sum: f64 = (0..block)
                    .map(|column| {
                        let sign = if (row & column).count_ones() % 2 == 0 {
                            1.0
                        } else {
                            -1.0
                        };
                        sign * f64::from(original[start + column])
                    })
                    .sum();
                let expected = sum / (block as f64).sqrt();
                assert!(
                    (f64::from(*value) - expected).abs() < 1e-3,
                    "{head_dim} {at}: {value} {expected}"
                );
            }
            assert_eq!(rotated[whole..], original[whole..]);
        }
    }

    #[test]
    fn every_instruction_set_rotates_to_the_same_bits() {
        for head_dim in [2, 8, 48, 80, 128, 256] {
            let rotated = |level: Level| {
                let mut data = heads(head_dim);
                let task = Rotate {
                    data: &mut data,
                    head_dim,
                };
                level.run(task);
                data
            };
            for level in Level::all() {
                assert_eq!(rotated(level), rotated(Level::SCALAR), "{head_dim} {level:?}");
            }
        }
    }

    #[test]
    fn keys_with_a_loud_channel_lose_less_in_four_bits_when_they_are_rotated() {
        use crate::{Format, PlaneMut, read_keys, write_keys};
        let head_dim = 64;
        let mut keys: Vec<f32> = (0..16 * head_dim)
            .map(|i| ((i * 37 + i / 11) % 23) as f32 / 11.0 - 1.0)
            .collect();
        for key in keys.chunks_exact_mut(head_dim) {
            key[5] += 12.0;
            key[50] -= 9.0;
        }
        let error = |rotates: bool| {
            let mut stored = keys.clone();
            let mut bytes = alloc::vec![0; Format::Q4_0.plane_bytes(16, head_dim)];
            if rotates {
                rotate_heads(&mut stored, head_dim);
            }
            let mut plane = PlaneMut::Q4_0(&mut bytes);
            write_keys(&mut plane, head_dim, 0, 16, &stored, head_dim).unwrap();
            read_keys(&crate::Plane::Q4_0(&bytes), head_dim, 0, 16, &mut stored, head_dim).unwrap();
            if rotates {
                rotate_heads(&mut stored, head_dim);
            }
            stored.iter().zip(&keys).map(|(a, b)| (a - b).powi(2)).sum::<f32>()
        };
        assert!(error(true) < 0.5 * error(false), "{} {}", error(true), error(false));
    }

    #[test]
    fn twice_is_nothing_and_products_stay() {
        for head_dim in [48, 64, 128] {
            let original = heads(head_dim);
            let mut rotated = original.clone();
            rotate_heads(&mut rotated, head_dim);
            let dot = |data: &[f32]| -> f64 {
                let (a, b) = (&data[..head_dim], &data[head_dim..2 * head_dim]);
                a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            assert!((dot(&rotated) - dot(&original)).abs() < 1e-6 * dot(&original).abs().max(1e5));
            rotate_heads(&mut rotated, head_dim);
            for (twice, once) in rotated.iter().zip(&original) {
                assert!((twice - once).abs() < 1e-4);
            }
        }
    }
}
