//! One cache or several: holding, moving, sharing, saving and freeing pages.

mod cache;
mod evict;
#[cfg(unix)]
mod kinds;
mod memory;
mod mixed;
mod output;
mod pool;
mod prefix;
mod shared;
mod sharing;
mod snapshot;
mod streaming;
mod tails;
#[path = "../testing/mod.rs"]
mod testing;
mod together;
mod versions;
mod watch;
