//! Events, as plain data.

use std::sync::Arc;

/// Storage medium of a block. The wire names are vLLM's.
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

/// The part of a block's state that is held. vLLM calls it a group of the KV cache.
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

    /// Kind of the cache in vLLM's words.
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

/// A change of the blocks that a server holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A block is held.
    Stored {
        /// The block.
        block: Block,
        /// Medium that now holds the block.
        medium: Medium,
        /// The part of the block's state that is held.
        group: Group,
    },
    /// A block is not held there any more.
    Removed {
        /// Its hash.
        hash: u64,
        /// Medium that held the block.
        medium: Medium,
        /// The part of the block's state that was held.
        group: Group,
    },
    /// Nothing is held.
    Cleared,
}
