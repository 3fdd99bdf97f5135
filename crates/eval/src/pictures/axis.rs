//! Scales of axes and their labels.

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    /// An axis for all values: from zero, or logarithmic if the values are positive and far apart.
    pub(super) fn with_zero(values: impl Iterator<Item = f64> + Clone, far_apart: f64) -> Self {
        let values = values.filter(|value| value.is_finite());
        let high = values.clone().fold(f64::NEG_INFINITY, f64::max);
        let low = values.fold(f64::INFINITY, f64::min);
        if !low.is_finite() {
            return Self {
                low: 0.0,
                high: 1.0,
                logarithmic: false,
            };
        }
        if low > 0.0 && high / low >= far_apart {
            return Self {
                low,
                high,
                logarithmic: true,
            };
        }
        let high = if high > 0.0 { high } else { 1.0 };
        Self {
            low: low.min(0.0),
            high,
            logarithmic: false,
        }
    }

    /// An axis from the lowest to the highest value, logarithmic if the values are positive and far apart.
    pub(super) fn between(values: impl Iterator<Item = f64> + Clone, far_apart: f64) -> Self {
        let axis = Self::with_zero(values.clone(), far_apart);
        if axis.logarithmic {
            axis
        } else {
            Self {
                low: values.fold(axis.high, f64::min),
                ..axis
            }
        }
    }

    /// Widens the axis to whole steps and returns them.
    pub(super) fn with_ticks(self) -> (Self, Vec<f64>) {
        if self.logarithmic {
            let (low, high) = (self.low.log10().floor(), self.high.log10().ceil());
            let decades = (low as i32..=high as i32).map(|power| 10f64.powi(power));
            let within = |factors: &[f64]| -> Vec<f64> {
                let ticks = decades
                    .clone()
                    .flat_map(|decade| factors.iter().map(move |factor| decade * factor));
                let ticks: Vec<f64> = ticks.collect();
                let first = ticks
                    .iter()
                    .rposition(|tick| *tick <= self.low * 1.000_001)
                    .unwrap_or(0);
                let last = ticks
                    .iter()
                    .position(|tick| *tick >= self.high * 0.999_999)
                    .unwrap_or(ticks.len() - 1);
                ticks[first..=last].to_vec()
            };
            let ticks = [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]]
                .into_iter()
                .map(within)
                .find(|ticks| ticks.len() <= 9)
                .unwrap_or_else(|| within(&[1.0]));
            let axis = Self {
                low: ticks[0],
                high: ticks[ticks.len() - 1],
                logarithmic: true,
            };
            return (axis, ticks);
        }
        let range = if self.high > self.low {
            self.high - self.low
        } else {
            self.high.abs().max(1.0)
        };
        let step = nice_step(range / 5.0);
        let (first, last) = ((self.low / step).floor(), (self.high / step - 1e-9).ceil());
        let last = last.max(first + 1.0);
        let ticks: Vec<f64> = (first as i64..=last as i64).map(|n| n as f64 * step).collect();
        (
            Self {
                low: first * step,
                high: last * step,
                logarithmic: false,
            },
            ticks,
        )
    }

    /// Maps a value to its share of the axis, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        let (low, high, value) = if self.logarithmic {
            (self.low.ln(), self.high.ln(), value.ln())
        } else {
            (self.low, self.high, value)
        };
        if high > low {
            ((value - low) / (high - low)).clamp(0.0, 1.0)
        } else {
            0.5
        }
    }

    pub(super) fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }
}

/// The smallest of 1, 2, 5, 10, … that is at least `least`.
fn nice_step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * decade >= least * 0.999_999);
    factor.unwrap_or(10.0) * decade
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_enclose_the_values_and_are_round() {
        let (axis, ticks) = Axis::with_zero([3.0, 47.0].into_iter(), 100.0).with_ticks();
        assert_eq!(ticks, [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!(axis.place(25.0), 0.5);
        let (axis, ticks) = Axis::with_zero([900.0, 70_000.0].into_iter(), 30.0).with_ticks();
        assert_eq!(ticks, [500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5]);
        assert!(axis.is_logarithmic() && axis.place(500.0) == 0.0 && axis.place(1e5) == 1.0);
    }

    #[test]
    fn odd_values_still_give_an_axis() {
        for values in [vec![], vec![0.0], vec![f64::NAN], vec![5.0], vec![-2.0, 1.0]] {
            let (axis, ticks) = Axis::with_zero(values.iter().copied(), 30.0).with_ticks();
            assert!(
                ticks.len() >= 2 && ticks.iter().all(|tick| tick.is_finite()),
                "{values:?} {ticks:?}"
            );
            assert!((0.0..=1.0).contains(&axis.place(0.5)));
        }
    }
}
