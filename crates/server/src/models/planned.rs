//! The memory plan of several models that one server has.

use std::path::PathBuf;

use riffle_engine::{EngineError, EngineOptions, MemoryPlan, available_memory_bytes, plan};
use riffle_model::ModelInfo;

use crate::requests_bytes;
use crate::room::{OneContext, most_contexts};

/// A model that a server may load, before it is planned.
#[derive(Debug, Clone)]
pub struct ModelSource {
    /// The name that requests ask for it by.
    pub name: String,
    /// Its file or folder.
    pub path: PathBuf,
    /// Options of its engine. The context is cut to the length that the model was made for.
    pub options: EngineOptions,
}

/// A model that a server may load, with its place in the memory of all models.
#[derive(Debug, Clone)]
pub struct PlannedModel {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) options: EngineOptions,
    pub(crate) info: ModelInfo,
    pub(crate) plan: MemoryPlan,
}

/// Models that share one amount of memory.
#[derive(Debug, Clone)]
pub struct ModelsPlan {
    pub(crate) models: Vec<PlannedModel>,
    /// Bytes that all loaded models may take together.
    pub(crate) room_bytes: u64,
}

impl PlannedModel {
    /// The name that requests ask for it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The options that its engine will have.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The memory that it takes while it is loaded.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }
}

impl ModelsPlan {
    /// Plans models from their headers: each has a context as long as it would have alone. While all fit in memory together, all get room for as
    /// many whole contexts as that allows, up to `parallel`; otherwise each gets room for one. `memory_bytes` is for everything, `None` takes what
    /// the machine has available now. `bodies_bytes` of it are for the bodies of requests.
    ///
    /// A model that cannot be read or can never fit is left out; `refused` is called with its name and the reason.
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
            // As with one model, requests get what is left where there is room for a single context alone.
            room_bytes: memory_bytes.saturating_sub(beside).max(largest),
        }
    }

    /// The models, in the order in which they were given.
    pub fn models(&self) -> &[PlannedModel] {
        &self.models
    }

    /// Bytes that all loaded models may take together.
    pub fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    /// True if all models may be loaded at a time.
    pub fn fits_all(&self) -> bool {
        let bytes = (0..self.models.len()).map(|index| self.bytes(index));
        bytes.fold(0, u64::saturating_add) <= self.room_bytes
    }

    /// Bytes of the room that a model takes while it is loaded. The memory of a device is not planned for several models: one that a device
    /// computes takes the whole room.
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
