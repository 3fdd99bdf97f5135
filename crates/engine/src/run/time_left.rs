//! How long a prefill will still take.

/// Estimates the rest of a prefill from the work done so far: t = a·n + b·n² with a, b ≥ 0, because linear layers
/// cost the same for every token while dense attention costs more the deeper it is.
#[derive(Debug, Clone, Default)]
pub struct TimeLeft {
    // Sums over observations (n, t): n², n³, n⁴, t·n, t·n².
    n2: f64,
    n3: f64,
    n4: f64,
    tn: f64,
    tn2: f64,
}

impl TimeLeft {
    /// Records that `tokens` were done after `elapsed_s` seconds.
    pub fn record(&mut self, tokens: f64, elapsed_s: f64) {
        let n2 = tokens * tokens;
        self.n2 += n2;
        self.n3 += n2 * tokens;
        self.n4 += n2 * n2;
        self.tn += elapsed_s * tokens;
        self.tn2 += elapsed_s * n2;
    }

    /// Seconds from `done` to `total` tokens by the fitted curve; `None` before the first observation.
    pub fn seconds(&self, done: f64, total: f64) -> Option<f64> {
        if self.n2 == 0.0 {
            return None;
        }
        let (linear, square) = self.fit();
        Some((linear * (total - done) + square * (total * total - done * done)).max(0.0))
    }

    /// Least squares for t = a·n + b·n², each coefficient at least 0.
    fn fit(&self) -> (f64, f64) {
        let determinant = self.n2 * self.n4 - self.n3 * self.n3;
        if determinant > 1e-9 * self.n2 * self.n4 {
            let linear = (self.tn * self.n4 - self.tn2 * self.n3) / determinant;
            let square = (self.tn2 * self.n2 - self.tn * self.n3) / determinant;
            if linear < 0.0 {
                return (0.0, self.tn2 / self.n4);
            }
            if square >= 0.0 {
                return (linear, square);
            }
        }
        (self.tn / self.n2, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(observations: impl Fn(f64) -> f64) -> TimeLeft {
        let mut left = TimeLeft::default();
        for n in 1..=10 {
            let n = f64::from(n) * 100.0;
            left.record(n, observations(n));
        }
        left
    }

    #[test]
    fn nothing_is_claimed_before_the_first_observation() {
        assert_eq!(TimeLeft::default().seconds(0.0, 100.0), None);
    }

    #[test]
    fn constant_cost_gives_a_straight_line() {
        let seconds = after(|n| 0.002 * n).seconds(1000.0, 5000.0).unwrap();
        assert!((seconds - 8.0).abs() < 1e-6, "{seconds}");
    }

    #[test]
    fn growing_cost_is_carried_forward() {
        let seconds = after(|n| 0.001 * n + 1e-6 * n * n).seconds(1000.0, 10_000.0).unwrap();
        assert!((seconds - (9.0 + 99.0)).abs() < 1e-3, "{seconds}");
    }

    #[test]
    fn falling_cost_never_gives_a_negative_time() {
        let seconds = after(|n| n.sqrt()).seconds(1000.0, 100_000.0).unwrap();
        assert!(seconds > 0.0);
    }
}
