//! Experts in the model's files, which are loaded as tokens choose them.
//!
//! ```text
//! form      the tensors of a layer's experts whose bytes the kernels take as the file holds them
//! budget    bytes in memory become slots of one expert each
//! usage     the order in which experts leave their slots
//! cache     the slots and their experts; loaders fill them from the files
//! ```

mod budget;
mod cache;
mod form;
mod loader;
mod rate;
mod slots;
mod statistics;
mod usage;

use std::sync::Arc;

pub use budget::{ExpertClass, expert_cache_bytes, expert_slots, least_expert_cache_bytes};
pub use cache::{ExpertBudget, ExpertCache};
pub(crate) use cache::{Held, Urgency};
pub(crate) use form::{ExpertForm, expert_classes, expert_forms, names_experts};
pub(crate) use rate::read_rate;
pub use statistics::ExpertStatistics;

/// The experts of a layer in the model's files.
pub struct StreamedExperts {
    pub(super) cache: Arc<ExpertCache>,
    /// Number of the layer among the streamed layers.
    pub(super) layer: usize,
    /// Experts of the layer.
    pub(super) count: usize,
    /// Inner width of an expert.
    pub(super) width: usize,
    pub(super) is_gated: bool,
    /// `[expert][gate, up, down]`: biases are always in memory.
    pub(super) biases: Vec<[Option<Box<[f32]>>; 3]>,
}

impl StreamedExperts {
    /// Bytes that are always in memory.
    pub(super) fn bytes(&self) -> u64 {
        let biases = self.biases.iter().flatten().flatten();
        biases.map(|bias| 4 * bias.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests;
