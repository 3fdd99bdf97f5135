//! What a decoder leaves on the device for attention.

use std::ops::Range;
use std::sync::Arc;

use riffle_model::ModelConfig;

use crate::ops::{self, HeadRows, Queries};
use crate::{CudaError, DeviceBuffer, Gpu, Stream};

/// Queries, keys and values of a batch of one layer, f32 `[tokens, heads or kv_heads, head_dim]`, where the decoder computed them.
/// An attention step finds them behind [`riffle_model::AttentionInput::on_device`].
pub struct DeviceRows {
    pub(crate) queries: DeviceBuffer,
    pub(crate) keys: DeviceBuffer,
    pub(crate) values: DeviceBuffer,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Tokens of the batch.
    pub(crate) tokens: usize,
    stream: Arc<Stream>,
}

impl DeviceRows {
    /// Room for batches of up to `tokens` tokens.
    pub(crate) fn new(gpu: &Gpu, stream: &Arc<Stream>, config: &ModelConfig, tokens: usize) -> Result<Self, CudaError> {
        let floats = |heads: usize| gpu.allocate(4 * tokens * heads * config.head_dim);
        Ok(Self {
            queries: floats(config.heads)?,
            keys: floats(config.kv_heads)?,
            values: floats(config.kv_heads)?,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            tokens: 0,
            stream: Arc::clone(stream),
        })
    }

    /// Rotates the queries of the batch where they lie, as `riffle_attention::rotate_heads` to the bit.
    ///
    /// # Errors
    /// A lost device.
    pub fn rotate_queries(&self) -> Result<(), CudaError> {
        ops::rotate_heads(
            &self.stream,
            &HeadRows {
                data: self.queries.all(),
                rows: self.tokens,
                heads: self.heads,
                head_dim: self.head_dim,
                stride: self.heads * self.head_dim,
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
