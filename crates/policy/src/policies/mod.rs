//! One file a policy.

pub(crate) mod full;
pub(crate) mod streaming;
