//! `--device`: which device computes.

use riffle_attention::Format;
use riffle_cuda::{Gpu, KernelCache};
use riffle_model::ModelConfig;

use crate::{AttentionPrecision, EngineError, EngineOptions};

impl EngineOptions {
    /// The same options on the device that `--device` names: `cpu`, `cuda` or `cuda:N`; without a name on a CUDA device
    /// where there is one that computes the model, else on the CPU.
    ///
    /// # Errors
    /// [`EngineError::Option`] for another name; [`EngineError::Device`] for a device that was named and is not there, is too
    /// old, or that this build cannot use.
    pub fn on_device(mut self, name: Option<&str>) -> Result<Self, EngineError> {
        let spelled = name.map(str::to_ascii_lowercase);
        let ordinal = match spelled.as_deref() {
            Some("cpu") => return Ok(self),
            None => {
                self.preferred_device = Gpu::open(0, KernelCache::of_user()).ok();
                return Ok(self);
            }
            Some("cuda") => Some(0),
            Some(name) => name.strip_prefix("cuda:").and_then(|number| number.parse().ok()),
        };
        let Some(ordinal) = ordinal else {
            let name = name.unwrap_or_default();
            return Err(EngineError::option("--device", name, "it must be cpu, cuda or cuda:N"));
        };
        self.device = Some(Gpu::open(ordinal, KernelCache::of_user())?);
        Ok(self)
    }

    /// These options with the preferred device taken where it computes this model.
    pub(crate) fn resolved(&self, config: &ModelConfig) -> Self {
        let mut options = self.clone();
        let preferred = options.preferred_device.take();
        if options.device.is_none() && refusal(config, self).is_none() {
            options.device = preferred;
        }
        options
    }

    /// Refuses what a device does not compute, where one was asked for.
    pub(crate) fn check_device(&self, config: &ModelConfig) -> Result<(), EngineError> {
        match refusal(config, self).filter(|_| self.device.is_some()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Why no device computes a model under these options.
fn refusal(config: &ModelConfig, options: &EngineOptions) -> Option<EngineError> {
    if let Some(selection) = &options.token_selection {
        return Some(selection.refuse("a device reads every token in every layer"));
    }
    if options.attention == AttentionPrecision::Rounded {
        return Some(EngineError::option(
            "--attention",
            options.attention,
            "a device has arithmetic of its own: leave it out, or use --device cpu",
        ));
    }
    if let Some(shape) = config.recurrent.as_ref().filter(|shape| shape.key_dim > 256) {
        return Some(EngineError::option(
            "--device",
            "cuda",
            format!(
                "it computes recurrent heads of up to 256 and this model's have {}: use --device cpu",
                shape.key_dim
            ),
        ));
    }
    if [options.key_format, options.value_format].contains(&Format::F32) {
        return Some(EngineError::option(
            "--kv-type",
            "f32",
            "the device reads f16, bf16, q8_0 and q4_0: use one of these, or --device cpu",
        ));
    }
    if !options.page_tokens.is_multiple_of(64) {
        return Some(EngineError::option(
            "--page-tokens",
            options.page_tokens,
            "the device reads pages of a multiple of 64 tokens: use one, or --device cpu",
        ));
    }
    if !config.head_dim.is_multiple_of(16) || config.head_dim > 256 {
        return Some(EngineError::option(
            "--device",
            "cuda",
            format!(
                "it computes heads of a multiple of 16 up to 256 and this model's have {}: use --device cpu",
                config.head_dim
            ),
        ));
    }
    None
}
