//! Beginnings of texts that several sequences go on from: in memory, on disk, and in a store of many machines.
//!
//! | file | |
//! |---|---|
//! | `beginning.rs` | lengths at which a sequence may go on from another, and policies that allow it |
//! | `memory.rs` | sequences of one pool that hold the same pages |
//! | `disk.rs` | a folder of pages |
//! | `measured.rs` | that folder, with counts and times of its use |
//! | `store.rs` | a store that other processes and machines share |

pub(crate) mod beginning;
pub(crate) mod disk;
pub(crate) mod measured;
pub(crate) mod memory;
pub(crate) mod store;

pub use beginning::prefix_cuts;
pub use disk::{fill_prefix, store_prefix};
pub use measured::{DEFAULT_PREFIX_CACHE_BYTES, PrefixCacheOptions, PrefixReport};
pub use memory::{adopt_prefix, share_prefix};
pub use store::{SharedReport, SharedStoreOptions};
