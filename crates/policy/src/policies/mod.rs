//! One file a policy.

pub(crate) mod full;
pub(crate) mod log_stride;
pub(crate) mod streaming;
pub(crate) mod tri_shape;
