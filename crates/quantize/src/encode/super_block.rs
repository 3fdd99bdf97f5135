//! Blocks of 256 weights whose parts have small integer scales: the choice of these scales and of their common scale.

use super::search::{Line, best_line, best_scale, extreme, inverse, round, scaled_error, to_half, whole};

/// Weights of a block.
pub(super) const BLOCK: usize = 256;
/// Maximum number of parts of a block.
const PARTS: usize = 16;
/// Refits of the scale of the scales.
const ROUNDS: usize = 3;

/// Scales of the parts of a block: part `p` has the scale `scale · multiples[p]`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SignedScales {
    pub(super) scale: half::f16,
    pub(super) multiples: [i32; PARTS],
}

impl SignedScales {
    pub(super) fn of(&self, part: usize) -> f32 {
        self.scale.to_f32() * self.multiples[part] as f32
    }
}

/// The scales of parts of `width` weights, multiples from `least` (below 0) to `most`.
#[inline(always)]
pub(super) fn signed_scales(
    [x, w]: [&[f32]; 2],
    width: usize,
    [least, most]: [f32; 2],
    tops: &[f32],
    nearest: impl Fn(f32) -> f32 + Copy,
) -> SignedScales {
    let parts = || x.chunks_exact(width).zip(w.chunks_exact(width)).enumerate();
    let mut scales = [0.0; PARTS];
    for (part, (x, w)) in parts() {
        scales[part] = best_scale(x, w, tops, nearest);
    }
    let mut scale = extreme(&scales) / least;
    let (mut best, mut best_error) = (SignedScales::default(), f32::INFINITY);
    for _ in 0..ROUNDS {
        let (half, rounded) = to_half(scale);
        let unit = inverse(rounded);
        let mut found = SignedScales {
            scale: half,
            multiples: [0; PARTS],
        };
        let (mut error, mut xq, mut qq) = (0.0, 0.0, 0.0);
        for (part, (x, w)) in parts() {
            let middle = whole(scales[part] * unit, least, most);
            let mut chosen = (f32::INFINITY, 0.0);
            for multiple in [middle, middle - 1.0, middle + 1.0] {
                let multiple = multiple.clamp(least, most);
                let error = scaled_error(x, w, rounded * multiple, nearest);
                if error < chosen.0 {
                    chosen = (error, multiple);
                }
            }
            let (part_error, multiple) = chosen;
            error += part_error;
            found.multiples[part] = multiple as i32;
            let inverse = inverse(rounded * multiple);
            for (x, w) in x.iter().zip(w) {
                let q = multiple * nearest(x * inverse);
                xq += w * x * q;
                qq += w * q * q;
            }
        }
        if error < best_error {
            (best, best_error) = (found, error);
        }
        if qq <= 0.0 {
            break;
        }
        scale = xq / qq;
    }
    best
}

/// Scales and minimums of the parts of a block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lines {
    pub(super) scale: half::f16,
    pub(super) minimum: half::f16,
    /// Multiples of scale and minimum, by part.
    pub(super) multiples: [[u8; 2]; PARTS],
}

impl Lines {
    pub(super) fn of(&self, part: usize) -> Line {
        let [scale, minimum] = self.multiples[part].map(f32::from);
        Line {
            scale: self.scale.to_f32() * scale,
            minimum: self.minimum.to_f32() * minimum,
        }
    }
}

/// The lines of parts of `width` weights with codes from 0 to `most`, multiples from 0 to `largest`.
pub(super) fn lines([x, w]: [&[f32]; 2], width: usize, most: f32, largest: f32) -> Lines {
    let parts = || x.chunks_exact(width).zip(w.chunks_exact(width)).enumerate();
    let mut wanted = [Line::default(); PARTS];
    for (part, (x, w)) in parts() {
        wanted[part] = best_line(x, w, most, true);
    }
    let largest_of = |of: fn(&Line) -> f32| wanted.iter().map(of).fold(0.0, f32::max);
    let mut block = Line {
        scale: largest_of(|line| line.scale) / largest,
        minimum: largest_of(|line| line.minimum) / largest,
    };
    let (mut best, mut best_error) = (Lines::default(), f32::INFINITY);
    for _ in 0..ROUNDS {
        let (halves, rounded) = {
            let ((scale, scale_value), (minimum, minimum_value)) = (to_half(block.scale), to_half(block.minimum));
            let rounded = Line {
                scale: scale_value,
                minimum: minimum_value,
            };
            ([scale, minimum], rounded)
        };
        let mut found = Lines {
            scale: halves[0],
            minimum: halves[1],
            multiples: [[0; 2]; PARTS],
        };
        let mut error = 0.0;
        let mut fit = Fit::default();
        for (part, (x, w)) in parts() {
            let (part_error, multiples) = multiples([x, w], wanted[part], rounded, [most, largest]);
            error += part_error;
            found.multiples[part] = multiples.map(|multiple| multiple as u8);
            fit.add([x, w], found.of(part), multiples, most);
        }
        if error < best_error {
            (best, best_error) = (found, error);
        }
        let Some(better) = fit.solve() else { break };
        block = better;
    }
    best
}

/// The multiples of scale and minimum with the least error, near the wanted line.
fn multiples([x, w]: [&[f32]; 2], wanted: Line, block: Line, [most, largest]: [f32; 2]) -> (f32, [f32; 2]) {
    let near = |wanted: f32, unit: f32| round((wanted * inverse(unit)).clamp(0.0, largest));
    let (scale, minimum) = (near(wanted.scale, block.scale), near(wanted.minimum, block.minimum));
    let mut best = (f32::INFINITY, [0.0, 0.0]);
    for scale in [scale, scale - 1.0, scale + 1.0] {
        for minimum in [minimum, minimum - 1.0, minimum + 1.0] {
            if !(0.0..=largest).contains(&scale) || !(0.0..=largest).contains(&minimum) {
                continue;
            }
            let line = Line {
                scale: block.scale * scale,
                minimum: block.minimum * minimum,
            };
            let error = line.error(x, w, most);
            if error < best.0 {
                best = (error, [scale, minimum]);
            }
        }
    }
    best
}

/// Least-squares fit of a block's scale and minimum for given multiples and codes.
#[derive(Default)]
struct Fit {
    qq: f32,
    qm: f32,
    mm: f32,
    xq: f32,
    xm: f32,
}

impl Fit {
    fn add(&mut self, [x, w]: [&[f32]; 2], line: Line, [scale, minimum]: [f32; 2], most: f32) {
        let inverse = inverse(line.scale);
        for (x, w) in x.iter().zip(w) {
            let q = scale * line.code(*x, inverse, most);
            self.qq += w * q * q;
            self.qm += w * q * minimum;
            self.mm += w * minimum * minimum;
            self.xq += w * x * q;
            self.xm += w * x * minimum;
        }
    }

    fn solve(&self) -> Option<Line> {
        let determinant = self.qq * self.mm - self.qm * self.qm;
        let line = if determinant > 1e-6 * self.qq * self.mm {
            Line {
                scale: (self.xq * self.mm - self.xm * self.qm) / determinant,
                minimum: (self.xq * self.qm - self.xm * self.qq) / determinant,
            }
        } else if self.qq > 0.0 {
            Line {
                scale: self.xq / self.qq,
                minimum: 0.0,
            }
        } else {
            return None;
        };
        (line.scale > 0.0 && line.minimum >= 0.0).then_some(line)
    }
}
