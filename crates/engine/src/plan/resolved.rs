//! Shapes and budgets derived from options and one model, computed once per engine.

use riffle_device::RoomOptions;
use riffle_kv::{CacheShape, KvError, KvTiers};
use riffle_model::ModelConfig;
use riffle_policy::PolicyShape;

use super::tiers::session_tiers;
use super::{MemoryPlan, cache_shape, policy_shapes, room_options};
use crate::EngineOptions;
use crate::attention::Rotation;

/// Shapes, tiers and budgets for everything that runs on an engine.
pub(crate) struct Resolved {
    /// Shape of the caches of all sequences.
    pub(crate) cache: CacheShape,
    /// The shapes for policies.
    pub(crate) policy: Vec<PolicyShape>,
    /// The tiers for pages, with their budgets.
    pub(crate) tiers: KvTiers,
    /// The planes that store rotated heads.
    pub(crate) rotation: Rotation,
    /// The options of the device page cache, with a device.
    pub(crate) room: Option<RoomOptions>,
}

impl Resolved {
    /// The shapes and budgets of a plan that fits.
    pub(crate) fn new(config: &ModelConfig, options: &EngineOptions, plan: &MemoryPlan) -> Result<Self, KvError> {
        let cache = cache_shape(config, options)?;
        let room = plan.device.as_ref().map(|device| {
            let context = plan.context_tokens;
            room_options((config, cache), options, context, device.kv_budget_bytes)
        });
        Ok(Self {
            cache,
            policy: policy_shapes(config, options),
            tiers: session_tiers(config, options, plan),
            rotation: options.cache.rotation(),
            room,
        })
    }

    /// Bytes of the pages of `tokens` tokens of one sequence.
    pub(crate) fn pages_bytes(&self, tokens: usize) -> u64 {
        let mut tiers = self.tiers.clone();
        tiers.outlook.sequences = 1;
        tiers.pages_bytes(&self.cache, tokens)
    }
}
