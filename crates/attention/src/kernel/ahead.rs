use core::marker::PhantomData;
use core::ops::Range;

use crate::Plane;
use crate::format::with_plane;
use crate::simd::{Level, Simd};

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

/// A plane that is read without widening, and the number of its bytes to prefetch before the first read: all if it is
/// quantised.
pub(crate) fn with_lead(level: Level, plane: Plane) -> (Plane, usize) {
    if plane.format().is_quantised() {
        (plane, usize::MAX)
    } else {
        (plane, level.prefetch_distance_bytes())
    }
}

/// Consecutive lines. The address only serves as a hint.
#[derive(Debug, Clone, Copy)]
struct Lines {
    start: *const u8,
    count: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            start: core::ptr::null(),
            count: 0,
        }
    }
}

impl Lines {
    fn of<T>(data: &[T], skip_bytes: usize, most_bytes: usize) -> Self {
        let bytes = size_of_val(data).saturating_sub(skip_bytes).min(most_bytes);
        Self {
            start: data.as_ptr().cast::<u8>().wrapping_add(skip_bytes),
            count: bytes.div_ceil(LINE),
        }
    }

    fn of_plane(plane: Plane, skip_bytes: usize, most_bytes: usize) -> Self {
        with_plane!(Plane plane, F, data => Self::of(data, skip_bytes, most_bytes))
    }
}

impl<'a> Ahead<'a> {
    /// Prefetches `now` after its first bytes, which were prefetched earlier, and then the first bytes of `next`.
    pub(crate) fn new(now: Option<(Plane<'a>, usize)>, next: Option<(Plane<'a>, usize)>) -> Self {
        Self {
            first: now.map_or(Lines::default(), |(now, lead)| Lines::of_plane(now, lead, usize::MAX)),
            second: next.map_or(Lines::default(), |(next, lead)| Lines::of_plane(next, 0, lead)),
            planes: PhantomData,
        }
    }

    /// Prefetches two planes.
    pub(crate) fn runs([first, second]: [Option<Plane<'a>>; 2]) -> Self {
        Self::new(first.map(|plane| (plane, 0)), second.map(|plane| (plane, usize::MAX)))
    }

    /// Reduces the next block's prefetch to these rows' share of `total`.
    pub(crate) fn share(mut self, rows: Range<usize>, total: usize) -> Self {
        let (from, to) = (
            self.second.count * rows.start / total,
            self.second.count * rows.end / total,
        );
        self.second.start = self.second.start.wrapping_add(LINE * from);
        self.second.count = to - from;
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.count + self.second.count == 0
    }

    /// Spreads the lines over `steps` steps.
    #[inline(always)]
    pub(crate) fn over(self, steps: usize) -> Fetch {
        Fetch {
            now: self.first,
            next: self.second,
            rate: ((self.first.count + self.second.count) << 8).div_ceil(steps.max(1)),
            due: 0,
        }
    }
}

/// Position of the next prefetch.
pub(crate) struct Fetch {
    now: Lines,
    next: Lines,
    /// Lines a step, times 256.
    rate: usize,
    /// Lines to prefetch, times 256.
    due: usize,
}

impl Fetch {
    /// Prefetches the lines due in `steps` steps.
    #[inline(always)]
    pub(crate) fn step<S: Simd>(&mut self, simd: S, steps: usize) {
        if self.rate == 0 {
            return;
        }
        self.due += self.rate * steps;
        if self.now.count == 0 {
            self.now = core::mem::take(&mut self.next);
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
