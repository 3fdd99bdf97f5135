//! Reads row-major caches of other engines in place.

mod attend;
mod cache;
mod in_place;
mod view;

pub use attend::{RowJob, attend_rows, attend_rows_batch};
pub use cache::BlockCache;
pub use view::{RowPage, RowView};
