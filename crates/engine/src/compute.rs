//! Where a model computes: on the CPU, or on a device that holds its weights.

use std::sync::Arc;

use riffle_cuda::{DeviceForward, DeviceModel, Gpu, Stream};
use riffle_model::{Decoder, Forward, HostForward};

use crate::EngineError;

pub(crate) enum Compute {
    Host(Arc<Decoder>),
    Device(DeviceCompute),
}

/// A model on a device, and the stream on which its work is queued.
pub(crate) struct DeviceCompute {
    model: Arc<DeviceModel>,
    pub(crate) stream: Arc<Stream>,
}

impl Compute {
    /// Brings the weights to where the model is to compute.
    pub(crate) fn new(decoder: Decoder, device: Option<&Gpu>) -> Result<Self, EngineError> {
        Ok(match device {
            None => Self::Host(Arc::new(decoder)),
            Some(gpu) => Self::Device(DeviceCompute {
                model: Arc::new(DeviceModel::upload(gpu, decoder)?),
                stream: Arc::new(gpu.stream()?),
            }),
        })
    }

    /// Memory for batches of up to `batch_tokens` tokens in a context of up to `context_tokens`.
    pub(crate) fn forward(&self, batch_tokens: usize, context_tokens: usize) -> Result<Box<dyn Forward>, EngineError> {
        Ok(match self {
            Self::Host(model) => Box::new(HostForward::new(model, batch_tokens, context_tokens)),
            Self::Device(device) => Box::new(DeviceForward::new(
                &device.model,
                &device.stream,
                batch_tokens,
                context_tokens,
            )?),
        })
    }
}
