//! Options of a compression.

use std::fmt;
use std::str::FromStr;

use crate::EngineError;
use crate::compress::RepeatPrompt;
use crate::error::require;

/// Options of a compression.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressOptions {
    /// Share of the KV pairs to keep, above 0 and at most 1.
    pub keep: f64,
    /// Method that scores the pairs.
    pub method: CompressMethod,
    /// Scope within which the best pairs are chosen.
    pub spread: Spread,
    /// First tokens of the text, which every head keeps.
    pub sink_tokens: usize,
    /// Latest tokens of the text, which every head keeps.
    pub recent_tokens: usize,
}

/// Method that scores the KV pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompressMethod {
    /// The model repeats the text, chunk by chunk. A pair's score is the largest attention weight that it receives
    /// from any query of the reconstruction: KVzip, Kim et al. 2025, arXiv:2505.23416. It takes about as long as
    /// reading the text.
    KvZip {
        /// Tokens of the text repeated at a time.
        chunk_tokens: usize,
        /// The request that asks the model to repeat; `None` for the words of [`RepeatPrompt::for_engine`].
        prompt: Option<RepeatPrompt>,
    },
    /// A pair's score is the largest weight that a query of its own chunk of 512 tokens would give it, if the chunk
    /// stood once more after itself. Scores that were made while the text was read
    /// ([`SequenceOptions::score_pairs`](crate::SequenceOptions::score_pairs)) are used. Text without scores is read
    /// again, in parts and without the rest. The name follows EchoPress (arXiv:2610.00412), which has the same aim.
    Echo {
        /// Tokens of the text in a part that is read again.
        part_tokens: usize,
    },
    /// Assumes normally distributed queries, which gives the expected attention of a key in closed form. A pair's
    /// score is this times the norm of its value: Expected Attention, Devoto et al. 2025, arXiv:2510.00636. It takes
    /// as long as reading the sample.
    Expected {
        /// Number of latest tokens whose queries are measured. They are read again, separately.
        sample_tokens: usize,
        /// Number of positions after the text at which later queries are expected.
        future_tokens: usize,
    },
}

/// Scope within which the best pairs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Ranks pairs over all layers and KV heads, so that heads keep different shares.
    Model,
    /// Ranks pairs within each layer; every layer keeps the same share.
    Layer,
    /// Ranks pairs within each KV head; every head keeps the same share.
    Head,
}

impl CompressMethod {
    /// Echo in parts of 4,096 tokens.
    pub const ECHO: Self = Self::Echo { part_tokens: 4096 };

    /// KVzip with the parameters of its paper.
    pub const KVZIP: Self = Self::KvZip {
        chunk_tokens: 2048,
        prompt: None,
    };

    /// Expected Attention with the positions of its paper.
    pub const EXPECTED: Self = Self::Expected {
        sample_tokens: 4096,
        future_tokens: 512,
    };
}

impl CompressOptions {
    /// A method with the parameters of its paper.
    pub fn new(method: CompressMethod, keep: f64) -> Self {
        Self {
            keep,
            spread: match method {
                CompressMethod::KvZip { .. } | CompressMethod::Echo { .. } => Spread::Model,
                CompressMethod::Expected { .. } => Spread::Head,
            },
            method,
            sink_tokens: 4,
            recent_tokens: 32,
        }
    }

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let is_share = self.keep > 0.0 && self.keep <= 1.0;
        let requirement = "it must be a share above 0 and at most 1";
        require(is_share, "keep", self.keep, requirement)?;
        let empty = match self.method {
            CompressMethod::KvZip { chunk_tokens, .. } => chunk_tokens == 0,
            CompressMethod::Echo { part_tokens } => part_tokens == 0,
            CompressMethod::Expected {
                sample_tokens,
                future_tokens,
            } => sample_tokens <= self.sink_tokens || future_tokens == 0,
        };
        let requirement = "it must read at least one token at a time, and more than the sinks";
        require(!empty, "method", &self.method, requirement)
    }
}

/// `METHOD:KEEP`, such as `echo:0.3`.
impl FromStr for CompressOptions {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self, EngineError> {
        let parse = || {
            let (method, keep) = text.split_once(':')?;
            let options = Self::new(method.parse().ok()?, keep.trim().parse().ok()?);
            options.check().ok().map(|()| options)
        };
        parse().ok_or_else(|| {
            let requirement =
                "it must be METHOD:KEEP, echo, kvzip or expected with a share above 0 and at most 1, such as echo:0.3";
            EngineError::option("compress", format!("{text:?}"), requirement)
        })
    }
}

impl fmt::Display for CompressOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.method, self.keep)
    }
}

impl FromStr for CompressMethod {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self, EngineError> {
        match &*text.trim().to_ascii_lowercase() {
            "echo" => Ok(Self::ECHO),
            "kvzip" => Ok(Self::KVZIP),
            "expected" => Ok(Self::EXPECTED),
            _ => {
                let requirement = "it must be echo, kvzip or expected";
                Err(EngineError::option("method", format!("{text:?}"), requirement))
            }
        }
    }
}

impl fmt::Display for CompressMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Echo { .. } => "echo",
            Self::KvZip { .. } => "kvzip",
            Self::Expected { .. } => "expected",
        })
    }
}
