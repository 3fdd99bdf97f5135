//! Setters of [`EngineOptions`]: one for each option, so that a caller need not know its part.

use std::path::PathBuf;
use std::sync::Arc;

use riffle_attention::Format;
use riffle_device::ComputeDevice;
use riffle_kv::KvTiers;
use riffle_model::{Activations, AdapterScales, AdapterSpec, Family, RopeScaling};
use riffle_policy::{CostModel, PolicyRules};

use super::{EngineOptions, PromptText, TokenSelection};
use crate::AttentionPrecision;

macro_rules! setters {
    ($($part:ident of $options:ident { $($setter:ident sets $field:ident: $value:ty,)+ })+) => {
        impl EngineOptions {
            $($(
                #[doc = concat!("Sets [`", stringify!($options), "::", stringify!($field), "`](crate::", stringify!($options), "::", stringify!($field), ").")]
                pub fn $setter(mut self, $field: $value) -> Self {
                    self.$part.$field = $field;
                    self
                }
            )+)+
        }
    };
}

impl EngineOptions {
    /// Adds adapters (LoRA) beside the weights. Their strengths apply to sequences without their own scales.
    pub fn with_adapters(mut self, adapters: Vec<AdapterSpec>) -> Self {
        let scales: Vec<f32> = adapters.iter().map(|adapter| adapter.scale).collect();
        self.sequence.adapters = AdapterScales::new(&scales);
        self.model.adapters = adapters;
        self
    }
}

setters! {
    machine of MachineOptions {
        with_device sets device: Option<Arc<dyn ComputeDevice>>,
        with_preferred_device sets preferred_device: Option<Arc<dyn ComputeDevice>>,
        with_memory_budget_bytes sets memory_budget_bytes: Option<u64>,
        with_weights_budget_bytes sets weights_budget_bytes: Option<u64>,
        with_sequences sets sequences: usize,
        with_batch_tokens sets batch_tokens: usize,
        with_batch_grows sets batch_grows: bool,
        with_chunk_tokens sets chunk_tokens: usize,
        with_cost sets cost: CostModel,
        with_prompt sets prompt: Option<PromptText>,
    }
    model of ModelOptions {
        with_families sets families: &'static [Family],
        with_context_tokens sets context_tokens: Option<usize>,
        with_rope_scaling sets rope_scaling: Option<RopeScaling>,
        with_activations sets activations: Activations,
        with_attention sets attention: AttentionPrecision,
        with_token_selection sets token_selection: Option<TokenSelection>,
        with_draft_model sets draft_model: Option<PathBuf>,
        with_draft_predictor sets draft_predictor: bool,
    }
    cache of CacheOptions {
        with_page_tokens sets page_tokens: usize,
        with_key_format sets key_format: Format,
        with_value_format sets value_format: Format,
        with_rotate sets rotate: Option<bool>,
        with_kv_tiers sets kv_tiers: KvTiers,
        with_pool_tokens sets pool_tokens: Option<usize>,
        with_keeps_beginnings sets keeps_beginnings: bool,
    }
    sequence of SequenceOptions {
        with_prefill sets prefill: PolicyRules,
        with_decode sets decode: PolicyRules,
        with_auto_target sets auto_target: Option<f64>,
        with_audit sets audit: bool,
        with_score_pairs sets score_pairs: bool,
    }
}
