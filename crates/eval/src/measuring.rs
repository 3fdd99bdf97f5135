//! Tools for crates that measure other devices: cases of attention with their tiles and caches, cells that go through a
//! [`Journal`](crate::Journal), and values to measure with.

pub use crate::attention_rates::{CaseTile, CaseTiles, cells_of, filled_cache};
pub use crate::cells::{Cell, run_cells};
pub use crate::noise::noise;
