//! Confidence intervals from few samples.

use std::fmt;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// A mean with its 95% confidence interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The mean of the samples.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Samples.
    pub samples: usize,
}

/// Normal quantile of a two-sided 95% interval.
const Z: f64 = 1.959_963_984_540_054;

/// Draws of a bootstrap.
const DRAWS: usize = 2000;

impl Interval {
    /// Interval of a mean of scores from 0 to 1. With at least twenty scores, some strictly between, a seeded
    /// bootstrap gives percentiles. Otherwise it is Wilson's interval, which is too wide for scores strictly between.
    pub fn of_scores(scores: &[f64]) -> Self {
        if scores.len() < 20 || scores.iter().all(|score| *score == 0.0 || *score == 1.0) {
            return Self::wilson(scores.iter().sum(), scores.len());
        }
        Self::bootstrap(scores)
    }

    /// Wilson's score interval of `successes` of `samples`; from 0 to 1 without samples.
    ///
    /// Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    pub fn wilson(successes: f64, samples: usize) -> Self {
        if samples == 0 {
            return Self {
                mean: 0.0,
                low: 0.0,
                high: 1.0,
                samples,
            };
        }
        let n = samples as f64;
        let mean = successes / n;
        let scale = 1.0 / (1.0 + Z * Z / n);
        let centre = (mean + Z * Z / (2.0 * n)) * scale;
        let half = Z * scale * (mean * (1.0 - mean) / n + Z * Z / (4.0 * n * n)).sqrt();
        Self {
            mean,
            // At the ends the formula equals the mean except for rounding.
            low: (centre - half).clamp(0.0, mean),
            high: (centre + half).clamp(mean, 1.0),
            samples,
        }
    }

    /// The 2.5th and 97.5th percentiles of means of resampled values, with a fixed seed.
    pub fn bootstrap(values: &[f64]) -> Self {
        let samples = values.len();
        if samples == 0 {
            return Self {
                mean: 0.0,
                low: 0.0,
                high: 1.0,
                samples,
            };
        }
        let mean = values.iter().sum::<f64>() / samples as f64;
        let mut random = ChaCha8Rng::seed_from_u64(0x5eed);
        let mut means: Vec<f64> = (0..DRAWS)
            .map(|_| {
                let sum: f64 = (0..samples).map(|_| values[random.random_range(0..samples)]).sum();
                sum / samples as f64
            })
            .collect();
        means.sort_by(f64::total_cmp);
        let at = |share: f64| means[((DRAWS as f64 * share) as usize).min(DRAWS - 1)];
        Self {
            mean,
            low: at(0.025).min(mean),
            high: at(0.975).max(mean),
            samples,
        }
    }
}

/// Two sets of answers to the same questions, compared question by question.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Paired {
    /// Questions with a better answer in the first set.
    pub better: usize,
    /// Questions with a worse answer in the first set.
    pub worse: usize,
    /// Probability of a difference at least this large in either direction, if better and worse were equally likely.
    pub p: f64,
}

impl Paired {
    /// The exact sign test over equal questions in the same order; `None` for different numbers of questions, or
    /// none. For scores of 0 and 1 it is McNemar's exact test (McNemar 1947, "Note on the sampling error of the
    /// difference between correlated proportions").
    pub fn of_scores(scores: &[f64], others: &[f64]) -> Option<Self> {
        if scores.len() != others.len() || scores.is_empty() {
            return None;
        }
        let count = |is: fn(&f64, &f64) -> bool| scores.iter().zip(others).filter(|(a, b)| is(a, b)).count();
        let (better, worse) = (count(|a, b| a > b), count(|a, b| a < b));
        Some(Self {
            better,
            worse,
            p: two_sided(better.min(worse), better + worse),
        })
    }
}

impl fmt::Display for Paired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { better, worse, p } = self;
        if *p < 0.001 {
            write!(f, "{better} / {worse}, <0.001")
        } else {
            write!(f, "{better} / {worse}, {p:.3}")
        }
    }
}

/// Chance of at most `few` or at least `all - few` heads among `all` throws of a fair coin.
fn two_sided(few: usize, all: usize) -> f64 {
    // Each logarithm of the binomial coefficient follows from the previous one; 2^all itself would overflow.
    let mut ln_ways = 0.0;
    let mut sum = 0.0;
    for heads in 0..=few {
        if heads > 0 {
            ln_ways += ((all - heads + 1) as f64 / heads as f64).ln();
        }
        sum += (ln_ways - all as f64 * std::f64::consts::LN_2).exp();
    }
    (2.0 * sum).min(1.0)
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mean,
            low,
            high,
            samples,
        } = self;
        write!(f, "{mean:.3} ({low:.3} to {high:.3}, {samples} samples)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_intervals_are_those_of_the_formula() {
        // Computed by hand to six places: 8 of 10, none of 10, all of 20.
        for ((successes, samples), (low, high)) in [
            ((8.0, 10), (0.490_162, 0.943_318)),
            ((0.0, 10), (0.0, 0.277_533)),
            ((20.0, 20), (0.838_875, 1.0)),
        ] {
            let interval = Interval::wilson(successes, samples);
            assert!((interval.low - low).abs() < 1e-5, "{interval:?}");
            assert!((interval.high - high).abs() < 1e-5, "{interval:?}");
        }
        assert_eq!(Interval::wilson(0.0, 0).high, 1.0);
    }

    #[test]
    fn paired_tests_are_the_exact_binomial() {
        let scores = |right: &[usize]| {
            (0..30)
                .map(|n| f64::from(u8::from(right.contains(&n))))
                .collect::<Vec<_>>()
        };
        // By hand: 2 · (1 + 9) / 2⁹, 2 / 2⁶, more than 1, and nothing that differs.
        let ten: Vec<usize> = (0..10).collect();
        for (first, second, better, worse, p) in [
            (&[29][..], &ten[..8], 1, 8, 0.039_062_5),
            (&ten[..6], &[][..], 6, 0, 0.031_25),
            (&[0, 1, 5][..], &[2, 3, 5][..], 2, 2, 1.0),
            (&[4][..], &[4][..], 0, 0, 1.0),
        ] {
            let paired = Paired::of_scores(&scores(first), &scores(second)).unwrap();
            assert_eq!((paired.better, paired.worse), (better, worse));
            assert!((paired.p - p).abs() < 1e-12, "{paired:?}");
        }
        // 2 · Σ C(2000, k) / 2²⁰⁰⁰ over k up to 800, in whole numbers.
        assert!((two_sided(800, 2000) / 3.505_006_206_935_645e-19 - 1.0).abs() < 1e-9);
        assert!(Paired::of_scores(&[1.0], &[]).is_none() && Paired::of_scores(&[], &[]).is_none());
        let between = Paired::of_scores(&[0.25, 0.5, 1.0], &[0.5, 0.5, 0.0]).unwrap();
        assert_eq!((between.better, between.worse), (1, 1));
    }

    #[test]
    fn bootstrap_intervals_are_the_same_each_time_and_shrink_with_samples() {
        let values = |n: usize| (0..n).map(|i| (i % 4) as f64 / 3.0).collect::<Vec<_>>();
        let (few, many) = (Interval::bootstrap(&values(20)), Interval::bootstrap(&values(2000)));
        assert_eq!(few, Interval::bootstrap(&values(20)));
        assert!((few.mean - 0.5).abs() < 1e-12 && few.low < 0.5 && few.high > 0.5);
        // The standard error of 20 such values is 0.0833: the interval is about ±0.163.
        assert!((few.high - few.low - 0.327).abs() < 0.06, "{few:?}");
        assert!(many.high - many.low < 0.05, "{many:?}");
        assert_eq!(Interval::of_scores(&[1.0, 0.5]), Interval::wilson(1.5, 2));
    }
}
