//! Requests to a scheduler, and the events that it tells.

use std::path::PathBuf;

use crate::scheduler::LoanedSequence;
use crate::{
    Compressed, Engine, EngineError, GenerateOptions, Generation, PrefillProgress, Sequence, SequenceOptions,
    TokenProbabilities,
};

/// A prompt and how to answer it.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// The length, draws and ends of the answer.
    pub generate: GenerateOptions,
    /// Requests of a higher number are admitted before others, and take the places of running ones of a lower number.
    pub priority: i32,
    /// Policies and window, where they are not those of the engine.
    pub sequence: Option<SequenceOptions>,
    /// A session file whose sequence is [held](crate::Scheduler::hold): the prompt goes on from it, compressed or not, and begins with its text.
    pub session: Option<PathBuf>,
    /// Tell how likely each token of the prompt was, with so many of the likeliest tokens in its place. The whole prompt is read
    /// then, whatever others have read of it.
    pub prompt_probabilities: Option<usize>,
}

/// A request's number, ascending in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The events of requests.
#[derive(Debug)]
pub enum Event<'a> {
    /// A prompt is read: how far it is, and how many of its tokens had been read before.
    Reading(RequestId, PrefillProgress, usize),
    /// How likely the next tokens of a prompt were, in their order, from its second token on.
    PromptProbabilities(RequestId, Vec<TokenProbabilities>),
    /// A token was drawn.
    Token(RequestId, WrittenToken<'a>),
    /// The answer is complete; what was read stays for others. The sequence holds the prompt and the answer.
    Finished(RequestId, RequestReport, &'a mut Sequence),
    /// The answer or the compression cannot go on; what was read of a prompt stays for others.
    Failed(RequestId, EngineError),
    /// A sequence is compressed.
    Compressed(RequestId, Compressed, Box<LoanedSequence>),
    /// The prefix cache on disk could not be read or written and is not used any more. Requests go on without it.
    PrefixCacheLost(EngineError),
    /// A line of the shared store for whoever runs the process: that it failed, that it works again. Requests go on
    /// without it meanwhile.
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
    /// How likely it was, where [`GenerateOptions::probabilities`] asks.
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
    /// How many of them had been read before, by others or by another process.
    pub reused_tokens: usize,
    /// Tokens that were read again because the text grew beyond the length at which the model turns heads otherwise (LongRoPE).
    pub turned_tokens: usize,
    /// Its time, by part.
    pub times: RequestTimes,
}

/// The time of a request, by part.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct RequestTimes {
    /// Seconds from its submission until it had a place.
    pub waited_s: f64,
    /// Seconds from then until its first token.
    pub read_s: f64,
    /// Seconds from then until its end, parked ones included.
    pub answered_s: f64,
}

impl Request {
    pub(super) fn sequence_options(&self, engine: &Engine) -> SequenceOptions {
        self.sequence
            .clone()
            .unwrap_or_else(|| engine.options().sequence.clone())
    }

    /// Tokens that its sequence holds at most. The last token of an answer is not read.
    pub(super) fn most_tokens(&self) -> usize {
        let answer = self.generate.max_tokens.saturating_sub(1);
        self.tokens.len().saturating_add(answer)
    }

    /// Refuses what can never be answered.
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
