//! One file a policy.

pub(crate) mod blasst;
pub(crate) mod certified;
pub(crate) mod flex;
pub(crate) mod full;
pub(crate) mod h2o;
pub(crate) mod h2o_chunk;
pub(crate) mod log_stride;
pub(crate) mod quest;
pub(crate) mod snapkv;
pub(crate) mod streaming;
pub(crate) mod tri_shape;
pub(crate) mod twilight;
pub(crate) mod vertical_slash;
pub(crate) mod xattention;
