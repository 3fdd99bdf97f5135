//! Options of one sequence.

use riffle_policy::PolicyRules;

use crate::{EngineOptions, StreamWindow};

/// What a sequence runs under beside the options of its engine.
#[derive(Debug, Clone)]
pub struct SequenceOptions {
    /// Policies that choose what prompt tokens read.
    pub prefill: PolicyRules,
    /// Policies that choose what generated tokens read.
    pub decode: PolicyRules,
    /// Keep sinks and a window alone, of a sequence without end.
    pub window: Option<StreamWindow>,
    /// Compare sampled queries with exact attention ([`Sequence::audit`](crate::Sequence::audit)).
    pub audit: bool,
}

impl SequenceOptions {
    /// The policies and the window of the engine's options.
    pub fn of(options: &EngineOptions) -> Self {
        Self {
            prefill: options.prefill.clone(),
            decode: options.decode.clone(),
            window: options.window,
            audit: options.audit,
        }
    }

    /// Everything beside the tokens and the engine that decides over pages. Sequences of one pool are of one engine.
    pub(crate) fn pages_identity(&self) -> Vec<u8> {
        format!("{:?}", self.prefill).into_bytes()
    }

    /// True if sequences under `other` make the same pages of the same prompt.
    pub(crate) fn makes_the_same_pages(&self, other: &Self) -> bool {
        self.pages_identity() == other.pages_identity()
    }
}
