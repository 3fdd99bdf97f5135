//! Allocations, counted by the allocator itself.

mod testing;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use riffle_attention::*;
use testing::Noise;

struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn nothing_is_allocated_once_warm() {
    let mut noise = Noise::new(2);
    let pages = testing::pages(&mut noise, (64, 48), 64, &[64; 8], (Format::F16, Format::Q8_0));
    let views: Vec<_> = pages.iter().map(testing::Page::view).collect();
    let kv = KvView {
        head_dim: 64,
        pages: &views,
    };
    let data = noise.values(20 * 256);
    let selection = Selection::from_spans([Span::new(0, 40)])
        .with_row_window(100)
        .with_row_extras(490, (0..20).map(|r| [r * 3, r * 5 + 100]));
    let options = AttendOptions::new(0.1);
    let run = |rows: usize, partial: &mut Partial| {
        let tile = QueryTile {
            data: &data,
            rows,
            row_stride: 256,
            group: 4,
            head_dim: 64,
            start: 490,
        };
        partial.reset(rows, 4, 48);
        attend(&tile, &kv, &selection, &options, partial).unwrap();
    };
    let mut partial = Partial::new(20, 4, 48);
    run(20, &mut partial);
    run(1, &mut partial);
    let before = CALLS.get();
    run(20, &mut partial);
    run(1, &mut partial);
    assert_eq!(CALLS.get(), before);
}
