//! Pages of a KV cache on a device.
//!
//! The whole cache lies in pinned main memory ([`PinnedMemory`]), as on a CPU. A [`DeviceRoom`] keeps pages of all
//! sequences on the device within a hard budget. It loads other pages through a ring when they are read. So no page is
//! written back when it leaves the device, and a lost device loses no token. Sessions are saved from main memory.
//! Policies read the same keys as on a CPU.
//!
//! - `Residence`: the pages on the device and their places, found by version.
//! - `Staging`: the ring for pages in transit, some of them read ahead.
//! - `Summaries`: means and bounds of blocks of whole sequences.
//! - Calls ([`PagedCall`], [`PagedMass`], [`KeyScan`]) take the parts as arguments; none knows the room.

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
