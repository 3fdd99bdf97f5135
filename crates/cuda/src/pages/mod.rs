//! Pages of a KV cache on a device.
//!
//! The cache lies in main memory whole, as on a CPU, in pinned memory ([`PinnedMemory`]); a [`PagePool`] keeps on the device
//! what a hard budget has room for, and brings the rest through a ring when it is read. So nothing is written back when a
//! page leaves the device, sessions are saved from main memory, policies choose by the keys the CPU would choose by, and
//! a lost device takes no token with it.

mod ahead;
mod append;
mod bounds;
mod call;
mod estimate;
mod list;
mod mass;
mod means;
mod pinned;
mod pool;
mod residence;
mod staging;
mod summaries;
mod transfer;

pub use call::{CallRows, PagedCall};
pub use estimate::KeyScan;
pub(crate) use list::DeviceList;
pub use mass::PagedMass;
pub use pinned::PinnedMemory;
pub use pool::{PagePool, PagePoolOptions, PagedTile, TransferCount};
pub use summaries::SummaryKind;
