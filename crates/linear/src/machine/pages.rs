//! Huge pages for weights, immediately or later.
//!
//! Products read weights a tenth faster from huge pages. Most systems give a huge page within 0.3 ms. A virtual machine
//! that has returned its free memory to the host takes 5 ms, fifteen times as long as for small pages of this size.
//! Model loading would wait for it. [`prepare`] therefore times one huge page in each part of a mapping. If this page
//! is slow, the part is written in small pages. [`gather_pages`] turns these into huge ones after the model is loaded.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use riffle_system::memory::{gather_huge_page, prefer_huge_pages_in};
use riffle_system::threads::give_way;

pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes of a part, for which one page is timed.
const PART_BYTES: usize = 32 << 20;

/// Time above which a huge page is not worth waiting for: its small pages take about 1 ms.
const SLOW: Duration = Duration::from_micros(1500);

/// Number of parts after a slow one that count as slow without a test.
const UNTRIED_PARTS: usize = 3;

/// Small pages of a mapping that should become huge.
struct SmallPages {
    mapping: Weak<MmapRaw>,
    /// Bytes of the mapping, between huge-page boundaries.
    part: Range<usize>,
}

/// Results of the timings so far.
struct Tried {
    /// Number of parts that still count as slow.
    untried_parts: usize,
    small: Vec<SmallPages>,
}

static TRIED: Mutex<Tried> = Mutex::new(Tried::new());

/// Requests huge pages in the parts from `start`, a huge-page boundary, up to the part that contains `end`, but never
/// beyond `most`. If they are slow, notes the part for [`gather_pages`]. Returns the start of the next part. A
/// refusal by the system costs speed, not correctness.
pub(super) fn prepare(mapping: &Arc<MmapRaw>, start: usize, end: usize, most: usize) -> usize {
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    tried.prepare(mapping, start..end, most, SLOW)
}

impl Tried {
    const fn new() -> Self {
        Self {
            untried_parts: 0,
            small: Vec::new(),
        }
    }

    fn prepare(&mut self, mapping: &Arc<MmapRaw>, parts: Range<usize>, most: usize, slow: Duration) -> usize {
        let mut start = parts.start;
        while start < parts.end.min(most) {
            let part = start..(start + PART_BYTES).min(most);
            start = part.end;
            let is_slow = match self.untried_parts {
                0 => first_page_time(mapping, part.start) > slow,
                _ => true,
            };
            if is_slow {
                self.untried_parts = match self.untried_parts {
                    0 => UNTRIED_PARTS,
                    left => left - 1,
                };
                let mapping = Arc::downgrade(mapping);
                self.small.push(SmallPages { mapping, part });
            } else {
                prefer_huge_pages_in(mapping, part);
            }
        }
        start
    }
}

/// Time that the system takes for the huge page at `at`.
fn first_page_time(mapping: &MmapRaw, at: usize) -> Duration {
    prefer_huge_pages_in(mapping, at..at + HUGE_PAGE_BYTES);
    let began = Instant::now();
    // SAFETY: the byte lies in the mapping and in no buffer yet. It holds zero before and after.
    unsafe { mapping.as_mut_ptr().add(at).write_volatile(0) };
    began.elapsed()
}

/// Turns small pages of weights into huge ones. Loading used small pages for speed. A thread of the lowest priority
/// does this after a delay and rests most of the time, so that computing hardly waits for it. Call it after a model is loaded; it does
/// nothing if all weights are in huge pages.
pub fn gather_pages() {
    const DELAY: Duration = Duration::from_secs(2);
    let small = {
        let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
        tried.untried_parts = 0;
        std::mem::take(&mut tried.small)
    };
    if small.is_empty() {
        return;
    }
    let gather_all = move || {
        give_way();
        std::thread::sleep(DELAY);
        small.iter().for_each(gather);
    };
    // Without the thread, weights stay in small pages.
    let _ = std::thread::Builder::new()
        .name("riffle-pages".to_owned())
        .spawn(gather_all);
}

/// Converts the pages of a part, one huge page at a time.
fn gather(small: &SmallPages) {
    /// Ratio of the thread's rest to its work.
    const REST: u32 = 4;
    for at in small.part.clone().step_by(HUGE_PAGE_BYTES) {
        // The model may have been dropped.
        let Some(mapping) = small.mapping.upgrade() else {
            return;
        };
        let began = Instant::now();
        gather_huge_page(&mapping, at..at + HUGE_PAGE_BYTES);
        drop(mapping);
        std::thread::sleep(REST * began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapMut;

    use super::*;

    #[test]
    fn weights_in_small_pages_are_the_same_when_they_are_gathered() {
        let len = PART_BYTES + 3 * HUGE_PAGE_BYTES;
        let mut mapping = MmapMut::map_anon(len + HUGE_PAGE_BYTES).unwrap();
        let address = mapping.as_ptr().addr();
        let start = address.next_multiple_of(HUGE_PAGE_BYTES) - address;
        // Timing a page writes zero to its first byte, so this byte is zero here from the start.
        let byte = |at: usize| if at == start { 0 } else { (at / 4096 * 31 + at) as u8 };
        for at in (start..start + len).step_by(64) {
            mapping[at] = byte(at);
        }
        let mapping = Arc::new(MmapRaw::from(mapping));
        let mut tried = Tried::new();
        // With a limit of zero time, every part counts as slow.
        assert_eq!(
            tried.prepare(&mapping, start..start + len, start + len, Duration::ZERO),
            start + len
        );
        let parts: Vec<Range<usize>> = tried.small.iter().map(|small| small.part.clone()).collect();
        assert_eq!(parts, [start..start + PART_BYTES, start + PART_BYTES..start + len]);
        tried.small.iter().for_each(gather);
        // SAFETY: nothing writes to the mapping here.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.as_ptr(), start + len) };
        assert!((start..start + len).step_by(64).all(|at| bytes[at] == byte(at)));
    }
}
