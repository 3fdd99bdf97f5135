//! Caches of other engines, whose keys and values lie row by row, read where they are.

mod attend;
mod cache;
mod in_place;
mod view;

pub use attend::{RowJob, attend_rows, attend_rows_batch};
pub use cache::BlockCache;
pub use view::{RowPage, RowView};
