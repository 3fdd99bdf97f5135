//! A device, the queue of an engine's work on it, and a model there.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use riffle_attention::Format;
use riffle_model::{Decoder, ModelConfig};

use crate::{DeviceError, DeviceForward, DeviceRows, PageRoom, RoomOptions};

/// A device that computes models.
pub trait ComputeDevice: Debug + Send + Sync {
    /// The device's name.
    fn name(&self) -> &str;

    /// Describes the implementation of products of 16-bit weights with many rows: a library, or the device's own
    /// kernels and the reason.
    fn products(&self) -> String;

    /// The instructions of attention to a prompt for these formats of keys and values, and the reason for them.
    ///
    /// # Errors
    /// Shapes or formats that no kernel reads, a failed device.
    fn prefill_instructions(&self, head_dim: usize, formats: [Format; 2]) -> Result<String, DeviceError>;

    /// Maximum number of rows of a product for which each row has the same bits as alone.
    fn few_rows(&self) -> usize;

    /// Bytes of device memory that are free now.
    ///
    /// # Errors
    /// A failed device.
    fn free_bytes(&self) -> Result<u64, DeviceError>;

    /// Bytes of device memory that [`DeviceModel::forward`] takes for batches of up to `batch_tokens` tokens.
    fn forward_bytes(&self, config: &ModelConfig, batch_tokens: usize) -> u64;

    /// Fewest bytes of device memory of a room: for pages that are read once and for pages in transit.
    fn least_room_bytes(&self, room: &RoomOptions) -> u64;

    /// Bytes of device memory for all pages of a context of `tokens` tokens, including pages in transit.
    fn room_bytes_for(&self, room: &RoomOptions, tokens: usize) -> u64;

    /// Bytes beyond a room's budget for calls of up to `rows` rows that append up to `added` tokens, in a context of
    /// `tokens` tokens.
    fn call_bytes(&self, room: &RoomOptions, rows: usize, added: usize, tokens: usize) -> u64;

    /// Main memory that the device can read directly, for KV pages.
    fn pinned_memory(&self) -> Arc<dyn riffle_kv::Device>;

    /// A new queue of work.
    ///
    /// # Errors
    /// A failed device.
    fn queue(&self) -> Result<Arc<dyn DeviceQueue>, DeviceError>;
}

/// Work of one engine on a device, in order.
pub trait DeviceQueue: Send + Sync {
    /// Copies the weights of a model to the device.
    ///
    /// # Errors
    /// Too little memory, a weight format without a kernel, or a failed device.
    fn upload(self: Arc<Self>, decoder: Decoder) -> Result<Box<dyn DeviceModel>, DeviceError>;

    /// An empty room for KV pages.
    ///
    /// # Errors
    /// A budget that is too small, a page format without a kernel, too little memory, or a failed device.
    fn room(self: Arc<Self>, options: RoomOptions) -> Result<Box<dyn PageRoom>, DeviceError>;

    /// Copies rows of a layer from main memory: queries `[tokens, heads, head_dim]`, keys and values
    /// `[tokens, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// Too little memory, or a failed device.
    fn rows(
        self: Arc<Self>,
        tokens: usize,
        head_dim: usize,
        layer: [&[f32]; 3],
    ) -> Result<Box<dyn DeviceRows>, DeviceError>;

    /// Downloads the attention output for rows of a batch, `[rows, heads, head_dim]`, once everything queued so far has
    /// run.
    ///
    /// # Errors
    /// A failed device.
    fn attended(&self, rows: &dyn DeviceRows, range: Range<usize>) -> Result<Vec<f32>, DeviceError>;

    /// A clock of the device, not yet started.
    ///
    /// # Errors
    /// A failed device.
    fn timer(self: Arc<Self>) -> Result<Box<dyn QueueTimer>, DeviceError>;
}

/// Time on a device between two points of a [`DeviceQueue`].
pub trait QueueTimer: Send + Sync {
    /// Queues the first point.
    ///
    /// # Errors
    /// A failed device.
    fn start(&self) -> Result<(), DeviceError>;

    /// Queues the second point.
    ///
    /// # Errors
    /// A failed device.
    fn stop(&self) -> Result<(), DeviceError>;

    /// Waits for both points. Returns the milliseconds between them.
    ///
    /// # Errors
    /// A failed device.
    fn elapsed_ms(&self) -> Result<f64, DeviceError>;
}

/// A model with its weights on a device.
pub trait DeviceModel: Send + Sync {
    /// Memory for batches of up to `batch_tokens` tokens.
    ///
    /// # Errors
    /// Too little memory, a failed device.
    fn forward(&self, batch_tokens: usize) -> Result<Box<dyn DeviceForward>, DeviceError>;
}
