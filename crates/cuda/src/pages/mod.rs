//! Pages of a KV cache on a device.
//!
//! The cache lies in main memory whole, as on a CPU, in pinned memory ([`PinnedMemory`]); a [`DeviceRoom`] keeps on the device
//! what a hard budget has room for, of all sequences, and brings the rest through a ring when it is read. So nothing is written back when a
//! page leaves the device, sessions are saved from main memory, policies choose by the keys the CPU would choose by, and
//! a lost device takes no token with it.
//!
//! - `Residence`: which pages lie on the device, and where, by the versions that say what they hold.
//! - `Staging`: the ring through which pages come, some ahead of the call that asks for them.
//! - `Summaries`: means and bounds of blocks of whole sequences.
//! - Calls ([`PagedCall`], [`PagedMass`], [`KeyScan`]) take the parts that they work with; none knows the room that owns them.

mod ahead;
mod append;
mod bounds;
mod call;
mod estimate;
mod list;
mod mass;
mod means;
mod memory;
mod pinned;
mod residence;
mod room;
mod sequence;
mod staging;
mod summaries;
mod traffic;
mod transfer;

use riffle_kv::{CacheShape, LayerShape};

pub use call::{CallRows, PagedCall};
pub use estimate::KeyScan;
pub(crate) use list::DeviceList;
pub use mass::PagedMass;
pub use pinned::PinnedMemory;
pub use room::{DeviceRoom, RoomBytes};

/// The heads of every layer of caches in a room. Engines refuse a device for models whose layers differ.
fn heads_of(shape: &CacheShape) -> LayerShape {
    let shape = shape.layers.uniform();
    shape.expect("caches of a device have layers that are alike")
}
