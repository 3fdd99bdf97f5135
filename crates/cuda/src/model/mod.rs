//! A decoder on a device: weights brought there once, hidden states that stay there.

mod buffers;
mod forward;
mod recurrence;
mod rows;
mod weights;

pub use buffers::forward_bytes;
pub use forward::DeviceForward;
pub use rows::DeviceRows;
pub use weights::DeviceModel;
