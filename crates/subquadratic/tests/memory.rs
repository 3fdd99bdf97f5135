//! Counts allocations with the test's own allocator.

mod testing;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use riffle_subquadratic::*;
use testing::Noise;

struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NOW.set(NOW.get() + layout.size() as isize);
        PEAK.set(PEAK.get().max(NOW.get()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.set(NOW.get() - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Peak of the bytes allocated by `work`.
fn peak(work: impl FnOnce()) -> isize {
    let before = NOW.get();
    PEAK.set(before);
    work();
    PEAK.get() - before
}

/// Runs `work` without other threads, so that this thread's counters see all of it.
fn alone(work: impl FnOnce() + Send) {
    #[cfg(feature = "parallel")]
    rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap()
        .install(work);
    #[cfg(not(feature = "parallel"))]
    work();
}

#[test]
fn the_flash_form_needs_less_memory() {
    alone(|| {
        let mut noise = Noise::new(1);
        let mut tensor = || noise.tensor(1024, 8, 32);
        let (q, k, v) = (tensor(), tensor(), tensor());
        let attention = SubquadraticSparseAttention::new(SparseAttentionConfig::default()).unwrap();
        attention.forward_flash(&q, &k, &v).unwrap();
        let plain = peak(|| drop(attention.forward(&q, &k, &v).unwrap()));
        let flash = peak(|| drop(attention.forward_flash(&q, &k, &v).unwrap()));
        let result = (q.data().len() * 4) as isize;
        assert!(
            flash - result < (plain - result) / 3,
            "{flash} bytes against {plain}, the result being {result}"
        );
    });
}

#[test]
fn a_cache_grows_with_its_tokens_and_halves_are_half() {
    let token = Tensor3::zeros(100, 2, 64);
    let mut cache = KvCache::new(100_000, 2, 64, 64);
    assert_eq!(cache.bytes(), 0);
    cache.append_all(&token, &token).unwrap();
    assert_eq!(cache.bytes(), 2 * 2 * 112 * 64 * 4);
    let mut halves = KvCacheF16::new(100_000, 2, 64, 64);
    halves.append_all(&token, &token).unwrap();
    assert_eq!(halves.bytes(), cache.bytes() / 2);
}
