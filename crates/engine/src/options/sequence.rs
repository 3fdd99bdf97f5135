//! Options of one sequence.

use riffle_model::AdapterScales;
use riffle_policy::{Phase, PolicyRules, PolicySpec};

use crate::error::require;
use crate::{EngineError, StreamWindow};

/// Options of one sequence. An engine has defaults for requests without their own.
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
    /// Policies that select for prompt tokens.
    pub prefill: PolicyRules,
    /// Policies that select for generated tokens.
    pub decode: PolicyRules,
    /// During the prompt, move every KV head to the cheapest policy of `streaming`, `vertical-slash`, `xattention` and
    /// `full` that keeps enough: 99% of the sampled queries keep this share of their mass. It replaces `prefill`.
    pub auto_target: Option<f64>,
    /// Keep only sinks and a window, for an endless sequence: set by
    /// [`EngineOptions::with_window`](crate::EngineOptions::with_window).
    pub window: Option<StreamWindow>,
    /// Factors on the parts of the engine's adapters for this sequence
    /// ([`ModelOptions::adapters`](crate::ModelOptions::adapters)).
    pub adapters: AdapterScales,
    /// Compare sampled queries with exact attention ([`Sequence::audit`](crate::Sequence::audit)).
    pub audit: bool,
    /// Score every pair while a prompt is read, so that [`CompressMethod::Echo`](crate::CompressMethod::Echo) needs no
    /// second reading. Sessions store the scores, 4 bytes for each pair.
    pub score_pairs: bool,
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
            score_pairs: false,
        }
    }
}

impl SequenceOptions {
    /// Checks these options for an engine with chunks of this many tokens.
    pub(super) fn validate(&self, chunk_tokens: usize) -> Result<(), EngineError> {
        if let Some(target) = self.auto_target {
            let is_share = (0.0..=1.0).contains(&target);
            require(is_share, "auto_target", target, "it must be a share from 0 to 1")?;
        }
        let evicts = self.window.is_some() || self.prefill.evicts() || self.decode.evicts();
        let requirement = "the window or a policy evicts tokens, which cannot be compressed: leave one of them out";
        require(!(self.score_pairs && evicts), "score_pairs", true, requirement)?;
        self.prefill.check(Phase::Prefill, chunk_tokens)?;
        self.decode.check(Phase::Decode, chunk_tokens)?;
        Ok(())
    }

    /// True if a policy scans the keys of the whole sequence.
    pub(crate) fn scans_keys(&self) -> bool {
        // Automatic choice may move heads to policies that scan keys.
        self.auto_target.is_some() || self.prefill.scans_keys() || self.decode.scans_keys()
    }

    /// The options that affect pages, in addition to tokens and engine, as bytes. Sequences of one pool belong to one
    /// engine.
    pub(crate) fn pages_identity(&self) -> Vec<u8> {
        format!("{:?} {:?} {}", self.prefill, self.auto_target, self.adapters).into_bytes()
    }

    /// True if sequences under `other` compute the same pages for the same prompt.
    pub(crate) fn makes_the_same_pages(&self, other: &Self) -> bool {
        self.pages_identity() == other.pages_identity()
    }
}
