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
