//! Tools for crates that measure other devices: attention cases with tiles and caches, cells with a
//! [`Journal`](crate::Journal), and random values.

pub use crate::attention_rates::{CaseTile, CaseTiles, cells_of, filled_cache};
pub use crate::cells::{Cell, run_cells};
pub use crate::noise::noise;
