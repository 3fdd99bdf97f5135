//! What one sequence of tokens holds: pages, policies, recurrent state, and where its tokens stand.

pub(crate) mod block_means;
pub(crate) mod eviction;
mod fork;
pub(crate) mod prefix;
pub(crate) mod recurrence;
mod saved;
pub(crate) mod sliding;
pub(crate) mod window;
