//! Selects the device that computes.

use std::sync::Arc;

use riffle_attention::Format;
use riffle_device::{ComputeDevice, DeviceError};
use riffle_model::ModelConfig;

use crate::{AttentionPrecision, EngineError, EngineOptions};

/// The formats of pages that a device reads.
pub const DEVICE_FORMATS: [Format; 4] = [Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0];

impl EngineOptions {
    /// Sets the device from its `name`: `cpu`, `cuda` or `cuda:N`. Without a name, uses a CUDA device that supports
    /// the model if there is one, otherwise the CPU. `open` opens the CUDA device with a number.
    ///
    /// # Errors
    /// [`EngineError::Option`] for another name; [`EngineError::Device`] if `open` refuses a named device.
    pub fn on_device(
        mut self,
        name: Option<&str>,
        open: impl FnOnce(usize) -> Result<Arc<dyn ComputeDevice>, DeviceError>,
    ) -> Result<Self, EngineError> {
        match name {
            Some(name) => self.machine.device = cuda_ordinal(name)?.map(open).transpose()?,
            None => self.machine.preferred_device = open(0).ok(),
        }
        Ok(self)
    }

    /// Chooses the preferred device if it supports this model.
    pub(crate) fn resolved(&self, config: &ModelConfig) -> Self {
        let mut options = self.clone();
        let preferred = options.machine.preferred_device.take();
        if options.machine.device.is_none() && refusal(config, self).is_none() {
            options.machine.device = preferred;
        }
        options
    }

    /// Refuses models and options that a requested device does not support.
    pub(crate) fn check_device(&self, config: &ModelConfig) -> Result<(), EngineError> {
        match refusal(config, self).filter(|_| self.machine.device.is_some()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// The number of the CUDA device `name`; `None` for the CPU.
///
/// # Errors
/// [`EngineError::Option`] for other names than `cpu`, `cuda` or `cuda:N`.
pub fn cuda_ordinal(name: &str) -> Result<Option<usize>, EngineError> {
    let spelled = name.to_ascii_lowercase();
    let ordinal = match &*spelled {
        "cpu" => return Ok(None),
        "cuda" => Some(0),
        other => other.strip_prefix("cuda:").and_then(|number| number.parse().ok()),
    };
    match ordinal {
        Some(ordinal) => Ok(Some(ordinal)),
        None => Err(EngineError::option("device", name, "it must be cpu, cuda or cuda:N")),
    }
}

/// The reason why no device computes a model under these options.
fn refusal(config: &ModelConfig, options: &EngineOptions) -> Option<EngineError> {
    if let Some(selection) = &options.model.token_selection {
        return Some(selection.refuse("a device reads every token in every layer"));
    }
    if options.model.attention == AttentionPrecision::Rounded {
        return Some(EngineError::option(
            "attention",
            options.model.attention,
            "a device has arithmetic of its own: leave it out, or use `device=cpu`",
        ));
    }
    let formats = [options.cache.key_format, options.cache.value_format];
    if let Some(format) = formats.into_iter().find(|format| !DEVICE_FORMATS.contains(format)) {
        return Some(EngineError::option(
            "kv_type",
            format,
            "the device reads f16, bf16, q8_0 and q4_0: use one of these, or `device=cpu`",
        ));
    }
    if !options.cache.page_tokens.is_multiple_of(64) {
        return Some(EngineError::option(
            "page_tokens",
            options.cache.page_tokens,
            "the device reads pages of a multiple of 64 tokens: use one, or `device=cpu`",
        ));
    }
    model_refusal(config).map(|problem| EngineError::option("device", "cuda", format!("{problem}: use `device=cpu`")))
}

/// The part of a model without device support.
fn model_refusal(config: &ModelConfig) -> Option<String> {
    let delta_net = config.gated_delta_net();
    if config.has_states() && delta_net.is_none() {
        return Some(
            "it computes no states but those of Gated DeltaNet layers of one size without attention".to_owned(),
        );
    }
    if let Some(shape) = delta_net.filter(|shape| shape.key_dim > 256) {
        return Some(format!(
            "it computes recurrent heads of up to 256 and this model's have {}",
            shape.key_dim
        ));
    }
    if let Some(part) = config.host_only {
        return Some(format!("it does not compute this model's {part}"));
    }
    if !config.is_uniform() {
        return Some("it computes models whose layers all have the same heads, and this one's differ".to_owned());
    }
    if !config.head_dim.is_multiple_of(16) || config.head_dim > 256 {
        return Some(format!(
            "it computes heads of a multiple of 16 up to 256 and this model's have {}",
            config.head_dim
        ));
    }
    None
}
