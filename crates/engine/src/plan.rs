//! The memory plan: what a run will use, before anything is allocated.

use std::sync::Arc;

use riffle_attention::Format;
use riffle_cuda::{Gpu, PagePoolOptions, PinnedMemory};
use riffle_kv::{CacheShape, KvTiers, Outlook, largest};
use riffle_model::ModelConfig;
use riffle_policy::PolicyShape;
use serde::Serialize;

use crate::parse::typed_bytes;
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

/// Bytes of a device's memory that a run needs, part by part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DevicePlan {
    /// The device's name.
    pub name: String,
    /// Who multiplies 16-bit weights with many rows: a library, or this program's kernels and why.
    pub products: String,
    /// Bytes of weights.
    pub weights_bytes: u64,
    /// Bytes of hidden states, of scratch and of attention's rows for one logical batch.
    pub scratch_bytes: u64,
    /// Bytes of the context's KV pages that lie there when it is full, those on their way included. All pages lie in main
    /// memory as well.
    pub kv_bytes: u64,
    /// The hard budget of KV pages.
    pub kv_budget_bytes: u64,
    /// Bytes of KV pages that are needed at least.
    pub least_kv_bytes: u64,
    /// Sum of the parts.
    pub total_bytes: u64,
    /// Bytes of its memory that are free.
    pub available_bytes: u64,
}

/// Bytes of KV pages by tier, and of those on their way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TierPlan {
    /// In the device tier.
    pub device_bytes: u64,
    /// In main memory.
    pub ram_bytes: u64,
    /// In files.
    pub disk_bytes: u64,
    /// The hard budget of main memory; without limit beyond the pages themselves where there is none.
    pub ram_budget_bytes: Option<u64>,
    /// Bytes that the nearest tier needs at least.
    pub least_near_bytes: u64,
    /// What is too little, and the flag that would do.
    pub refusal: Option<String>,
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

/// What a session's pool of pages on a device is made for.
pub(crate) fn pool_options(config: &ModelConfig, options: &EngineOptions, budget_bytes: u64) -> PagePoolOptions {
    // Enough for the queries of a chunk and for some rows of weights; longer estimates are made in pieces.
    const ESTIMATE_BYTES: u64 = 64 << 20;
    let (base, rules) = (&options.prefill.base, &options.prefill.rules);
    let mut policies = rules.iter().map(|rule| &rule.policy).chain([base]);
    PagePoolOptions {
        shape: cache_shape(config, options),
        heads: config.heads,
        budget_bytes,
        slots: options.kv_tiers.slots,
        estimate_bytes: match policies.any(|spec| spec.has_estimate()) {
            true => ESTIMATE_BYTES,
            false => 0,
        },
    }
}

impl DevicePlan {
    fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        options: &EngineOptions,
        context: usize,
        has_weights: bool,
    ) -> Result<Self, EngineError> {
        let batch = options.batch_tokens.min(context);
        let pool = pool_options(config, options, 0);
        // Norms and biases are f32 there, whatever they are in the file.
        let vectors = 64 * (config.hidden_size + config.intermediate_size) * (config.layers + 1);
        let weights_bytes = config.weight_bytes.saturating_add(vectors as u64);
        let scratch_bytes = riffle_cuda::forward_bytes(config, batch)
            .saturating_add(pool.call_bytes(options.chunk_tokens.min(batch), context));
        let available_bytes = gpu.free_bytes()? as u64 + if has_weights { weights_bytes } else { 0 };
        let left = available_bytes.saturating_sub(weights_bytes.saturating_add(scratch_bytes));
        // Some is left to the driver: compiled kernels, and what falls between allocations.
        let left = left - left / 32;
        let whole = pool.bytes_for(context);
        let kv_budget_bytes = match options.kv_tiers.device_budget_bytes {
            0 => left.min(whole),
            budget => budget.min(whole),
        };
        Ok(Self {
            name: gpu.info().name.clone(),
            products: gpu.products(),
            weights_bytes,
            scratch_bytes,
            kv_bytes: kv_budget_bytes,
            kv_budget_bytes,
            least_kv_bytes: pool.least_bytes(),
            total_bytes: weights_bytes
                .saturating_add(scratch_bytes)
                .saturating_add(kv_budget_bytes),
            available_bytes,
        })
    }

    /// Whether it fits in what is free.
    pub fn fits(&self) -> bool {
        self.total_bytes <= self.available_bytes && self.kv_budget_bytes >= self.least_kv_bytes
    }

    fn refusal(&self) -> EngineError {
        let beside = self.weights_bytes.saturating_add(self.scratch_bytes);
        let advice = match self.available_bytes.checked_sub(beside) {
            Some(left) if left >= self.least_kv_bytes => {
                let range = (typed_bytes(self.least_kv_bytes), typed_bytes(left));
                format!(
                    "use --kv-device-budget from {} to {}, or --device cpu",
                    range.0, range.1
                )
            }
            _ => "use a smaller -b, a smaller --kv-slots, a smaller model, or --device cpu".to_owned(),
        };
        EngineError::OutOfDeviceMemory {
            device: self.name.clone(),
            parts: format!(
                "weights {}, KV pages {} (at least {}), scratch {}",
                human_bytes(self.weights_bytes),
                human_bytes(self.kv_budget_bytes),
                human_bytes(self.least_kv_bytes),
                human_bytes(self.scratch_bytes)
            ),
            available: human_bytes(self.available_bytes),
            advice,
        }
    }
}

impl TierPlan {
    fn new(tiers: &KvTiers, shape: &CacheShape, context: usize) -> Self {
        let [near, apart, disk_bytes] = tiers.bytes_for(shape, context);
        let device_bytes = match tiers.device.reads_main_memory() {
            true => near.min(tiers.device_budget_bytes),
            false => near,
        };
        let least_near_bytes = tiers.least_near_bytes(shape);
        let near_budget = match tiers.device.reads_main_memory() {
            true => tiers
                .ram_budget_bytes
                .map(|ram| ram.saturating_add(tiers.device_budget_bytes)),
            false => Some(tiers.device_budget_bytes),
        };
        let disk_budget = tiers.disk.as_ref().map(|disk| disk.budget_bytes.unwrap_or(u64::MAX));
        let near_flag = match tiers.device.reads_main_memory() {
            true => "--kv-ram-budget",
            false => "--kv-device-budget",
        };
        let beside = if tiers.device.reads_main_memory() {
            tiers.device_budget_bytes
        } else {
            0
        };
        let refusal = match (near_budget, disk_budget) {
            (Some(near), _) if near < least_near_bytes => Some(format!(
                "the nearest tier has {}: use {near_flag} {}{}",
                human_bytes(near),
                typed_bytes(least_near_bytes.saturating_sub(beside)),
                if disk_budget.is_none() {
                    ", or --kv-disk DIR for the oldest pages"
                } else {
                    ""
                },
            )),
            (_, Some(budget)) if disk_bytes > budget => Some(format!(
                "{} of it are for the disk and its budget is {}: use --kv-disk-budget {}",
                human_bytes(disk_bytes),
                human_bytes(budget),
                typed_bytes(disk_bytes),
            )),
            (_, None) if disk_bytes > 0 => {
                Some("RAM holds less of it: use --kv-disk DIR for the oldest pages".to_owned())
            }
            _ => None,
        };
        Self {
            device_bytes,
            ram_bytes: near - device_bytes + apart,
            disk_bytes,
            ram_budget_bytes: tiers.ram_budget_bytes,
            least_near_bytes,
            refusal,
        }
    }
}

/// The tiers of a context, with the outlook and a budget of RAM where pages may go on to a disk but none was given.
fn planned_tiers(options: &EngineOptions, context: usize, scans_keys: bool, room_bytes: u64) -> KvTiers {
    let mut tiers = options.kv_tiers.clone();
    if let Some(gpu) = &options.device {
        // The device stands in front of main memory, which holds every page.
        tiers.device = Arc::new(PinnedMemory::new(gpu));
        tiers.device_budget_bytes = 0;
    }
    if tiers.disk.is_some() && tiers.ram_budget_bytes.is_none() {
        tiers.ram_budget_bytes = Some(room_bytes.saturating_sub(tiers.device_budget_bytes));
    }
    tiers.outlook = Outlook {
        context_tokens: context,
        append_tokens: options.append_tokens().min(context),
        scans_keys,
    };
    tiers
}

/// The tiers of a session under a plan that fits.
pub(crate) fn session_tiers(options: &EngineOptions, plan: &MemoryPlan) -> Result<KvTiers, EngineError> {
    let mut tiers = planned_tiers(options, plan.context_tokens, options.scans_keys()?, 0);
    tiers.ram_budget_bytes = plan.kv_tiers.ram_budget_bytes;
    if !tiers.has_farther() {
        // Nothing but memory: the plan's own pages are the budget.
        tiers.ram_budget_bytes = Some(plan.kv_bytes.saturating_sub(tiers.device_budget_bytes));
    }
    Ok(tiers)
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
}
