//! Every policy, one file each. A policy enters the catalogue by its module and its entry here.

use crate::PolicyInfo;

mod blasst;
mod certified;
mod flex;
mod full;
mod h2o;
mod h2o_chunk;
mod log_stride;
mod mass;
mod peaks;
mod quest;
mod signs;
mod snapkv;
mod streaming;
mod tri_shape;
mod twilight;
mod vertical_slash;
mod xattention;

/// Policies for drafts only, for [`PolicySpec::parse_among`](crate::PolicySpec::parse_among). The catalogue does not
/// list them.
pub static DRAFT_POLICIES: [PolicyInfo; 1] = [mass::INFO];

/// Every policy, in the order of lists: by phase, then by method.
pub(crate) static CATALOGUE: [PolicyInfo; 16] = [
    full::INFO,
    streaming::INFO,
    tri_shape::INFO,
    log_stride::INFO,
    h2o_chunk::INFO,
    vertical_slash::INFO,
    flex::INFO,
    xattention::INFO,
    peaks::INFO,
    blasst::INFO,
    signs::INFO,
    quest::INFO,
    twilight::INFO,
    certified::INFO,
    h2o::INFO,
    snapkv::INFO,
];
