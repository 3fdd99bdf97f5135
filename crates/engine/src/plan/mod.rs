//! The memory plan: what a run will use, before anything is allocated.

mod bytes;
mod device;
mod tiers;

use riffle_attention::Format;
use riffle_kv::{CacheShape, largest};
use riffle_model::ModelConfig;
use riffle_policy::PolicyShape;
use serde::Serialize;

use crate::recurrence::Recurrence;
use crate::{EngineError, EngineOptions};

pub use bytes::{available_memory_bytes, human_bytes};
pub use device::DevicePlan;
pub(crate) use device::pool_options;
pub use tiers::TierPlan;
use tiers::planned_tiers;
pub(crate) use tiers::session_tiers;

/// Bytes a run needs, part by part, beside what the machine has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Tokens the context holds.
    pub context_tokens: usize,
    /// Bytes of packed weights: one copy.
    pub weights_bytes: u64,
    /// Bytes of keys and values one token adds, over all layers.
    pub kv_bytes_per_token: u64,
    /// Bytes of KV pages when the context is full. Pages are allocated by use; this is the ceiling.
    pub kv_bytes: u64,
    /// Where they lie then.
    pub kv_tiers: TierPlan,
    /// Where the model computes on a device: what that needs there. The parts beside it are of main memory.
    pub device: Option<DevicePlan>,
    /// Bytes of the recurrent layers' state and the copies a session keeps of it; the same for every context.
    pub recurrent_bytes: u64,
    /// Bytes of activations for one logical batch, attention partials and logits.
    pub scratch_bytes: u64,
    /// Sum of the parts that lie in memory.
    pub total_bytes: u64,
    /// Bytes the run may use.
    pub available_bytes: u64,
    /// Longest context that fits in [`Self::available_bytes`] and in the tiers, at most what the model supports; 0 if none
    /// does.
    pub largest_context_tokens: usize,
}

impl MemoryPlan {
    /// Plans a run; reads nothing but its arguments.
    ///
    /// # Errors
    /// [`EngineError::ContextTooLong`], or [`EngineError::Kv`] for an impossible cache shape.
    pub fn new(config: &ModelConfig, options: &EngineOptions, available_bytes: u64) -> Result<Self, EngineError> {
        Self::planned(config, options, available_bytes, false)
    }

    /// The plan of a run whose weights lie on the device already, if there is one: what is free there is free beside them.
    pub(crate) fn with_weights(
        config: &ModelConfig,
        options: &EngineOptions,
        available_bytes: u64,
    ) -> Result<Self, EngineError> {
        Self::planned(config, options, available_bytes, true)
    }

    fn planned(
        config: &ModelConfig,
        options: &EngineOptions,
        available_bytes: u64,
        has_weights: bool,
    ) -> Result<Self, EngineError> {
        options.validate()?;
        let asked = options.context_for(config.max_position)?;
        let shape = cache_shape(config, options);
        shape.validate()?;
        let recurrent_bytes = Recurrence::STATES * config.recurrent_bytes();
        let scans_keys = options.scans_keys()?;
        let planned = |context: usize| {
            let scratch_bytes = scratch_bytes(config, options, context);
            let rest = config
                .weight_bytes
                .saturating_add(recurrent_bytes)
                .saturating_add(scratch_bytes);
            let beside = match options.device {
                None => rest,
                Some(_) => rest - config.weight_bytes,
            };
            let tiers = planned_tiers(options, context, scans_keys, available_bytes.saturating_sub(beside));
            let kv_tiers = TierPlan::new(&tiers, &shape, context);
            let pages = kv_tiers.device_bytes.saturating_add(kv_tiers.ram_bytes);
            let total = match options.device {
                None => rest.saturating_add(pages),
                // Weights pass through main memory and are gone when the first page comes.
                Some(_) => config.weight_bytes.max(rest - config.weight_bytes + pages),
            };
            (scratch_bytes, kv_tiers, total)
        };
        let largest_context_tokens = largest(config.max_position, |context| {
            let (_, tiers, total) = planned(context);
            total <= available_bytes && tiers.refusal.is_none()
        });
        // Nobody asked for the model's whole context: take what fits, unless nothing does.
        let context_tokens = match options.context_tokens {
            None if largest_context_tokens > 0 => largest_context_tokens,
            _ => asked,
        };
        let (scratch_bytes, kv_tiers, total_bytes) = planned(context_tokens);
        let device = match &options.device {
            Some(gpu) => Some(DevicePlan::new(gpu, config, options, context_tokens, has_weights)?),
            None => None,
        };
        Ok(Self {
            device,
            context_tokens,
            weights_bytes: config.weight_bytes,
            kv_bytes_per_token: shape.bytes_per_token(),
            kv_bytes: shape.bytes_for(context_tokens),
            kv_tiers,
            recurrent_bytes,
            scratch_bytes,
            total_bytes,
            available_bytes,
            largest_context_tokens,
        })
    }

    /// Whether the whole plan fits.
    pub fn fits(&self) -> bool {
        let on_device = self.device.as_ref().is_none_or(DevicePlan::fits);
        self.total_bytes <= self.available_bytes && self.kv_tiers.refusal.is_none() && on_device
    }

    /// Refuses a plan that does not fit.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] says what is needed, what there is and what would fit; [`EngineError::TierTooSmall`]
    /// which flag would.
    pub fn check(&self, options: &EngineOptions) -> Result<(), EngineError> {
        if self.fits() {
            return Ok(());
        }
        if let Some(device) = self.device.as_ref().filter(|device| !device.fits()) {
            return Err(device.refusal());
        }
        let shorter = match self.largest_context_tokens {
            0 => None,
            tokens => Some(format!("--ctx {tokens} or less")),
        };
        if let Some(refusal) = &self.kv_tiers.refusal {
            return Err(EngineError::TierTooSmall {
                tokens: self.context_tokens,
                needed: human_bytes(self.kv_bytes),
                refusal: refusal.clone(),
                otherwise: shorter.map_or_else(String::new, |shorter| format!(", or {shorter}")),
            });
        }
        let mut ways: Vec<String> = shorter.into_iter().collect();
        if !ways.is_empty() && [options.key_format, options.value_format].contains(&Format::F32) {
            ways.push("--kv-type f16".to_owned());
        }
        let room = self
            .available_bytes
            .saturating_sub(self.weights_bytes + self.recurrent_bytes + self.scratch_bytes);
        if options.kv_tiers.disk.is_none() && room >= self.kv_tiers.least_near_bytes {
            ways.push("--kv-disk DIR for the oldest pages".to_owned());
        } else if options.kv_tiers.ram_budget_bytes.is_some_and(|budget| budget > room)
            && room >= self.kv_tiers.least_near_bytes
        {
            ways.push(format!("--kv-ram-budget {room}"));
        }
        Err(EngineError::OutOfMemory {
            needed: human_bytes(self.total_bytes),
            parts: format!(
                "weights {}, KV of {} tokens {}, {}scratch {}",
                human_bytes(self.weights_bytes),
                self.context_tokens,
                human_bytes(self.kv_tiers.device_bytes + self.kv_tiers.ram_bytes),
                match self.recurrent_bytes {
                    0 => String::new(),
                    bytes => format!("recurrent state {}, ", human_bytes(bytes)),
                },
                human_bytes(self.scratch_bytes)
            ),
            available: human_bytes(self.available_bytes),
            advice: match ways.is_empty() {
                true => {
                    "not even one token fits: use a smaller model, a smaller -b or a machine with more memory".into()
                }
                false => format!("use {}", ways.join(", or ")),
            },
        })
    }
}

/// The shape of the cache a model needs under these options.
pub(crate) fn cache_shape(config: &ModelConfig, options: &EngineOptions) -> CacheShape {
    CacheShape {
        layers: config.attention_layers(),
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        page_tokens: options.page_tokens,
        key_format: options.key_format,
        value_format: options.value_format,
    }
}

/// What the policies of a model are built for.
pub(crate) fn policy_shape(config: &ModelConfig, options: &EngineOptions) -> PolicyShape {
    PolicyShape {
        layers: config.attention_layers(),
        kv_heads: config.kv_heads,
        group: config.heads / config.kv_heads,
        head_dim: config.head_dim,
        chunk_tokens: options.chunk_tokens,
    }
}

/// Bytes of everything a session holds beside weights and pages.
fn scratch_bytes(config: &ModelConfig, options: &EngineOptions, context: usize) -> u64 {
    let batch = options.batch_tokens.min(context);
    // Two-phase policies hold the sums of a whole batch at once.
    let chunk = match options.prefill.has_two_phases() {
        true => batch,
        false => options.chunk_tokens.min(batch),
    };
    let floats = batch * config.hidden_size
        + chunk * config.heads * (config.head_dim + 2)
        + config.hidden_size
        + config.vocab_size;
    let rotation = options.rotation();
    let rotated = batch
        * config.head_dim
        * (usize::from(rotation.keys) * (config.heads + config.kv_heads)
            + usize::from(rotation.values) * config.kv_heads);
    let floats = floats + rotated;
    riffle_model::scratch_bytes(config, batch)
        + (floats * size_of::<f32>()) as u64
        + (context * size_of::<u32>()) as u64
        + stored_bytes(config, options, context)
}

/// Bytes of what the policies keep of the sequence.
fn stored_bytes(config: &ModelConfig, options: &EngineOptions, context: usize) -> u64 {
    let shape = policy_shape(config, options);
    options.prefill.stored_bytes(&shape, context) + options.decode.stored_bytes(&shape, context)
}
