//! Requests to a scheduler, and its events.

use std::path::PathBuf;

use crate::scheduler::LoanedSequence;
use crate::{
    Compressed, Engine, EngineError, GenerateOptions, Generation, PrefillProgress, Sequence, SequenceOptions,
    TokenProbabilities,
};

/// A prompt and options for the answer.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// The length, draws and ends of the answer.
    pub generate: GenerateOptions,
    /// Requests with a higher number are admitted first, and take the places of running ones with a lower number.
    pub priority: i32,
    /// Policies and window, if they differ from the engine's.
    pub sequence: Option<SequenceOptions>,
    /// A session file whose sequence is [held](crate::Scheduler::hold): the prompt continues it, compressed or not,
    /// and must begin with its text.
    pub session: Option<PathBuf>,
    /// Report the probability of each prompt token, with this many of the likeliest alternatives. The complete prompt
    /// is then read, even if others have read it.
    pub prompt_probabilities: Option<usize>,
}

/// A request's number, ascending in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The events of requests.
#[derive(Debug)]
pub enum Event<'a> {
    /// A prompt is being read: its progress, and the number of its tokens that were already available.
    Reading(RequestId, PrefillProgress, usize),
    /// Probabilities of the next tokens of a prompt, in order, from its second token on.
    PromptProbabilities(RequestId, Vec<TokenProbabilities>),
    /// A token was drawn.
    Token(RequestId, WrittenToken<'a>),
    /// The answer is complete; its pages stay for others. The sequence holds the prompt and the answer.
    Finished(RequestId, RequestReport, &'a mut Sequence),
    /// The answer or the compression cannot continue; the pages of a prompt stay for others.
    Failed(RequestId, EngineError),
    /// A sequence is compressed.
    Compressed(RequestId, Compressed, Box<LoanedSequence>),
    /// The prefix cache on disk failed and is no longer used. Requests continue without it.
    PrefixCacheLost(EngineError),
    /// A line from the shared store for the operator: that it failed, that it works again. Requests continue without
    /// it meanwhile.
    SharedStore(String),
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WrittenToken<'a> {
    /// The token.
    pub token: u32,
    /// The text that is certain now, often empty.
    pub text: &'a str,
    /// Probability of the token, if [`GenerateOptions::probabilities`] is set.
    pub probabilities: Option<TokenProbabilities>,
}

/// A finished request.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RequestReport {
    /// The generated answer.
    pub generation: Generation,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of these that were already available from other requests or processes.
    pub reused_tokens: usize,
    /// Tokens read again because the text grew beyond the length at which the model's rotation changes (LongRoPE).
    pub turned_tokens: usize,
    /// Time of the request, by part.
    pub times: RequestTimes,
}

/// The time of a request, by part.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct RequestTimes {
    /// Seconds from submission to admission.
    pub waited_s: f64,
    /// Seconds from admission to the first token.
    pub read_s: f64,
    /// Seconds from the first token to the end, including parked time.
    pub answered_s: f64,
}

impl Request {
    pub(super) fn sequence_options(&self, engine: &Engine) -> SequenceOptions {
        self.sequence
            .clone()
            .unwrap_or_else(|| engine.options().sequence.clone())
    }

    /// Maximum number of tokens of the request's sequence. The last token of an answer is not read.
    pub(super) fn most_tokens(&self) -> usize {
        let answer = self.generate.max_tokens.saturating_sub(1);
        self.tokens.len().saturating_add(answer)
    }

    /// Refuses requests that can never be answered.
    pub(super) fn check(&self, engine: &Engine) -> Result<(), EngineError> {
        if self.tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let options = self.sequence_options(engine);
        let Some(window) = options.window else {
            return engine.check_context("the prompt and the answer", self.most_tokens());
        };
        let (config, engine_options) = (engine.model().config(), engine.options());
        let most = window.whole_tokens(engine_options.cache.page_tokens) + engine_options.machine.chunk_tokens;
        if most <= engine.plan().context_tokens.min(config.max_position) {
            Ok(())
        } else {
            Err(engine.context_exceeded("the window", most))
        }
    }
}
