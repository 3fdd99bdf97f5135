//! A decoder on a device: weights brought there once, hidden states that stay there.

mod forward;
mod recurrence;
mod rows;
mod weights;

pub use forward::{DeviceForward, forward_bytes};
pub use rows::DeviceRows;
pub use weights::DeviceModel;
