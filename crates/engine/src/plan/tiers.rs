//! Plans the tiers of a context's pages.

use riffle_kv::{CacheShape, KvTiers, Outlook};
use riffle_model::ModelConfig;
use serde::Serialize;

use super::MemoryPlan;
use crate::attention::SlidingLayers;
use crate::options::has_indexers;
use crate::{EngineOptions, StreamWindow};
use riffle_files::human_bytes;

/// Bytes of KV pages by tier, and of pages being loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TierPlan {
    /// Bytes in the device tier.
    pub device_bytes: u64,
    /// Bytes in main memory.
    pub ram_bytes: u64,
    /// Bytes in files.
    pub disk_bytes: u64,
    /// The hard budget of main memory; without a limit, the bytes of the pages.
    pub ram_budget_bytes: Option<u64>,
    /// Fewest bytes that the nearest tier needs.
    pub least_near_bytes: u64,
    /// The budget that is too small.
    pub refusal: Option<String>,
}

impl TierPlan {
    pub(super) fn new(tiers: &KvTiers, shape: &CacheShape, context: usize) -> Self {
        let [near, apart, disk_bytes] = tiers.bytes_for(shape, context);
        let device_bytes = if tiers.device.reads_main_memory() {
            near.min(tiers.device_budget_bytes)
        } else {
            near
        };
        let least_near_bytes = tiers.least_near_bytes(shape);
        let near_budget = if tiers.device.reads_main_memory() {
            tiers
                .ram_budget_bytes
                .map(|ram| ram.saturating_add(tiers.device_budget_bytes))
        } else {
            Some(tiers.device_budget_bytes)
        };
        let disk_budget = tiers.disk.as_ref().map(|disk| disk.budget_bytes.unwrap_or(u64::MAX));
        let refusal = match (near_budget, disk_budget) {
            (Some(near), _) if near < least_near_bytes => Some(format!(
                "the nearest tier has {} and needs {}",
                human_bytes(near),
                human_bytes(least_near_bytes),
            )),
            (_, Some(budget)) if disk_bytes > budget => Some(format!(
                "{} of it are for the disk and its budget is {}",
                human_bytes(disk_bytes),
                human_bytes(budget),
            )),
            (_, None) if disk_bytes > 0 => Some("RAM holds less of it".to_owned()),
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

/// The tiers of a context, with or without indexers that scan keys. Adds the expected use, and a RAM budget if pages
/// may move to a disk and none was given.
pub(super) fn planned_tiers(
    options: &EngineOptions,
    (sliding, has_indexers): (&SlidingLayers, bool),
    context: usize,
    room_bytes: u64,
) -> KvTiers {
    let mut tiers = options.cache.kv_tiers.clone();
    if let Some(device) = &options.machine.device {
        // The device is nearer than main memory, which has every page.
        tiers.device = device.pinned_memory();
        tiers.device_budget_bytes = 0;
    }
    if tiers.disk.is_some() && tiers.ram_budget_bytes.is_none() {
        tiers.ram_budget_bytes = Some(room_bytes.saturating_sub(tiers.device_budget_bytes));
    }
    tiers.outlook = Outlook {
        context_tokens: options.cache.pool_tokens.map_or(context, |tokens| tokens.max(context)),
        append_tokens: options.append_tokens().min(context),
        scans_keys: options.sequence.scans_keys() || has_indexers,
        sequences: options.machine.sequences,
        window_layers: sliding.layers.iter().map(|sliding| sliding.layer).collect(),
        window_tokens: sliding.most_tokens(),
    };
    tiers
}

/// The tiers of a session under a plan that fits.
pub(super) fn session_tiers(config: &ModelConfig, options: &EngineOptions, plan: &MemoryPlan) -> KvTiers {
    let sliding = sliding_layers(config, options, options.sequence.window);
    let mut tiers = planned_tiers(options, (&sliding, has_indexers(config)), plan.context_tokens, 0);
    tiers.ram_budget_bytes = plan.kv_tiers.ram_budget_bytes;
    if !tiers.has_farther() {
        // Only memory: the plan's size is the budget.
        let planned = plan.kv_tiers.device_bytes + plan.kv_tiers.ram_bytes;
        tiers.ram_budget_bytes = Some(planned.saturating_sub(tiers.device_budget_bytes));
    }
    tiers
}

/// The layers that store only a sliding window. Empty if every page is kept: the window of the whole sequence moves
/// all layers, and beginnings stored for other sequences must be complete.
pub(crate) fn sliding_layers(
    config: &ModelConfig,
    options: &EngineOptions,
    window: Option<StreamWindow>,
) -> SlidingLayers {
    let keeps_all = window.is_some() || options.cache.keeps_beginnings;
    let layers = config.cached_layers().filter(|_| !keeps_all).enumerate();
    let windows = layers.filter_map(|(cached, layer)| Some((cached, (*config.windows.get(layer)?)?)));
    SlidingLayers::new(windows, options.cache.page_tokens, options.machine.batch_tokens)
}
