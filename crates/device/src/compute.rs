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

    /// The instructions that attention of a prompt uses for these formats of keys and values, and why these.
    ///
    /// # Errors
    /// Shapes or formats that no kernel reads, a device that fails.
    fn prefill_instructions(&self, head_dim: usize, formats: [Format; 2]) -> Result<String, DeviceError>;

    /// Rows of one product up to which a row has the bits that it has alone.
    fn few_rows(&self) -> usize;

    /// Bytes of device memory that are free now.
    ///
    /// # Errors
    /// A device that fails.
    fn free_bytes(&self) -> Result<u64, DeviceError>;

    /// Bytes of device memory that [`DeviceModel::forward`] takes for batches of up to `batch_tokens` tokens.
    fn forward_bytes(&self, config: &ModelConfig, batch_tokens: usize) -> u64;

    /// Bytes of device memory that a room needs at least: of pages that are read without staying and of pages on their way.
    fn least_room_bytes(&self, room: &RoomOptions) -> u64;

    /// Bytes of device memory that hold every page of a context of `tokens` tokens, those on their way included.
    fn room_bytes_for(&self, room: &RoomOptions, tokens: usize) -> u64;

    /// Bytes beside a room's budget that calls of up to `rows` rows take, and appending up to `added` tokens, in a context of `tokens`
    /// tokens.
    fn call_bytes(&self, room: &RoomOptions, rows: usize, added: usize, tokens: usize) -> u64;

    /// Main memory that the device copies from by itself: KV pages lie there.
    fn pinned_memory(&self) -> Arc<dyn riffle_kv::Device>;

    /// A new queue of work.
    ///
    /// # Errors
    /// A device that fails.
    fn queue(&self) -> Result<Arc<dyn DeviceQueue>, DeviceError>;
}

/// Work of one engine on a device, in order.
pub trait DeviceQueue: Send + Sync {
    /// Brings the weights of a model to the device.
    ///
    /// # Errors
    /// Too little memory, a weight format that no kernel reads, a device that fails.
    fn upload(self: Arc<Self>, decoder: Decoder) -> Result<Box<dyn DeviceModel>, DeviceError>;

    /// An empty room for KV pages.
    ///
    /// # Errors
    /// A budget that is too small, pages that no kernel reads, too little memory, a device that fails.
    fn room(self: Arc<Self>, options: RoomOptions) -> Result<Box<dyn PageRoom>, DeviceError>;

    /// Rows of a layer that were made in main memory: queries `[tokens, heads, head_dim]`, keys and values `[tokens, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// Too little memory, a device that fails.
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
    /// A device that fails.
    fn attended(&self, rows: &dyn DeviceRows, range: Range<usize>) -> Result<Vec<f32>, DeviceError>;

    /// A clock of the device, not yet started.
    ///
    /// # Errors
    /// A device that fails.
    fn timer(self: Arc<Self>) -> Result<Box<dyn QueueTimer>, DeviceError>;
}

/// Time on a device between two points of a [`DeviceQueue`].
pub trait QueueTimer: Send + Sync {
    /// Queues the first point.
    ///
    /// # Errors
    /// A device that fails.
    fn start(&self) -> Result<(), DeviceError>;

    /// Queues the second point.
    ///
    /// # Errors
    /// A device that fails.
    fn stop(&self) -> Result<(), DeviceError>;

    /// Waits for both points: milliseconds between them.
    ///
    /// # Errors
    /// A device that fails.
    fn elapsed_ms(&self) -> Result<f64, DeviceError>;
}

/// A model whose weights lie on a device.
pub trait DeviceModel: Send + Sync {
    /// Memory for batches of up to `batch_tokens` tokens.
    ///
    /// # Errors
    /// Too little memory, a device that fails.
    fn forward(&self, batch_tokens: usize) -> Result<Box<dyn DeviceForward>, DeviceError>;
}
