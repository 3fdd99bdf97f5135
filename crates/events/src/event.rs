//! Events, as plain data.

use std::sync::Arc;

/// Where a block lies. The wire names are vLLM's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Medium {
    /// In the memory that attention reads in place: that of the GPU, or main memory where the CPU computes.
    Gpu,
    /// In main memory apart from it.
    Cpu,
    /// In files.
    Disk,
}

impl Medium {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
            Self::Disk => "DISK",
        }
    }
}

/// What is held of a block. vLLM calls it a group of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Keys and values of the attention layers.
    Attention,
    /// The state of recurrent layers at the block's end.
    RecurrentState,
}

impl Group {
    /// Its number on the wire.
    pub fn index(self) -> u32 {
        self as u32
    }

    /// What vLLM calls caches of its kind.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Attention => "full_attention",
            Self::RecurrentState => "mamba",
        }
    }
}

/// A page of tokens after the block before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Hash of all tokens up to its end.
    pub hash: u64,
    /// Hash of the block before it; `None` for the first of a text.
    pub parent: Option<u64>,
    /// Its tokens.
    pub tokens: Arc<[u32]>,
}

/// What has changed of the blocks that a server holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A block is held.
    Stored {
        /// The block.
        block: Block,
        /// Where it lies.
        medium: Medium,
        /// What is held of it.
        group: Group,
    },
    /// A block is not held there any more.
    Removed {
        /// Its hash.
        hash: u64,
        /// Where it lay.
        medium: Medium,
        /// What was held of it.
        group: Group,
    },
    /// Nothing is held.
    Cleared,
}
