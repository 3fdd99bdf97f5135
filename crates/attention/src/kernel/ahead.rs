use core::marker::PhantomData;
use core::ops::Range;

use crate::format::with_plane;
use crate::simd::{Level, Simd};
use crate::{LANES, Plane};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Memory to read next. The kernel prefetches a few lines at every step, so that requests neither queue nor pause.
/// Empty by default.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ahead<'a> {
    first: Lines,
    second: Lines,
    planes: PhantomData<&'a [u8]>,
}

/// The equal pieces of a plane that are read, such as its stripes or tokens, one bit for each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pieces<'a> {
    plane: Plane<'a>,
    piece_bytes: usize,
    read: u128,
}

impl<'a> Pieces<'a> {
    pub(crate) fn whole(plane: Plane<'a>) -> Self {
        Self::of(plane, 1, 1)
    }

    /// The stripes that hold a token of `tokens`, of a plane that consists of whole stripes.
    pub(crate) fn stripes(plane: Plane<'a>, tokens: u128, stripes: usize) -> Self {
        let read = (0..stripes).filter(|stripe| (tokens >> (stripe * LANES)) as u16 != 0);
        Self::of(plane, stripes, read.fold(0, |read, stripe| read | 1 << stripe))
    }

    /// The tokens of a plane `[16 · stripes, width]`.
    pub(crate) fn rows(plane: Plane<'a>, tokens: u128, stripes: usize) -> Self {
        Self::of(plane, stripes * LANES, tokens)
    }

    fn of(plane: Plane<'a>, pieces: usize, read: u128) -> Self {
        let bytes = with_plane!(Plane plane, F, data => size_of_val(data));
        Self {
            plane,
            piece_bytes: bytes / pieces.max(1),
            read,
        }
    }

    /// Adds the number of bytes to prefetch before the first read, for planes that are read without widening: all if
    /// the plane is quantised.
    pub(crate) fn with_lead(self, level: Level) -> (Self, usize) {
        if self.plane.format().is_quantised() {
            (self, usize::MAX)
        } else {
            (self, level.prefetch_distance_bytes())
        }
    }
}

/// The lines of a plane's pieces. The address only serves as a hint.
#[derive(Debug, Clone, Copy)]
struct Lines {
    plane: *const u8,
    piece_bytes: usize,
    /// One bit for each piece.
    pieces: u128,
    /// Lines to leave out, and to prefetch after them.
    skipped: usize,
    count: usize,
}

/// Consecutive lines.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: *const u8,
    count: usize,
}

impl Run {
    const EMPTY: Self = Self {
        start: core::ptr::null(),
        count: 0,
    };
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            plane: core::ptr::null(),
            piece_bytes: 0,
            pieces: 0,
            skipped: 0,
            count: 0,
        }
    }
}

impl Lines {
    fn of(pieces: Pieces) -> Self {
        Self {
            plane: with_plane!(Plane pieces.plane, F, data => data.as_ptr().cast::<u8>()),
            piece_bytes: pieces.piece_bytes,
            pieces: pieces.read,
            skipped: 0,
            count: (pieces.read.count_ones() as usize * pieces.piece_bytes).div_ceil(LINE),
        }
    }

    fn skip(self, lines: usize) -> Self {
        Self {
            skipped: self.skipped + lines.min(self.count),
            count: self.count.saturating_sub(lines),
            ..self
        }
    }

    fn most(self, lines: usize) -> Self {
        Self {
            count: self.count.min(lines),
            ..self
        }
    }

    /// The next adjacent pieces; empty after the last.
    fn next_run(&mut self) -> Run {
        while self.count > 0 && self.pieces != 0 {
            let first = self.pieces.trailing_zeros();
            let adjacent = (self.pieces >> first).trailing_ones();
            self.pieces &= u128::MAX.checked_shl(first + adjacent).unwrap_or(0);
            let lines = (adjacent as usize * self.piece_bytes).div_ceil(LINE);
            let skipped = self.skipped.min(lines);
            let count = (lines - skipped).min(self.count);
            self.skipped -= skipped;
            self.count -= count;
            if count > 0 {
                let start = first as usize * self.piece_bytes + LINE * skipped;
                return Run {
                    start: self.plane.wrapping_add(start),
                    count,
                };
            }
        }
        Run::EMPTY
    }
}

impl<'a> Ahead<'a> {
    /// Prefetches `now` after its first bytes, which were prefetched earlier, and then the first bytes of `next`.
    pub(crate) fn new(now: Option<(Pieces<'a>, usize)>, next: Option<(Pieces<'a>, usize)>) -> Self {
        Self {
            first: now.map_or(Lines::default(), |(now, lead)| Lines::of(now).skip(lead / LINE)),
            second: next.map_or(Lines::default(), |(next, lead)| Lines::of(next).most(lead / LINE)),
            planes: PhantomData,
        }
    }

    /// Reduces the next block's prefetch to these rows' share of `total`.
    pub(crate) fn share(mut self, rows: Range<usize>, total: usize) -> Self {
        let (from, to) = (
            self.second.count * rows.start / total,
            self.second.count * rows.end / total,
        );
        self.second = self.second.most(to).skip(from);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.count + self.second.count == 0
    }

    /// Spreads the lines over `steps` steps.
    #[inline(always)]
    pub(crate) fn over(self, steps: usize) -> Fetch {
        Fetch {
            now: Run::EMPTY,
            rate: ((self.first.count + self.second.count) << 8).div_ceil(steps.max(1)),
            due: 0,
            later: Later([self.first, self.second]),
        }
    }
}

/// Position of the next prefetch.
pub(crate) struct Fetch {
    now: Run,
    /// Lines a step, times 256.
    rate: usize,
    /// Lines to prefetch, times 256.
    due: usize,
    later: Later,
}

/// Lines after a run.
struct Later([Lines; 2]);

impl Fetch {
    /// Prefetches the lines due in `steps` steps.
    #[inline(always)]
    pub(crate) fn step<S: Simd>(&mut self, simd: S, steps: usize) {
        if self.rate == 0 {
            return;
        }
        self.due += self.rate * steps;
        if self.now.count == 0 {
            self.now = self.later.next_run();
            if self.now.count == 0 {
                self.rate = 0;
            }
        }
        let lines = (self.due >> 8).min(self.now.count);
        self.due -= lines << 8;
        for line in 0..lines {
            simd.prefetch_line(self.now.start.wrapping_add(LINE * line));
        }
        self.now.start = self.now.start.wrapping_add(LINE * lines);
        self.now.count -= lines;
    }
}

impl Later {
    // Not a part of the kernels' loops, whose sums need the registers.
    #[cold]
    #[inline(never)]
    fn next_run(&mut self) -> Run {
        let [first, second] = &mut self.0;
        let run = first.next_run();
        if run.count > 0 { run } else { second.next_run() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offset in bytes and number of lines of every run.
    fn runs(mut lines: Lines, plane: &[f32]) -> Vec<(usize, usize)> {
        let runs = core::iter::from_fn(|| Some(lines.next_run()).filter(|run| run.count > 0));
        let offset = |run: Run| run.start as usize - plane.as_ptr() as usize;
        runs.map(|run| (offset(run), run.count)).collect()
    }

    #[test]
    fn lines_are_of_the_stripes_and_rows_that_are_read() {
        let plane = vec![0.0; 128 * 32];
        let tokens = 1 << 3 | 1 << 17 | 1 << 40 | 1 << 127;
        let stripes = Pieces::stripes(Plane::F32(&plane), tokens, 8);
        assert_eq!(runs(Lines::of(stripes), &plane), [(0, 96), (7 * 2048, 32)]);
        let rows = Pieces::rows(Plane::F32(&plane), tokens, 8);
        let expected = [3, 17, 40, 127].map(|row| (row * 128, 2));
        assert_eq!(runs(Lines::of(rows), &plane), expected);
        let whole = Pieces::whole(Plane::F32(&plane));
        assert_eq!(runs(Lines::of(whole), &plane), [(0, 256)]);
        assert_eq!(runs(Lines::of(Pieces::stripes(Plane::F32(&plane), 0, 8)), &plane), []);
    }

    #[test]
    fn a_lead_and_the_shares_of_rows_cover_every_line_once() {
        let plane = vec![0.0; 128 * 32];
        let pieces = Pieces::stripes(Plane::F32(&plane), 1 << 20 | 1 << 90, 8);
        let (lead, rest) = (Lines::of(pieces).most(40), Lines::of(pieces).skip(40));
        assert_eq!(runs(lead, &plane), [(2048, 32), (5 * 2048, 8)]);
        assert_eq!(runs(rest, &plane), [(5 * 2048 + 8 * LINE, 24)]);
        let shares = [0..3, 3..7].map(|rows| Ahead::new(None, Some((pieces, usize::MAX))).share(rows, 7));
        let shares = shares.map(|share| runs(share.second, &plane));
        assert_eq!(shares[0], [(2048, 27)]);
        assert_eq!(shares[1], [(2048 + 27 * LINE, 5), (5 * 2048, 32)]);
    }
}
