//! Rows of a layer on the device: the decoder's queries, keys and values, and attention's output.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use riffle_model::ModelConfig;

use crate::ops::{self, HeadRows, Queries};
use crate::{CallRows, CudaError, DeviceBuffer, Gpu, Stream};

/// Queries, keys and values of a layer's batch on the device, f32 `[tokens, heads or kv_heads, head_dim]`, and the
/// memory for the attention output: see [`DeviceForward`](crate::DeviceForward).
pub struct DeviceRows {
    pub(crate) queries: DeviceBuffer,
    pub(crate) keys: DeviceBuffer,
    pub(crate) values: DeviceBuffer,
    /// Attention output in the layout of the queries; the decoder reads it.
    pub(crate) attended: DeviceBuffer,
    // f32 [tokens, heads]
    log_sum_exp: DeviceBuffer,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    stream: Arc<Stream>,
}

impl DeviceRows {
    /// Rows of a GPU, from the rows of any device.
    ///
    /// # Errors
    /// [`CudaError::OtherDevice`] for rows of another kind of device.
    pub fn downcast(rows: &dyn riffle_device::DeviceRows) -> Result<&Self, CudaError> {
        (rows as &dyn Any).downcast_ref().ok_or(CudaError::OtherDevice)
    }

    /// Memory for batches of up to `tokens` tokens.
    pub(crate) fn new(gpu: &Gpu, stream: &Arc<Stream>, config: &ModelConfig, tokens: usize) -> Result<Self, CudaError> {
        let floats = |heads: usize| gpu.allocate(4 * tokens * heads * config.head_dim);
        Ok(Self {
            queries: floats(config.heads)?,
            keys: floats(config.kv_heads)?,
            values: floats(config.kv_heads)?,
            attended: floats(config.heads)?,
            log_sum_exp: gpu.allocate(4 * tokens * config.heads)?,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            stream: Arc::clone(stream),
        })
    }

    /// Uploads queries, keys and values of `tokens` tokens of a layer from main memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], a lost device.
    pub fn of_layer(
        stream: &Arc<Stream>,
        tokens: usize,
        head_dim: usize,
        [queries, keys, values]: [&[f32]; 3],
    ) -> Result<Self, CudaError> {
        let gpu = stream.gpu();
        let heads = queries.len() / (tokens * head_dim);
        Ok(Self {
            queries: gpu.upload(queries)?,
            keys: gpu.upload(keys)?,
            values: gpu.upload(values)?,
            attended: gpu.allocate(size_of_val(queries))?,
            log_sum_exp: gpu.allocate(4 * tokens * heads)?,
            heads,
            kv_heads: keys.len() / (tokens * head_dim),
            head_dim,
            stream: Arc::clone(stream),
        })
    }

    /// Rotates the queries of some rows of the batch in place, with the same bits as
    /// `riffle_attention::rotate_heads`.
    ///
    /// # Errors
    /// A lost device.
    pub fn rotate_queries(&self, rows: Range<usize>) -> Result<(), CudaError> {
        self.rotate(&self.queries, rows)
    }

    /// Rotates the attention output of some rows of the batch back, for rotated values.
    ///
    /// # Errors
    /// A lost device.
    pub fn rotate_attended(&self, rows: Range<usize>) -> Result<(), CudaError> {
        self.rotate(&self.attended, rows)
    }

    fn rotate(&self, heads: &DeviceBuffer, rows: Range<usize>) -> Result<(), CudaError> {
        let width = self.heads * self.head_dim;
        ops::rotate_heads(
            &self.stream,
            &HeadRows {
                data: heads.region(4 * rows.start * width..4 * rows.end * width),
                rows: rows.len(),
                heads: self.heads,
                head_dim: self.head_dim,
                stride: width,
            },
        )
    }

    /// Queries of some tokens of the batch.
    pub fn queries(&self, tokens: Range<usize>) -> Queries<'_> {
        let width = self.heads * self.head_dim;
        Queries {
            data: self.queries.region(4 * tokens.start * width..4 * tokens.end * width),
            rows: tokens.len(),
            row_stride: width,
        }
    }

    /// Rows that an attention call on some tokens of the batch reads and writes.
    pub fn call(&self, tokens: Range<usize>) -> CallRows<'_> {
        let (heads, width) = (self.heads, self.heads * self.head_dim);
        CallRows {
            attended: self.attended.region(4 * tokens.start * width..4 * tokens.end * width),
            log_sum_exp: self
                .log_sum_exp
                .region(4 * tokens.start * heads..4 * tokens.end * heads),
            queries: self.queries(tokens),
        }
    }

    /// Keys and values of some tokens of the batch.
    pub(crate) fn keys_and_values(&self, tokens: Range<usize>) -> [HeadRows<'_>; 2] {
        let width = self.kv_heads * self.head_dim;
        [&self.keys, &self.values].map(|buffer| HeadRows {
            data: buffer.region(4 * tokens.start * width..4 * tokens.end * width),
            rows: tokens.len(),
            heads: self.kv_heads,
            head_dim: self.head_dim,
            stride: width,
        })
    }
}
