//! Options of one sequence.

use riffle_model::AdapterScales;
use riffle_policy::{Phase, PolicyRules, PolicySpec};

use crate::error::require;
use crate::{EngineError, StreamWindow};

/// Options of one sequence. An engine holds those of requests that give none of their own.
///
/// ```
/// use riffle_engine::{EngineOptions, SequenceOptions};
///
/// let engine = EngineOptions::default().with_decode("quest".parse()?);
/// let request = SequenceOptions { audit: true, ..engine.sequence.clone() };
/// assert_eq!(request.decode, engine.sequence.decode);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct SequenceOptions {
    /// Policies that choose the tokens that prompt tokens read.
    pub prefill: PolicyRules,
    /// Policies that choose the tokens that generated tokens read.
    pub decode: PolicyRules,
    /// Move every KV head, while the prompt is read, to the cheapest of `streaming`, `vertical-slash`, `xattention` and
    /// `full` with which all but one in a hundred sampled queries keep this share of their mass; in place of `prefill`.
    pub auto_target: Option<f64>,
    /// Keep sinks and a window alone, of a sequence without end: set by [`EngineOptions::with_window`](crate::EngineOptions::with_window).
    pub window: Option<StreamWindow>,
    /// Factors on what the adapters of the engine add to this sequence ([`ModelOptions::adapters`](crate::ModelOptions::adapters)).
    pub adapters: AdapterScales,
    /// Compare sampled queries with exact attention ([`Sequence::audit`](crate::Sequence::audit)).
    pub audit: bool,
}

impl Default for SequenceOptions {
    fn default() -> Self {
        Self {
            prefill: PolicySpec::full().into(),
            decode: PolicySpec::full().into(),
            auto_target: None,
            window: None,
            adapters: AdapterScales::default(),
            audit: false,
        }
    }
}

impl SequenceOptions {
    /// Checks these options for an engine whose chunks have this many tokens.
    pub(super) fn validate(&self, chunk_tokens: usize) -> Result<(), EngineError> {
        if let Some(target) = self.auto_target {
            let is_share = (0.0..=1.0).contains(&target);
            require(is_share, "auto_target", target, "it must be a share from 0 to 1")?;
        }
        self.prefill.check(Phase::Prefill, chunk_tokens)?;
        self.decode.check(Phase::Decode, chunk_tokens)?;
        Ok(())
    }

    /// True if a policy looks through the keys of the whole sequence.
    pub(crate) fn scans_keys(&self) -> bool {
        // Policies that a head may be moved to scan keys.
        self.auto_target.is_some() || self.prefill.scans_keys() || self.decode.scans_keys()
    }

    /// The options that decide over pages beside the tokens and the engine, as bytes. Sequences of one pool are of one engine.
    pub(crate) fn pages_identity(&self) -> Vec<u8> {
        format!("{:?} {:?} {}", self.prefill, self.auto_target, self.adapters).into_bytes()
    }

    /// True if sequences under `other` make the same pages of the same prompt.
    pub(crate) fn makes_the_same_pages(&self, other: &Self) -> bool {
        self.pages_identity() == other.pages_identity()
    }
}
