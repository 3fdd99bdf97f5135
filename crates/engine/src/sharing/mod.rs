//! Shares beginnings of texts between sequences: in memory, on disk, and in a store of many machines.
//!
//! | file | |
//! |---|---|
//! | `beginning.rs` | lengths at which a sequence may continue from another, and policies that allow it |
//! | `memory.rs` | sequences of one pool that share pages |
//! | `disk.rs` | a folder of pages |
//! | `keep.rs` | this folder for conversations about documents |
//! | `measured.rs` | this folder, with statistics of its use |
//! | `store.rs` | a store shared with other processes and machines |

mod beginning;
mod disk;
mod keep;
mod measured;
mod memory;
mod store;

pub use beginning::prefix_cuts;
pub(crate) use beginning::{
    beginning_step, can_share, goes_back_to, has_evicted, keepable_tokens, known_beginning, serves_others, state_step,
};
pub(crate) use disk::{PrefixSearch, fill_next, find_prefix};
pub use disk::{fill_prefix, store_prefix};
pub use keep::{KeepOptions, KeptText, document_cache_folder};
pub(crate) use measured::MeasuredPrefixCache;
pub use measured::{DEFAULT_PREFIX_CACHE_BYTES, PrefixCacheOptions, PrefixReport};
pub use memory::{adopt_prefix, share_prefix};
pub(crate) use memory::{adopt_prefix_for, fork_beginning};
pub(crate) use store::{
    Fetched, SharedPrefixes, SharedSearch, advance_early, advance_fetch, begin_early, begin_fetch, complete_early,
    drop_fetch, give_up_early, has_layer, publish,
};
pub use store::{SharedReport, SharedStoreOptions};
