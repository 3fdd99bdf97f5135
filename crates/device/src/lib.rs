//! Traits of a device that computes in place of the CPU.
//!
//! The traits stand between the engine and a device: `riffle-engine` calls them, `riffle-cuda` implements them. A
//! program that computes on the CPU alone builds only these traits.
//!
//! - A [`ComputeDevice`] is a device of this machine. It reports the device memory that a run needs.
//! - A [`DeviceQueue`] runs the work of one engine in order. It uploads the model ([`DeviceModel`]) and makes the room
//!   for KV pages ([`PageRoom`]).
//! - A [`DeviceForward`] takes batches through the model. Attention reads the batch's [`DeviceRows`].
//! - A [`PageRoom`] runs calls: a [`RoomCall`] attends, a [`RoomMass`] sums the mass of keys, a [`RoomScan`] estimates
//!   for policies. A call receives pages in main memory. It copies a page to the device if the device lacks it.
//!
//! ```
//! use std::sync::Arc;
//!
//! use riffle_device::{ComputeDevice, DeviceError};
//!
//! /// The line that `riffle plan` prints of a device.
//! fn described(device: &Arc<dyn ComputeDevice>) -> Result<String, DeviceError> {
//!     Ok(format!("{}: {} bytes are free", device.name(), device.free_bytes()?))
//! }
//! ```

#![forbid(unsafe_code)]

mod compute;
mod error;
mod forward;
mod room;

pub use compute::{ComputeDevice, DeviceModel, DeviceQueue, QueueTimer};
pub use error::DeviceError;
pub use forward::{BatchRows, DeviceForward, DeviceRows, HostRows};
pub use room::{
    AppendedTokens, LayerPages, PageRoom, PagedTile, RoomCall, RoomMass, RoomOptions, RoomScan, ScannedHead,
    SequenceId, SummaryKind, TransferCount,
};
