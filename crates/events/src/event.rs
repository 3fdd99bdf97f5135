//! Events, as plain data.

use std::sync::Arc;

/// Storage medium of a block. The wire names are vLLM's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Medium {
    /// The memory that attention reads in place: the GPU's, or main memory if the CPU computes.
    Gpu,
    /// Separate main memory.
    Cpu,
    /// Files on disk.
    Disk,
}

impl Medium {
    /// Name of the medium on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
            Self::Disk => "DISK",
        }
    }
}

/// The held part of a block's state. vLLM calls it a group of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Keys and values of the attention layers.
    Attention,
    /// The state of recurrent layers at the block's end.
    RecurrentState,
}

impl Group {
    /// Number of the group on the wire.
    pub fn index(self) -> u32 {
        self as u32
    }

    /// Kind of the cache in vLLM's words.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Attention => "full_attention",
            Self::RecurrentState => "mamba",
        }
    }
}

/// A page of tokens after its parent block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Hash of all tokens up to the block's end.
    pub hash: u64,
    /// Hash of the parent block; `None` for the first of a text.
    pub parent: Option<u64>,
    /// Tokens of the block.
    pub tokens: Arc<[u32]>,
}

/// A change of the blocks that a server holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A block is held.
    Stored {
        /// The block.
        block: Block,
        /// Medium of the block now.
        medium: Medium,
        /// The held part of the block's state.
        group: Group,
    },
    /// A block is no longer held there.
    Removed {
        /// Hash of the block.
        hash: u64,
        /// Former medium of the block.
        medium: Medium,
        /// The part of the block's state that was held.
        group: Group,
    },
    /// Nothing is held.
    Cleared,
}
