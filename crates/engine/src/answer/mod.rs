//! From logits to text: the answer of one sequence, independent of the code that runs the model.

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

/// Number of earlier tokens that can affect a continued answer's text: a character has at most four bytes.
const CONTEXT_TOKENS: usize = 8;

/// An unfinished answer: draws tokens from its sequence's logits, decodes them, and checks for its end.
pub(crate) struct Answer {
    draws: Draws,
    decoder: StreamDecoder,
    matcher: StopMatcher,
    /// `None` if loops are allowed.
    loops: Option<LoopWatch>,
    text: String,
    tokens: Vec<u32>,
}

/// A drawn token.
pub(crate) struct Drawn {
    pub(crate) token: u32,
    /// The text that is certain now, often empty.
    pub(crate) text: String,
    /// Probability of the token, if requested.
    pub(crate) probabilities: Option<TokenProbabilities>,
    /// The reason the answer ends here, if it does; otherwise the token must be read next.
    pub(crate) stop: Option<StopReason>,
}

impl Answer {
    /// The next answer of a sequence: its draws continue after the latest draws with the same seed.
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

    /// True if the answer has the most tokens allowed.
    pub(crate) fn is_full(&self) -> bool {
        self.tokens.len() >= self.draws.options.max_tokens
    }

    /// Number of tokens that the answer may still get.
    pub(crate) fn tokens_left(&self) -> usize {
        self.draws.options.max_tokens.saturating_sub(self.tokens.len())
    }

    /// Draws the next tokens as the answer would, without changing the answer.
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

    /// Draws the token after the first `tokens` tokens of the sequence from the logits there, `[vocab]`.
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

    /// The reason the answer cannot continue with a token drawn earlier.
    pub(crate) fn end_before(&self, sequence: &Sequence, token: u32) -> Option<StopReason> {
        if self.draws.ends_text(token) {
            Some(StopReason::EndOfText)
        } else if tokens_left(sequence) == 0 {
            Some(StopReason::ContextFull)
        } else {
            None
        }
    }

    /// The held-back text, at the end of an answer without a stop string.
    pub(crate) fn finish(&mut self) -> Result<String, EngineError> {
        if self.matcher.matched().is_some() {
            return Ok(String::new());
        }
        let tail = self.decoder.finish(self.draws.engine.tokenizer()?)?;
        let tail = self.matcher.push(&tail) + &self.matcher.finish();
        self.text.push_str(&tail);
        Ok(tail)
    }

    /// The finished answer.
    pub(crate) fn end(self, stop: StopReason) -> Generation {
        Generation {
            drafts: DraftCount::default(),
            text: self.text,
            tokens: self.tokens,
            stop,
        }
    }
}

/// Number of tokens that still fit the context after a sequence.
pub(crate) fn tokens_left(sequence: &Sequence) -> usize {
    let context = sequence.engine().plan().context_tokens;
    match sequence.options().window {
        Some(_) => usize::MAX,
        None => context.saturating_sub(sequence.tokens().len()),
    }
}
