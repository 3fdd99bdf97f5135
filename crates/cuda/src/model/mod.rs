//! A decoder on a device: weights are uploaded once, and hidden states stay there.

mod buffers;
mod forward;
mod recurrence;
mod rows;
mod weights;

pub use buffers::forward_bytes;
pub use forward::DeviceForward;
pub use rows::DeviceRows;
pub use weights::DeviceModel;
