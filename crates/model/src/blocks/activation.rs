//! Activations of the feed-forward block, written so that the compiler vectorises them.

use super::rows::for_pairs;
use crate::ModelError;
use crate::fields::Fields;

/// The non-linearity of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// The tanh form of x · Φ(x).
    GeluTanh,
    /// x · Φ(x).
    Gelu,
    /// max(x, 0).
    Relu,
    /// max(x, 0)².
    ReluSquared,
    /// xIELU (arXiv:2411.13010): a parabola above zero, an exponential below, both with learned curvature.
    Xielu {
        /// Factor on x² above zero.
        above: f32,
        /// Factor on e^x - 1 - x below zero.
        below: f32,
        /// Factor on x.
        slope: f32,
        /// The exponential's argument is min(x, `limit`).
        limit: f32,
    },
    /// x · sigmoid(`alpha` · x) for x clamped to at most `limit`. A gated block multiplies by one plus the other
    /// branch, which is clamped to ±`limit`.
    ClampedSilu {
        /// Factor below the sigmoid.
        alpha: f32,
        /// Largest input.
        limit: f32,
    },
}

impl Activation {
    /// The activation that a setting names; `default` if it is absent or null.
    pub fn from_fields(fields: &Fields, setting: &str, default: &str) -> Result<Activation, ModelError> {
        match fields.text(setting)?.unwrap_or(default) {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
            "gelu" | "gelu_python" => Ok(Activation::Gelu),
            "relu" => Ok(Activation::Relu),
            "relu2" => Ok(Activation::ReluSquared),
            other => Err(fields.error(
                setting,
                format!(
                    "activation {other:?} is not supported; supported are silu, gelu, gelu_new, gelu_pytorch_tanh, relu, relu2"
                ),
            )),
        }
    }

    /// `values = activation(values)`.
    pub(crate) fn apply(self, values: &mut [f32]) {
        super::rows::for_rows(values, 1, |_, value| value[0] = self.value(value[0]));
    }

    /// Name of the activation, if no device computes it.
    pub(crate) fn host_only(self) -> Option<&'static str> {
        match self {
            Activation::Silu | Activation::GeluTanh => None,
            Activation::Gelu => Some("activation gelu"),
            Activation::Relu => Some("activation relu"),
            Activation::ReluSquared => Some("activation relu2"),
            Activation::Xielu { .. } => Some("activation xielu"),
            Activation::ClampedSilu { .. } => Some("clamped SwiGLU"),
        }
    }

    /// `gate = activation(gate) * up`.
    pub(crate) fn gate(self, gate: &mut [f32], up: &[f32]) {
        match self {
            Activation::Silu => gate_by(gate, up, silu),
            Activation::GeluTanh => gate_by(gate, up, gelu_tanh),
            Activation::Gelu => gate_by(gate, up, gelu),
            Activation::Relu => gate_by(gate, up, relu),
            Activation::ReluSquared => gate_by(gate, up, relu_squared),
            Activation::Xielu { .. } => gate_by(gate, up, |value| self.value(value)),
            Activation::ClampedSilu { alpha, limit } => for_pairs(gate, up, |gate, up| {
                for (gate, up) in gate.iter_mut().zip(up) {
                    *gate = clamped_silu(*gate, alpha, limit) * (up.clamp(-limit, limit) + 1.0);
                }
            }),
        }
    }

    fn value(self, value: f32) -> f32 {
        match self {
            Activation::Silu => silu(value),
            Activation::GeluTanh => gelu_tanh(value),
            Activation::Gelu => gelu(value),
            Activation::Relu => relu(value),
            Activation::ReluSquared => relu_squared(value),
            Activation::Xielu { above, slope, .. } if value > 0.0 => above * value * value + slope * value,
            Activation::Xielu {
                below, slope, limit, ..
            } => (value.min(limit).exp_m1() - value) * below + slope * value,
            Activation::ClampedSilu { alpha, limit } => clamped_silu(value, alpha, limit),
        }
    }
}

/// `gate = activation(gate) * up`.
#[inline(always)]
fn gate_by(gate: &mut [f32], up: &[f32], activation: impl Fn(f32) -> f32 + Sync) {
    for_pairs(gate, up, |gate, up| {
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate = activation(*gate) * up;
        }
    });
}

/// `values = values · sigmoid(gate)`.
pub(crate) fn sigmoid_gate(values: &mut [f32], gate: &[f32]) {
    for_pairs(values, gate, |values, gate| {
        for (value, gate) in values.iter_mut().zip(gate) {
            *value *= sigmoid(*gate);
        }
    });
}

/// Multiplies every `width` neighbours by ln(1 + e^gate), with one gate for them.
pub(crate) fn softplus_gate_heads(values: &mut [f32], gate: &[f32], width: usize) {
    super::rows::for_rows(values, width, |head, values| {
        let opening = softplus(gate[head]);
        values.iter_mut().for_each(|value| *value *= opening);
    });
}

/// As [`sigmoid_gate`], with one gate for every `width` neighbours.
pub(crate) fn sigmoid_gate_heads(values: &mut [f32], gate: &[f32], width: usize) {
    super::rows::for_rows(values, width, |head, values| {
        let opening = sigmoid(gate[head]);
        values.iter_mut().for_each(|value| *value *= opening);
    });
}

#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[inline(always)]
fn clamped_silu(x: f32, alpha: f32, limit: f32) -> f32 {
    let x = x.min(limit);
    x * sigmoid(alpha * x)
}

/// ln(1 + e^x).
pub(crate) fn softplus(x: f32) -> f32 {
    // Beyond 20 the added one is lost in rounding.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    // 0.5 (1 + tanh u) = sigmoid(2u), which avoids the cancellation in 1 + tanh u.
    let u = 0.797_884_6 * (x + 0.044_715 * x * x * x);
    x / (1.0 + exp(-2.0 * u))
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    x.max(0.0)
}

#[inline(always)]
fn relu_squared(x: f32) -> f32 {
    let positive = x.max(0.0);
    positive * positive
}

/// x · Φ(x), with the error function of Abramowitz and Stegun 7.1.26, accurate to 1.5e-7.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    let scaled = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * scaled);
    let series = 1.061_405_4;
    let series = series * t - 1.453_152;
    let series = series * t + 1.421_413_8;
    let series = series * t - 0.284_496_72;
    let series = series * t + 0.254_829_6;
    // Φ(-|x|), without cancellation.
    let tail = 0.5 * series * t * exp(-scaled * scaled);
    if x < 0.0 { x * tail } else { x - x * tail }
}

/// e^x to about one unit in the last place, without branches or calls.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2^23 rounds to an integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    // ln 2 in two terms; products of the first with small integers are exact.
    let r = x - whole * 0.693_359_4 - whole * -2.121_944_4e-4;
    let power = 1.987_569_1e-4;
    let power = power * r + 1.398_199_9e-3;
    let power = power * r + 8.333_452e-3;
    let power = power * r + 4.166_579_6e-2;
    let power = power * r + 1.666_666_5e-1;
    let power = power * r + 0.5;
    let power = power * r * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    power * f32::from_bits(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep() -> impl Iterator<Item = f32> {
        (-200_000..=200_000).map(|i| i as f32 * 4.3e-4)
    }

    #[test]
    fn exp_is_accurate_over_its_range() {
        for x in sweep() {
            let exact = f64::from(x).clamp(-87.0, 88.0).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2e-7, "exp({x}) is off by {error}");
        }
    }

    #[test]
    fn activations_follow_their_formulas() {
        for x in sweep() {
            let exact = f64::from(x);
            let silu_exact = exact / (1.0 + (-exact).exp());
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (exact + 0.044715 * exact.powi(3));
            let gelu_exact = 0.5 * exact * (1.0 + inner.tanh());
            assert!(
                (f64::from(silu(x)) - silu_exact).abs() <= 3e-7 * silu_exact.abs().max(1e-3),
                "silu({x})"
            );
            assert!(
                (f64::from(gelu_tanh(x)) - gelu_exact).abs() <= 2e-6 * gelu_exact.abs().max(1e-1),
                "gelu({x})"
            );
            assert!((gelu(x) - gelu_tanh(x)).abs() < 5e-4, "the two forms of gelu({x})");
        }
    }

    #[test]
    fn gelu_follows_the_normal_distribution() {
        // x and Φ(x), from tables of the normal distribution.
        for (x, probability) in [
            (0.0, 0.5),
            (0.5, 0.691_462_461),
            (1.0, 0.841_344_746),
            (1.96, 0.975_002_105),
            (3.0, 0.998_650_102),
        ] {
            assert!(
                (f64::from(gelu(x)) - f64::from(x) * probability).abs() < 4e-7,
                "gelu({x})"
            );
            assert!(
                (f64::from(gelu(-x)) + f64::from(x) * (1.0 - probability)).abs() < 4e-7,
                "gelu(-{x})"
            );
        }
    }

    #[test]
    fn gating_large_and_small_arrays_gives_the_same_bits() {
        let gate: Vec<f32> = (0..100_003).map(|i| ((i * 37 % 1000) as f32 - 500.0) / 50.0).collect();
        let up: Vec<f32> = (0..100_003).map(|i| ((i * 53 % 777) as f32 - 300.0) / 90.0).collect();
        let mut whole = gate.clone();
        Activation::Silu.gate(&mut whole, &up);
        let mut pieces = gate;
        for (gate, up) in pieces.chunks_mut(7).zip(up.chunks(7)) {
            Activation::Silu.gate(gate, up);
        }
        assert_eq!(whole, pieces);
    }
}
