//! The memory plan of a server with several models.

use std::path::PathBuf;

use riffle_engine::{EngineError, EngineOptions, MemoryPlan, available_memory_bytes, plan};
use riffle_model::ModelInfo;

use crate::requests_bytes;
use crate::room::{OneContext, most_contexts};

/// A model for a server, before its plan.
#[derive(Debug, Clone)]
pub struct ModelSource {
    /// The name for requests.
    pub name: String,
    /// File or folder of the model.
    pub path: PathBuf,
    /// Options of the model's engine. The context is limited to the model's own.
    pub options: EngineOptions,
}

/// A model with its share of the memory of all models.
#[derive(Debug, Clone)]
pub struct PlannedModel {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) options: EngineOptions,
    pub(crate) info: ModelInfo,
    pub(crate) plan: MemoryPlan,
}

/// Models within one amount of memory.
#[derive(Debug, Clone)]
pub struct ModelsPlan {
    pub(crate) models: Vec<PlannedModel>,
    /// Maximum number of bytes of all loaded models.
    pub(crate) room_bytes: u64,
}

impl PlannedModel {
    /// The name for requests.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The options of the model's engine.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The memory of the loaded model.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }
}

impl ModelsPlan {
    /// Plans models from their headers, each with the context that it would have alone. If all fit in memory together,
    /// each gets as many whole contexts as fit, up to `parallel`; otherwise each gets one. `memory_bytes` is the total;
    /// `None` means the machine's available memory. `bodies_bytes` of it are for the bodies of requests.
    ///
    /// A model that cannot be read or can never fit is omitted; `refused` receives its name and the reason.
    pub fn new(
        sources: Vec<ModelSource>,
        memory_bytes: Option<u64>,
        parallel: usize,
        bodies_bytes: u64,
        refused: &mut dyn FnMut(&str, EngineError),
    ) -> Self {
        let memory_bytes = memory_bytes.unwrap_or_else(available_memory_bytes);
        let mut alone = Vec::new();
        for source in sources {
            match one_context(&source, memory_bytes, parallel, bodies_bytes) {
                Ok(planned) => alone.push((source, planned)),
                Err(error) => refused(&source.name, error),
            }
        }
        let contexts = most_contexts(&alone.iter().map(|(_, one)| one).collect::<Vec<_>>(), parallel);
        let mut models: Vec<PlannedModel> = Vec::new();
        for (source, one) in alone {
            let options = one.options(contexts);
            let planned = plan(&one.info, &options).and_then(|plan| plan.check().map(|()| plan));
            match planned {
                Ok(plan) => models.push(PlannedModel {
                    name: source.name,
                    path: source.path,
                    options,
                    info: one.info,
                    plan,
                }),
                Err(error) => refused(&source.name, error),
            }
        }
        let beside = |model: &PlannedModel| requests_bytes(&model.plan, bodies_bytes).total_bytes();
        let beside = models.iter().map(beside).max().unwrap_or(0);
        let largest = models.iter().map(|model| model.plan.total_bytes).max().unwrap_or(0);
        Self {
            models,
            // As with one model, requests get the rest if only one context fits.
            room_bytes: memory_bytes.saturating_sub(beside).max(largest),
        }
    }

    /// The models, in the given order.
    pub fn models(&self) -> &[PlannedModel] {
        &self.models
    }

    /// Maximum number of bytes of all loaded models.
    pub fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    /// True if all models fit at a time.
    pub fn fits_all(&self) -> bool {
        let bytes = (0..self.models.len()).map(|index| self.bytes(index));
        bytes.fold(0, u64::saturating_add) <= self.room_bytes
    }

    /// Bytes of a loaded model. Device memory is not planned for several models, so a model on a device takes all of
    /// it.
    pub(crate) fn bytes(&self, index: usize) -> u64 {
        let plan = &self.models[index].plan;
        plan.device.as_ref().map_or(plan.total_bytes, |_| self.room_bytes)
    }
}

fn one_context(
    source: &ModelSource,
    memory_bytes: u64,
    parallel: usize,
    bodies_bytes: u64,
) -> Result<OneContext, EngineError> {
    let options = source.options.clone().with_memory_budget_bytes(Some(memory_bytes));
    let options = match options.model.context_tokens {
        Some(tokens) => {
            let most = options.model.inspect(&source.path)?.config.max_position;
            options.with_context_tokens(Some(tokens.min(most)))
        }
        None => options,
    };
    OneContext::new(&source.path, options, parallel, bodies_bytes)
}
