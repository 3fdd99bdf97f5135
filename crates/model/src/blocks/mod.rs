//! The parts decoders are put together from.

mod activation;
mod attention;
mod gated_delta_net;
mod mlp;
mod norm;
mod projection;
mod rotary;
mod rows;

pub use activation::Activation;
pub(crate) use activation::sigmoid_gate;
pub use attention::{Attention, KeyValue};
pub(crate) use gated_delta_net::DeltaNetStorage;
pub use gated_delta_net::GatedDeltaNet;
pub use mlp::Mlp;
pub use norm::Norm;
pub use projection::Projection;
pub(crate) use rotary::RotaryTable;
pub use rotary::{Rotary, RotarySettings};
pub(crate) use rows::{add, for_rows};
