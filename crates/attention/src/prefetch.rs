use crate::kernel::FetchRows;
use crate::simd::Level;

/// Asks for rows that a later call will read, for example the queries of the next tile: `rows` rows of `width` elements,
/// `stride` elements apart, as far as `data` reaches.
///
/// A hint to the processor. It changes no result, and does nothing without the feature `simd`.
pub fn prefetch_rows(data: &[f32], rows: usize, stride: usize, width: usize) {
    Level::best().run(FetchRows {
        data,
        stride,
        width,
        rows,
    });
}
