//! The memory plan: what a run will use, before anything is allocated.

use riffle_attention::Format;
use riffle_kv::CacheShape;
use riffle_model::ModelConfig;
use riffle_policy::PolicyShape;
use serde::Serialize;

use crate::recurrence::Recurrence;
use crate::{EngineError, EngineOptions};

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
    /// Bytes of the recurrent layers' state and the copies a session keeps of it; the same for every context.
    pub recurrent_bytes: u64,
    /// Bytes of activations for one logical batch, attention partials and logits.
    pub scratch_bytes: u64,
    /// Sum of the parts.
    pub total_bytes: u64,
    /// Bytes the run may use.
    pub available_bytes: u64,
    /// Longest context that fits in [`Self::available_bytes`], at most what the model supports; 0 if none does.
    pub largest_context_tokens: usize,
}

impl MemoryPlan {
    /// Plans a run; reads nothing but its arguments.
    ///
    /// # Errors
    /// [`EngineError::ContextTooLong`], or [`EngineError::Kv`] for an impossible cache shape.
    pub fn new(config: &ModelConfig, options: &EngineOptions, available_bytes: u64) -> Result<Self, EngineError> {
        options.validate()?;
        let asked = options.context_for(config.max_position)?;
        let shape = cache_shape(config, options);
        shape.validate()?;
        let recurrent_bytes = Recurrence::STATES * config.recurrent_bytes();
        let scratch = |context: usize| scratch_bytes(config, options, context);
        let needed = |context: usize| {
            config
                .weight_bytes
                .saturating_add(recurrent_bytes)
                .saturating_add(scratch(context))
                .saturating_add(shape.bytes_for(context))
        };
        let largest_context_tokens = largest(config.max_position, |context| needed(context) <= available_bytes);
        // Nobody asked for the model's whole context: take what fits, unless nothing does.
        let context_tokens = match options.context_tokens {
            None if largest_context_tokens > 0 => largest_context_tokens,
            _ => asked,
        };
        Ok(Self {
            context_tokens,
            weights_bytes: config.weight_bytes,
            kv_bytes_per_token: shape.bytes_per_token(),
            kv_bytes: shape.bytes_for(context_tokens),
            recurrent_bytes,
            scratch_bytes: scratch(context_tokens),
            total_bytes: needed(context_tokens),
            available_bytes,
            largest_context_tokens,
        })
    }

    /// Whether the whole plan fits.
    pub fn fits(&self) -> bool {
        self.total_bytes <= self.available_bytes
    }

    /// Refuses a plan that does not fit.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] says what is needed, what there is and what would fit.
    pub fn check(&self, options: &EngineOptions) -> Result<(), EngineError> {
        if self.fits() {
            return Ok(());
        }
        let halves = [options.key_format, options.value_format].contains(&Format::F32);
        let advice = if self.largest_context_tokens == 0 {
            "not even one token fits: use a smaller model, a smaller -b or a machine with more memory".to_owned()
        } else if halves {
            format!("use --ctx {} or less, or --kv-type f16", self.largest_context_tokens)
        } else {
            format!("use --ctx {} or less", self.largest_context_tokens)
        };
        Err(EngineError::OutOfMemory {
            needed: human_bytes(self.total_bytes),
            parts: format!(
                "weights {}, KV of {} tokens {}, {}scratch {}",
                human_bytes(self.weights_bytes),
                self.context_tokens,
                human_bytes(self.kv_bytes),
                match self.recurrent_bytes {
                    0 => String::new(),
                    bytes => format!("recurrent state {}, ", human_bytes(bytes)),
                },
                human_bytes(self.scratch_bytes)
            ),
            available: human_bytes(self.available_bytes),
            advice,
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
}

/// The largest number in 1..=limit for which `fits` holds (it holds for all smaller ones too), or 0.
fn largest(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Bytes this process may still use: what the system has available, within its control group's limit.
pub fn available_memory_bytes() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let free = system.available_memory();
    match system.cgroup_limits() {
        Some(limits) if limits.total_memory > 0 => free.min(limits.free_memory),
        _ => free,
    }
}

/// Bytes for people: `1.5 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else if value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_for_people() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(300 << 20), "300 MiB");
        assert_eq!(human_bytes(u64::MAX), "16777216 TiB");
    }

    #[test]
    fn the_largest_fitting_number_is_found_exactly() {
        assert_eq!(largest(100, |n| n <= 37), 37);
        assert_eq!(largest(100, |_| true), 100);
        assert_eq!(largest(100, |_| false), 0);
    }
}
