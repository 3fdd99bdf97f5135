//! Options of the machine.

use std::sync::Arc;

use riffle_device::ComputeDevice;
use riffle_policy::CostModel;

use super::PromptText;
use crate::EngineError;
use crate::error::require;

/// Options of the machine: the device, the memory, and the number of tokens and sequences processed at a time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MachineOptions {
    /// The device that computes; `None` means the CPU. With a device, pages are also kept in main memory, and
    /// [`KvTiers::device_budget_bytes`](riffle_kv::KvTiers::device_budget_bytes) limits their copies on the device; 0
    /// means its free memory.
    pub device: Option<Arc<dyn ComputeDevice>>,
    /// A device to use instead of the CPU if it supports the model under these options.
    pub preferred_device: Option<Arc<dyn ComputeDevice>>,
    /// Total bytes for the run; `None` uses the machine's available memory.
    pub memory_budget_bytes: Option<u64>,
    /// Bytes of [`Self::memory_budget_bytes`] for weights, for models with experts on the CPU: experts beyond them
    /// stay in the model's files and are loaded on demand. `None` loads all weights if they fit; otherwise experts
    /// get the memory that pages leave.
    pub weights_budget_bytes: Option<u64>,
    /// Maximum number of sequences alive at a time: forks of a session, or requests of a
    /// [`Scheduler`](crate::Scheduler). The plan reserves the memory that each needs.
    pub sequences: usize,
    /// Logical batch: tokens that pass one layer before the next layer starts.
    pub batch_tokens: usize,
    /// True if the logical batch may be longer than [`Self::batch_tokens`] when experts stay in the files and memory
    /// allows it: a prompt reads each of them once per batch.
    pub batch_grows: bool,
    /// Chunk: tokens whose attention is computed together inside a layer.
    pub chunk_tokens: usize,
    /// Costs of attention and of estimates on this machine, for the guards of short prompts.
    pub cost: CostModel,
    /// The text to read, for its memory in the plan; `None` plans for a text that fills the context.
    pub prompt: Option<PromptText>,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self {
            device: None,
            preferred_device: None,
            memory_budget_bytes: None,
            weights_budget_bytes: None,
            sequences: 1,
            batch_tokens: 4096,
            batch_grows: false,
            chunk_tokens: 512,
            cost: CostModel::default(),
            prompt: None,
        }
    }
}

impl MachineOptions {
    /// Checks these options by themselves.
    pub(super) fn validate(&self) -> Result<(), EngineError> {
        let (batch, chunk) = (self.batch_tokens, self.chunk_tokens);
        require(batch > 0, "batch_tokens", 0, "it must be at least 1 token")?;
        require(chunk > 0, "chunk_tokens", 0, "it must be at least 1 token")?;
        let requirement = format!("a chunk cannot be larger than the logical batch (`batch_tokens={batch}`)");
        require(chunk <= batch, "chunk_tokens", chunk, requirement)?;
        require(self.sequences > 0, "sequences", 0, "it must be at least 1 sequence")
    }
}
