//! Device memory that a run needs.

use riffle_device::{ComputeDevice, RoomOptions};
use riffle_model::ModelConfig;
use riffle_policy::PolicySpec;
use serde::Serialize;

use riffle_kv::CacheShape;

use super::{cache_shape, policy_shapes};
use crate::parse::typed_bytes;
use crate::{EngineError, EngineOptions};
use riffle_files::human_bytes;

/// Bytes of a device's memory that a run needs, part by part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DevicePlan {
    /// The device's name.
    pub name: String,
    /// Source of the products of 16-bit weights with many rows: a library, or this program's kernels and the reason.
    pub products: String,
    /// The matrix instructions of prefill, and the reason for them.
    pub prefill: String,
    /// Bytes of weights.
    pub weights_bytes: u64,
    /// Bytes of hidden states, of scratch and of attention's rows for one logical batch.
    pub scratch_bytes: u64,
    /// Bytes of KV pages on the device for a full context, including pages being loaded. All pages are in main memory
    /// too.
    pub kv_bytes: u64,
    /// The hard budget of KV pages.
    pub kv_budget_bytes: u64,
    /// Fewest bytes of KV pages that are needed.
    pub least_kv_bytes: u64,
    /// Sum of the parts.
    pub total_bytes: u64,
    /// Bytes of device memory that are free.
    pub available_bytes: u64,
}

impl DevicePlan {
    pub(super) fn new(
        device: &dyn ComputeDevice,
        config: &ModelConfig,
        options: &EngineOptions,
        context: usize,
        has_weights: bool,
    ) -> Result<Self, EngineError> {
        let batch = options.machine.batch_tokens.min(context);
        let room = room_options((config, cache_shape(config, options)?), options, context, 0);
        // Norms and biases are f32 on the device, in any file format.
        let vectors = 64 * (config.hidden_size + config.intermediate_size) * (config.layers + 1);
        let weights_bytes = config.weight_bytes.saturating_add(vectors as u64);
        let scratch_bytes = device.forward_bytes(config, batch).saturating_add(device.call_bytes(
            &room,
            options.machine.chunk_tokens.min(batch),
            options.append_tokens().min(batch),
            context,
        ));
        let available_bytes = device.free_bytes()? + if has_weights { weights_bytes } else { 0 };
        let left = available_bytes.saturating_sub(weights_bytes.saturating_add(scratch_bytes));
        // A part is left to the driver: compiled kernels, and gaps between allocations.
        let left = left - left / 32;
        let whole = device.room_bytes_for(&room, context);
        let kv_budget_bytes = match options.cache.kv_tiers.device_budget_bytes {
            0 => left.min(whole),
            budget => budget.min(whole),
        };
        Ok(Self {
            name: device.name().to_owned(),
            products: device.products(),
            prefill: device
                .prefill_instructions(config.head_dim, [options.cache.key_format, options.cache.value_format])?,
            weights_bytes,
            scratch_bytes,
            kv_bytes: kv_budget_bytes,
            kv_budget_bytes,
            least_kv_bytes: device.least_room_bytes(&room),
            total_bytes: weights_bytes
                .saturating_add(scratch_bytes)
                .saturating_add(kv_budget_bytes),
            available_bytes,
        })
    }

    /// True if the parts fit in the free memory.
    pub fn fits(&self) -> bool {
        self.total_bytes <= self.available_bytes && self.kv_budget_bytes >= self.least_kv_bytes
    }

    pub(super) fn refusal(&self) -> EngineError {
        let beside = self.weights_bytes.saturating_add(self.scratch_bytes);
        let advice = match self.available_bytes.checked_sub(beside) {
            Some(left) if left >= self.least_kv_bytes => {
                let range = (typed_bytes(self.least_kv_bytes), typed_bytes(left));
                format!(
                    "use `device_budget_bytes` from {} to {}, or `device=cpu`",
                    range.0, range.1
                )
            }
            _ => "use a smaller `batch_tokens`, a smaller `slots`, a smaller model, or `device=cpu`".to_owned(),
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

/// The options of the device page cache that all sequences share.
pub(super) fn room_options(
    (config, shape): (&ModelConfig, CacheShape),
    options: &EngineOptions,
    context: usize,
    budget_bytes: u64,
) -> RoomOptions {
    // This is enough for the queries of a chunk and some rows of weights. Longer estimates are computed in pieces.
    const ESTIMATE_BYTES: u64 = 64 << 20;
    let policy_shapes = policy_shapes(config, options);
    RoomOptions {
        shape,
        heads: config.heads,
        budget_bytes,
        slots: options.cache.kv_tiers.slots,
        estimate_bytes: if options.sequence.prefill.specs().any(PolicySpec::has_estimate) {
            ESTIMATE_BYTES
        } else {
            0
        },
        bound_bytes: if options.sequence.decode.specs().any(PolicySpec::has_bounds) {
            // The last block may have only one token.
            options.sequence.decode.stored_bytes(&policy_shapes, context + 1024)
        } else {
            0
        },
        mean_bytes: {
            let specs = options.sequence.prefill.specs().chain(options.sequence.decode.specs());
            let blocks = specs.filter_map(PolicySpec::summary_tokens);
            let most = blocks.map(|block| (context + 1).div_ceil(block)).max().unwrap_or(0);
            (8 * config.head_dim * config.kv_heads * config.attention_layers()) as u64 * most as u64
        },
    }
}
