use crate::kernel::FetchRows;
use crate::simd::Level;

/// Prefetches rows that a later call will read, for example the queries of the next tile: `rows` rows of `width`
/// elements, `stride` elements apart, as far as `data` reaches.
///
/// This is a hint to the processor: it changes no result, and has no effect without the feature `simd`.
pub fn prefetch_rows(data: &[f32], rows: usize, stride: usize, width: usize) {
    Level::best().run(FetchRows {
        data,
        stride,
        width,
        rows,
    });
}
