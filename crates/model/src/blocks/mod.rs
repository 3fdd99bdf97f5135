//! The parts decoders are put together from.

mod activation;
mod attention;
mod gated_delta_net;
mod mlp;
mod norm;
mod projection;
mod rotary;
mod rows;

pub(crate) use activation::Activation;
pub(crate) use attention::Attention;
pub(crate) use gated_delta_net::{DeltaNetStorage, GatedDeltaNet};
pub(crate) use mlp::Mlp;
pub(crate) use norm::Norm;
pub(crate) use projection::Projection;
pub(crate) use rotary::{Rotary, RotarySettings, RotaryTable};
pub(crate) use rows::{add, for_rows};
