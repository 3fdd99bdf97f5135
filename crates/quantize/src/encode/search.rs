//! Searches for the scale, or scale and minimum, with the least rounding error for a few weights.

/// Lanes of a sum: partial sums that vector code adds in parallel.
const LANES: usize = 8;

/// The largest number of a binary16.
const LARGEST_HALF: f32 = 65504.0;

/// Rounds to the nearest whole number, for magnitudes below 2^22. Compilers vectorise it, unlike calls to the system's
/// function.
#[inline(always)]
pub(super) fn round(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

/// The nearest whole number from `least` to `most`.
#[inline(always)]
pub(super) fn whole(value: f32, least: f32, most: f32) -> f32 {
    round(value.clamp(least, most))
}

/// A value as binary16, and its rounded value. Values beyond the range become the largest.
pub(super) fn to_half(value: f32) -> (half::f16, f32) {
    let rounded = half::f16::from_f32(value.clamp(-LARGEST_HALF, LARGEST_HALF));
    (rounded, rounded.to_f32())
}

/// The inverse of a scale; zero for scales too small to divide by.
#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    let inverse = scale.recip();
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The value with the largest magnitude.
pub(super) fn extreme(values: &[f32]) -> f32 {
    let larger = |most: f32, value: &f32| if value.abs() > most.abs() { *value } else { most };
    values.iter().fold(0.0, larger)
}

/// Weighted sums with the rounded values `q`: `Σ w·x·q` and `Σ w·q²`.
#[inline(always)]
fn products(x: &[f32], w: &[f32], inverse: f32, nearest: impl Fn(f32) -> f32) -> (f32, f32) {
    let (mut xq, mut qq) = ([0.0f32; LANES], [0.0f32; LANES]);
    for (x, w) in x.as_chunks::<LANES>().0.iter().zip(w.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            let q = nearest(x[lane] * inverse);
            xq[lane] += w[lane] * x[lane] * q;
            qq[lane] += w[lane] * q * q;
        }
    }
    (xq.iter().sum(), qq.iter().sum())
}

/// The weighted squared error of weights that are rounded with `scale`.
#[inline(always)]
pub(super) fn scaled_error(x: &[f32], w: &[f32], scale: f32, nearest: impl Fn(f32) -> f32) -> f32 {
    let inverse = inverse(scale);
    let mut error = [0.0f32; LANES];
    for (x, w) in x.as_chunks::<LANES>().0.iter().zip(w.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            let difference = x[lane] - scale * nearest(x[lane] * inverse);
            error[lane] += w[lane] * difference * difference;
        }
    }
    error.iter().sum()
}

/// The scale with the least error when `nearest` rounds the weights. `tops` are trial values of the largest
/// magnitude.
#[inline(always)]
pub(super) fn best_scale(x: &[f32], w: &[f32], tops: &[f32], nearest: impl Fn(f32) -> f32 + Copy) -> f32 {
    let extreme = extreme(x);
    if inverse(extreme) == 0.0 {
        return 0.0;
    }
    let mut best = (0.0, 0.0);
    let mut consider = |inverse: f32| {
        let (xq, qq) = products(x, w, inverse, nearest);
        let gain = if qq > 0.0 { xq * xq / qq } else { 0.0 };
        let is_better = gain > best.0;
        if is_better {
            best = (gain, xq / qq);
        }
        is_better.then_some(best.1)
    };
    let mut scale = 0.0;
    for top in tops {
        scale = consider(top / extreme).unwrap_or(scale);
    }
    // A refit scale may round to other values, so the fit repeats.
    for _ in 0..2 {
        match consider(inverse(scale)) {
            Some(better) => scale = better,
            None => break,
        }
    }
    scale
}

/// Scale and minimum, each from 0: a weight is `scale · q − minimum`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Line {
    pub(super) scale: f32,
    pub(super) minimum: f32,
}

impl Line {
    /// The code of a weight, from 0 to `most`.
    #[inline(always)]
    pub(super) fn code(self, x: f32, inverse: f32, most: f32) -> f32 {
        whole((x + self.minimum) * inverse, 0.0, most)
    }

    /// The weighted squared error of weights with codes from 0 to `most`.
    #[inline(always)]
    pub(super) fn error(self, x: &[f32], w: &[f32], most: f32) -> f32 {
        let inverse = inverse(self.scale);
        let mut error = [0.0f32; LANES];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(w.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                let difference = x[lane] + self.minimum - self.scale * self.code(x[lane], inverse, most);
                error[lane] += w[lane] * difference * difference;
            }
        }
        error.iter().sum()
    }

    /// The line that best fits the codes that this line gives the weights.
    #[inline(always)]
    fn refit(self, x: &[f32], w: &[f32], most: f32, keeps_sign: bool) -> Line {
        let inverse = inverse(self.scale);
        let mut sums = [[0.0f32; LANES]; 5];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(w.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                let (x, w) = (x[lane], w[lane]);
                let q = self.code(x, inverse, most);
                sums[0][lane] += w;
                sums[1][lane] += w * x;
                sums[2][lane] += w * q;
                sums[3][lane] += w * q * q;
                sums[4][lane] += w * x * q;
            }
        }
        let [ones, xs, qs, qqs, xqs] = sums.map(|lanes| lanes.iter().sum::<f32>());
        let determinant = ones * qqs - qs * qs;
        if determinant <= 0.0 {
            return self;
        }
        let line = Line {
            scale: (ones * xqs - xs * qs) / determinant,
            minimum: (qs * xqs - qqs * xs) / determinant,
        };
        if line.minimum < 0.0 && keeps_sign && qqs > 0.0 {
            Line {
                scale: xqs / qqs,
                minimum: 0.0,
            }
        } else {
            line
        }
    }
}

/// The line with the least error for codes from 0 to `most`. With `keeps_sign`, its minimum is not above 0.
pub(super) fn best_line(x: &[f32], w: &[f32], most: f32, keeps_sign: bool) -> Line {
    let least = x.iter().copied().fold(f32::INFINITY, f32::min);
    let least = if keeps_sign { least.min(0.0) } else { least };
    let range = x.iter().copied().fold(f32::NEG_INFINITY, f32::max) - least;
    if inverse(range) == 0.0 {
        return Line {
            scale: 0.0,
            minimum: -least,
        };
    }
    let mut best = Line {
        scale: range / most,
        minimum: -least,
    };
    let mut error = best.error(x, w, most);
    for step in 0..STEPS {
        // Trial steps from small ones that clip the ends to steps that are too large.
        let steps = most * (1.12 - 0.36 * step as f32 / (STEPS - 1) as f32) + if most < 4.0 { 0.3 } else { 0.0 };
        let mut line = Line {
            scale: range / steps,
            minimum: -least,
        };
        for _ in 0..2 {
            line = line.refit(x, w, most, keeps_sign);
            let found = line.error(x, w, most);
            if found < error && line.scale > 0.0 {
                (best, error) = (line, found);
            }
        }
    }
    best
}

/// Trial lines.
const STEPS: usize = 14;
