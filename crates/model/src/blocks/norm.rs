//! Normalisation of rows.

use super::rows::for_rows;

/// Lanes of sums, which vectorise and have a fixed order.
const LANES: usize = 16;

/// A norm with its learned weights.
#[derive(Debug)]
pub enum Norm {
    /// x / √(mean of squares + epsilon) · weight.
    Rms {
        /// `[width]`.
        weight: Vec<f32>,
        /// Number added to the mean of squares.
        epsilon: f32,
    },
    /// (x - mean) / √(variance + epsilon) · weight + bias.
    Layer {
        /// `[width]`.
        weight: Vec<f32>,
        /// `[width]`.
        bias: Vec<f32>,
        /// Number added to the variance.
        epsilon: f32,
    },
    /// As `Layer`, without a bias and separately for each `group` of neighbours.
    Groups {
        /// `[width]`.
        weight: Vec<f32>,
        /// Divides the width.
        group: usize,
        /// Number added to the variance.
        epsilon: f32,
    },
    /// Returns the input unchanged, for layers that normalise their results instead.
    Identity {
        /// Values of a row.
        width: usize,
    },
}

impl Norm {
    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> u64 {
        let values = match self {
            Norm::Rms { weight, .. } | Norm::Groups { weight, .. } => weight.len(),
            Norm::Layer { weight, bias, .. } => weight.len() + bias.len(),
            Norm::Identity { .. } => 0,
        };
        4 * values as u64
    }

    /// Values of a row.
    pub(crate) fn width(&self) -> usize {
        match self {
            Norm::Rms { weight, .. } | Norm::Layer { weight, .. } | Norm::Groups { weight, .. } => weight.len(),
            Norm::Identity { width } => *width,
        }
    }

    /// `output[row] = norm(input[row])`, both `[rows, width]`.
    pub(crate) fn apply(&self, input: &[f32], output: &mut [f32]) {
        let width = self.width();
        for_rows(output, width, |row, output| {
            self.row(&input[row * width..][..width], output)
        });
    }

    /// Normalises one row in place.
    pub(crate) fn apply_in_place(&self, row: &mut [f32]) {
        match self {
            Norm::Rms { weight, epsilon } => {
                let scale = rms_scale(row, *epsilon);
                for (value, weight) in row.iter_mut().zip(weight) {
                    *value = *value * scale * weight;
                }
            }
            Norm::Layer { weight, bias, epsilon } => {
                let (mean, scale) = mean_and_scale(row, *epsilon);
                for ((value, weight), bias) in row.iter_mut().zip(weight).zip(bias) {
                    *value = (*value - mean) * scale * weight + bias;
                }
            }
            Norm::Groups { weight, group, epsilon } => {
                for (row, weight) in row.chunks_exact_mut(*group).zip(weight.chunks_exact(*group)) {
                    let (mean, scale) = mean_and_scale(row, *epsilon);
                    for (value, weight) in row.iter_mut().zip(weight) {
                        *value = (*value - mean) * scale * weight;
                    }
                }
            }
            Norm::Identity { .. } => {}
        }
    }

    fn row(&self, input: &[f32], output: &mut [f32]) {
        match self {
            Norm::Rms { weight, epsilon } => {
                let scale = rms_scale(input, *epsilon);
                for ((output, input), weight) in output.iter_mut().zip(input).zip(weight) {
                    *output = *input * scale * weight;
                }
            }
            Norm::Layer { weight, bias, epsilon } => {
                let (mean, scale) = mean_and_scale(input, *epsilon);
                for (((output, input), weight), bias) in output.iter_mut().zip(input).zip(weight).zip(bias) {
                    *output = (*input - mean) * scale * weight + bias;
                }
            }
            Norm::Groups { .. } | Norm::Identity { .. } => {
                output.copy_from_slice(input);
                self.apply_in_place(output);
            }
        }
    }
}

/// 1 / √(mean of squares + epsilon).
pub(super) fn rms_scale(row: &[f32], epsilon: f32) -> f32 {
    (lane_sum(row, |x| x * x) / row.len() as f32 + epsilon).sqrt().recip()
}

fn mean_and_scale(row: &[f32], epsilon: f32) -> (f32, f32) {
    let mean = lane_sum(row, |x| x) / row.len() as f32;
    let variance = lane_sum(row, |x| (x - mean) * (x - mean)) / row.len() as f32;
    (mean, (variance + epsilon).sqrt().recip())
}

/// Sum of `term(x)` in a fixed order.
pub(super) fn lane_sum(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += term(chunk[lane]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += term(*x);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 1.7)
            .collect()
    }

    #[test]
    fn norms_equal_the_f64_formula_at_odd_widths() {
        for width in [1, 2, 15, 16, 17, 33, 128, 1000] {
            let (input, weight, bias) = (values(3 * width, 1), values(width, 2), values(width, 3));
            let rms = Norm::Rms {
                weight: weight.clone(),
                epsilon: 1e-5,
            };
            let layer = Norm::Layer {
                weight: weight.clone(),
                bias: bias.clone(),
                epsilon: 1e-5,
            };
            let (mut rms_output, mut layer_output) = (vec![0.0; 3 * width], vec![0.0; 3 * width]);
            rms.apply(&input, &mut rms_output);
            layer.apply(&input, &mut layer_output);
            for row in 0..3 {
                let exact: Vec<f64> = input[row * width..][..width].iter().map(|x| f64::from(*x)).collect();
                let count = width as f64;
                let square = exact.iter().map(|x| x * x).sum::<f64>() / count;
                let mean = exact.iter().sum::<f64>() / count;
                let variance = exact.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                for (i, x) in exact.iter().enumerate() {
                    let (weight, bias) = (f64::from(weight[i]), f64::from(bias[i]));
                    let expected_rms = x / (square + 1e-5).sqrt() * weight;
                    let expected_layer = (x - mean) / (variance + 1e-5).sqrt() * weight + bias;
                    assert!((f64::from(rms_output[row * width + i]) - expected_rms).abs() < 1e-5);
                    assert!((f64::from(layer_output[row * width + i]) - expected_layer).abs() < 1e-5);
                }
            }
        }
    }

    #[test]
    fn a_row_is_normalised_alike_alone_in_a_batch_and_in_place() {
        let width = 129;
        let rows = 600;
        let input = values(rows * width, 5);
        let norm = Norm::Rms {
            weight: values(width, 6),
            epsilon: 1e-6,
        };
        let mut batch = vec![0.0; rows * width];
        norm.apply(&input, &mut batch);
        for row in 0..rows {
            let mut alone = vec![0.0; width];
            norm.apply(&input[row * width..][..width], &mut alone);
            let mut in_place = input[row * width..][..width].to_vec();
            norm.apply_in_place(&mut in_place);
            assert_eq!(alone, batch[row * width..][..width]);
            assert_eq!(alone, in_place);
        }
    }
}
