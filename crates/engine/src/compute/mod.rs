//! The place where a model computes: the CPU, or a device that holds its weights.
//!
//! Each place is an implementation of [`Compute`] with its batches, a [`ModelForward`]. Nothing above asks which one it has.

mod device;
mod host;

use std::ops::Range;
use std::sync::Arc;

use riffle_device::{ComputeDevice, RoomOptions};
use riffle_model::{AttentionShape, Decoder, Forward, HostForward, ProjectedIndex};

use crate::EngineError;
use crate::attention::{NewKeys, Reader, Rotation, SharedRoom};
use device::DeviceCompute;
use host::HostCompute;

/// A place where a model computes, with its weights.
pub(crate) trait Compute: Send + Sync {
    /// Its name among the things that decide over last bits.
    fn name(&self) -> &'static str;

    /// The model in main memory; `None` where a device computes.
    fn host(&self) -> Option<&Arc<Decoder>>;

    /// Memory for batches of up to `batch_tokens` tokens.
    fn forward(&self, batch_tokens: usize) -> Result<Box<dyn ModelForward>, EngineError>;

    /// Reads the pages of a new sequence; sequences share `shared` where pages are copied to a device.
    fn reader(&self, shared: &SharedRoom, room: Option<RoomOptions>) -> Result<Box<dyn Reader>, EngineError>;

    /// Rows of a pass up to which each has the bits that it has alone.
    fn rows_alike(&self) -> usize;
}

/// Batches on their way through a model where it computes.
pub(crate) trait ModelForward: Send {
    /// For work that is the same wherever the model computes.
    fn as_dyn(&mut self) -> &mut dyn Forward;

    /// A batch in main memory; `None` where a device computes.
    fn host(&mut self) -> Option<&mut HostForward>;

    /// Projects rows of a batch in a layer and rotates them as caches hold them; false for a recurrent layer, which has nothing to
    /// attend to.
    fn project(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        shape: &AttentionShape,
        rotation: Rotation,
    ) -> Result<bool, EngineError>;

    /// The queries, keys and output of the layer under way, of all rows projected so far; `None` for a recurrent layer.
    fn projected(&mut self) -> Option<ProjectedLayer<'_>>;

    /// Brings rows of [`ProjectedLayer::output`] to where the model goes on from.
    fn take_output(&mut self, rows: Range<usize>) -> Result<(), EngineError>;
}

/// The input of a layer's attention, rotated as caches hold it, and room for the result.
pub(crate) struct ProjectedLayer<'a> {
    // [rows, heads, key_width]
    pub(crate) queries: &'a [f32],
    pub(crate) new_keys: NewKeys<'a>,
    /// What the layer's own indexer computed, where it has one.
    pub(crate) index: Option<ProjectedIndex<'a>>,
    /// The attention result where it comes to main memory, `[rows, heads, value_width]`.
    pub(crate) output: &'a mut [f32],
}

/// Brings the weights to where the model is to compute.
pub(crate) fn place(
    decoder: Decoder,
    device: Option<&Arc<dyn ComputeDevice>>,
) -> Result<Box<dyn Compute>, EngineError> {
    Ok(match device {
        None => Box::new(HostCompute(Arc::new(decoder))),
        Some(device) => Box::new(DeviceCompute::new(decoder, device)?),
    })
}
