//! The processor of a model: the CPU, or a device with its weights.
//!
//! Each is an implementation of [`Compute`] with its batches, a [`ModelForward`]. Higher modules do not depend on
//! which one it is.

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

/// A CPU or device with a model's weights.
pub(crate) trait Compute: Send + Sync {
    /// Name of the CPU or device among the settings that affect last bits.
    fn name(&self) -> &'static str;

    /// The model in main memory; `None` on a device.
    fn host(&self) -> Option<&Arc<Decoder>>;

    /// Scratch for batches of up to `batch_tokens` tokens.
    fn forward(&self, batch_tokens: usize) -> Result<Box<dyn ModelForward>, EngineError>;

    /// A reader for a new sequence's pages; on a device, sequences share the page cache `shared`.
    fn reader(&self, shared: &SharedRoom, room: Option<RoomOptions>) -> Result<Box<dyn Reader>, EngineError>;

    /// Maximum number of rows of a pass in which each row has the same bits as alone.
    fn rows_alike(&self) -> usize;
}

/// Runs batches through a model on its device.
pub(crate) trait ModelForward: Send {
    /// Access to the work that is common to all devices.
    fn as_dyn(&mut self) -> &mut dyn Forward;

    /// A batch in main memory; `None` on a device.
    fn host(&mut self) -> Option<&mut HostForward>;

    /// Projects rows of a batch in a layer and rotates them to the cache's form; returns false for a recurrent layer,
    /// which needs no attention.
    fn project(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        shape: &AttentionShape,
        rotation: Rotation,
    ) -> Result<bool, EngineError>;

    /// The queries, keys and output of the current layer, for all rows projected so far; `None` for a recurrent
    /// layer.
    fn projected(&mut self) -> Option<ProjectedLayer<'_>>;

    /// Copies rows of [`ProjectedLayer::output`] to the model's device.
    fn take_output(&mut self, rows: Range<usize>) -> Result<(), EngineError>;
}

/// The input of a layer's attention, rotated to the cache's form, and the buffer for the result.
pub(crate) struct ProjectedLayer<'a> {
    // [rows, heads, key_width]
    pub(crate) queries: &'a [f32],
    pub(crate) new_keys: NewKeys<'a>,
    /// The results of the layer's own indexer, if it has one.
    pub(crate) index: Option<ProjectedIndex<'a>>,
    /// Attention's result in main memory, `[rows, heads, value_width]`.
    pub(crate) output: &'a mut [f32],
}

/// Copies the weights to the device on which the model computes.
pub(crate) fn place(
    decoder: Decoder,
    device: Option<&Arc<dyn ComputeDevice>>,
) -> Result<Box<dyn Compute>, EngineError> {
    Ok(match device {
        None => Box::new(HostCompute(Arc::new(decoder))),
        Some(device) => Box::new(DeviceCompute::new(decoder, device)?),
    })
}
