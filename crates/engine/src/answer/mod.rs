//! From logits to text: the answer of one sequence, whoever takes its tokens through the model.

pub(crate) mod constraint;
mod draws;
pub(crate) mod generate;
pub(crate) mod probabilities;
mod repetition;
pub(crate) mod stop;

use riffle_model::StreamDecoder;

use crate::sequence::{LatestDraw, check_logits};
use crate::{
    DraftCount, EngineError, GenerateOptions, Generation, Sequence, StopMatcher, StopReason, TokenProbabilities,
};
use draws::Draws;
pub(crate) use draws::Guess;
use repetition::LoopWatch;

/// Tokens of the text before that a continued answer's text depends on: a character is at most four bytes.
const CONTEXT_TOKENS: usize = 8;

/// An answer under way: draws tokens from the logits of its sequence, decodes them, and looks for what ends it.
pub(crate) struct Answer {
    draws: Draws,
    decoder: StreamDecoder,
    matcher: StopMatcher,
    /// `None` where loops may go on.
    loops: Option<LoopWatch>,
    text: String,
    tokens: Vec<u32>,
}

/// A token that was drawn.
pub(crate) struct Drawn {
    pub(crate) token: u32,
    /// The text that is certain now, often empty.
    pub(crate) text: String,
    /// How likely it was, where that was asked for.
    pub(crate) probabilities: Option<TokenProbabilities>,
    /// Why the answer ends here, if it does; otherwise the token has to be read next.
    pub(crate) stop: Option<StopReason>,
}

impl Answer {
    /// The answer that a sequence goes on with: its draws begin where the latest of the same seed stood.
    pub(crate) fn new(sequence: &Sequence, options: GenerateOptions) -> Result<Self, EngineError> {
        sequence.engine().tokenizer()?;
        Ok(Self {
            matcher: StopMatcher::new(options.stops.iter().cloned()),
            loops: LoopWatch::for_options(&options),
            draws: Draws::new(sequence, options)?,
            decoder: StreamDecoder::default(),
            text: String::new(),
            tokens: Vec::new(),
        })
    }

    /// Primes the decoder with the last tokens of the text, so that the first new token decodes in context.
    pub(crate) fn prime_decoder(&mut self, sequence: &Sequence) -> Result<(), EngineError> {
        let (tokenizer, tokens) = (self.draws.engine.tokenizer()?, sequence.tokens());
        for token in &tokens[tokens.len().saturating_sub(CONTEXT_TOKENS)..] {
            self.decoder.push(tokenizer, *token)?;
        }
        Ok(())
    }

    /// True if it has as many tokens as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.tokens.len() >= self.draws.options.max_tokens
    }

    /// Tokens that it may still have.
    pub(crate) fn tokens_left(&self) -> usize {
        self.draws.options.max_tokens.saturating_sub(self.tokens.len())
    }

    /// Draws as the answer would from here on, and leaves the answer as it is.
    pub(crate) fn guess(&mut self) -> Guess {
        self.draws.guess(self.tokens.len())
    }

    /// Draws the next token from the logits of the sequence.
    pub(crate) fn draw(&mut self, sequence: &mut Sequence) -> Result<Drawn, EngineError> {
        let logits = std::mem::take(&mut sequence.answer_mut().logits);
        let drawn = self.draw_behind(sequence, sequence.tokens().len(), &logits);
        sequence.answer_mut().logits = logits;
        drawn
    }

    /// Draws the token behind the first `tokens` tokens of the sequence from the logits there, `[vocab]`.
    pub(crate) fn draw_behind(
        &mut self,
        sequence: &mut Sequence,
        tokens: usize,
        logits: &[f32],
    ) -> Result<Drawn, EngineError> {
        check_logits(logits, tokens)?;
        let before = &sequence.tokens()[..tokens];
        let token = self.draws.draw(before, self.tokens.len(), logits)?;
        let probabilities = |most| TokenProbabilities::from_logits(logits, token, most);
        let probabilities = self.draws.options.probabilities.map(probabilities);
        self.tokens.push(token);
        sequence.answer_mut().drawn = LatestDraw {
            pending: Some(token),
            sampler: Some(self.draws.sampler.state()),
        };
        if self.draws.ends_text(token) {
            return Ok(Drawn {
                token,
                text: String::new(),
                probabilities,
                stop: Some(StopReason::EndOfText),
            });
        }
        let is_complete = self.draws.accept(token)?;
        let piece = self.decoder.push(self.draws.engine.tokenizer()?, token)?;
        let text = if self.tokens.len() <= self.draws.options.min_tokens {
            piece
        } else {
            self.matcher.push(&piece)
        };
        self.text.push_str(&text);
        let period = self.loops.as_mut().and_then(|loops| loops.push(&self.tokens));
        let period = period.filter(|_| self.tokens.len() > self.draws.options.min_tokens);
        let stop = match self.matcher.matched() {
            Some(stop) => Some(StopReason::StopString(stop.to_owned())),
            None if is_complete => Some(StopReason::EndOfText),
            None if self.is_full() => Some(StopReason::MaxTokens),
            None if period.is_some() => period.map(|period_tokens| StopReason::Loop { period_tokens }),
            None if tokens_left(sequence).saturating_add(sequence.tokens().len() - tokens) == 0 => {
                Some(StopReason::ContextFull)
            }
            None => None,
        };
        Ok(Drawn {
            token,
            text,
            probabilities,
            stop,
        })
    }

    /// Why the answer cannot go on with a token that was drawn before.
    pub(crate) fn end_before(&self, sequence: &Sequence, token: u32) -> Option<StopReason> {
        if self.draws.ends_text(token) {
            Some(StopReason::EndOfText)
        } else if tokens_left(sequence) == 0 {
            Some(StopReason::ContextFull)
        } else {
            None
        }
    }

    /// The text that was held back, at the end of an answer that no stop string ended.
    pub(crate) fn finish(&mut self) -> Result<String, EngineError> {
        if self.matcher.matched().is_some() {
            return Ok(String::new());
        }
        let tail = self.decoder.finish(self.draws.engine.tokenizer()?)?;
        let tail = self.matcher.push(&tail) + &self.matcher.finish();
        self.text.push_str(&tail);
        Ok(tail)
    }

    /// The answer as generated.
    pub(crate) fn end(self, stop: StopReason) -> Generation {
        Generation {
            drafts: DraftCount::default(),
            text: self.text,
            tokens: self.tokens,
            stop,
        }
    }
}

/// Tokens for which the context has room behind a sequence.
pub(crate) fn tokens_left(sequence: &Sequence) -> usize {
    let context = sequence.engine().plan().context_tokens;
    match sequence.options().window {
        Some(_) => usize::MAX,
        None => context.saturating_sub(sequence.tokens().len()),
    }
}
