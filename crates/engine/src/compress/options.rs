//! Options of a compression.

use std::fmt;
use std::str::FromStr;

use crate::EngineError;
use crate::compress::RepeatPrompt;
use crate::error::require;

/// How a cache is compressed.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressOptions {
    /// Share of the pairs of keys and values that is kept, above 0 and at most 1.
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

/// Method that scores the pairs of keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompressMethod {
    /// The model repeats the text, chunk by chunk; a pair's score is the largest attention weight that it receives from any query
    /// of the reconstruction: KVzip, Kim et al. 2025, arXiv:2505.23416. It takes about as long as reading the text did.
    KvZip {
        /// Tokens of the text that are repeated at a time.
        chunk_tokens: usize,
        /// The request that asks the model to repeat; `None` for the words of [`RepeatPrompt::for_engine`].
        prompt: Option<RepeatPrompt>,
    },
    /// Queries are taken to be normally distributed, which gives the attention that a key can expect in closed form; a pair's score
    /// is this times the norm of its value: Expected Attention, Devoto et al. 2025, arXiv:2510.00636. It takes as long as reading
    /// the sample.
    Expected {
        /// Latest tokens of the text whose queries are measured. They are read again by themselves.
        sample_tokens: usize,
        /// Positions behind the text over which later queries are expected.
        future_tokens: usize,
    },
}

/// Scope within which the best pairs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// The pairs of all layers and KV heads: each head keeps what it needs.
    Model,
    /// The pairs of a layer: all layers keep as much.
    Layer,
    /// The pairs of a KV head: all heads keep as much.
    Head,
}

impl CompressMethod {
    /// KVzip with the parameters of its paper.
    pub const KVZIP: Self = Self::KvZip {
        chunk_tokens: 2048,
        prompt: None,
    };

    /// Expected Attention over the positions of its paper.
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
                CompressMethod::KvZip { .. } => Spread::Model,
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
            CompressMethod::Expected {
                sample_tokens,
                future_tokens,
            } => sample_tokens <= self.sink_tokens || future_tokens == 0,
        };
        let requirement = "it must read at least one token at a time, and more than the sinks";
        require(!empty, "method", &self.method, requirement)
    }
}

/// `METHOD:KEEP`, such as `kvzip:0.3`.
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
                "it must be METHOD:KEEP, kvzip or expected with a share above 0 and at most 1, such as kvzip:0.3";
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
            "kvzip" => Ok(Self::KVZIP),
            "expected" => Ok(Self::EXPECTED),
            _ => {
                let requirement = "it must be kvzip or expected";
                Err(EngineError::option("method", format!("{text:?}"), requirement))
            }
        }
    }
}

impl fmt::Display for CompressMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KvZip { .. } => "kvzip",
            Self::Expected { .. } => "expected",
        })
    }
}
