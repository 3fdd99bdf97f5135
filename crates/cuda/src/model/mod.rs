//! A decoder on a device: weights brought there once, hidden states that stay there.

mod forward;
mod recurrence;
mod weights;

pub use forward::{DeviceForward, forward_bytes};
pub use weights::DeviceModel;
