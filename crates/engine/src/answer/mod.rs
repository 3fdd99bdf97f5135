//! From logits to text: the answer of one sequence, whoever takes its tokens through the model.

pub(crate) mod constraint;
pub(crate) mod generate;
pub(crate) mod probabilities;
pub(crate) mod sampler;
pub(crate) mod stop;

use std::collections::BTreeSet;
use std::sync::Arc;

use riffle_model::StreamDecoder;

use crate::{
    DrawContext, Engine, EngineError, GenerateOptions, Generation, Sampler, Sequence, StopMatcher, StopReason,
    TokenConstraint, TokenProbabilities,
};

/// Tokens of the text before that a continued answer's text depends on: a character is at most four bytes.
const CONTEXT_TOKENS: usize = 8;

/// An answer under way: draws tokens from the logits of its sequence, decodes them, and looks for what ends it.
pub(crate) struct Answer {
    engine: Arc<Engine>,
    options: GenerateOptions,
    sampler: Sampler,
    decoder: StreamDecoder,
    matcher: StopMatcher,
    constraint: Option<Box<dyn TokenConstraint>>,
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
    ///
    /// # Errors
    /// [`EngineError::NoTokenizer`]; [`EngineError::Option`] for a sampling option out of range; [`EngineError::Form`] for a form
    /// that cannot be begun.
    pub(crate) fn new(sequence: &Sequence, options: GenerateOptions) -> Result<Self, EngineError> {
        sequence.engine().tokenizer()?;
        let sampling = options.sampling.clone();
        Ok(Self {
            sampler: match &sequence.answer.sampler {
                Some(state) => Sampler::resume(sampling, state)?,
                None => Sampler::new(sampling)?,
            },
            decoder: StreamDecoder::default(),
            matcher: StopMatcher::new(options.stops.iter().cloned()),
            constraint: match &options.form {
                Some(form) => Some(form.begin().map_err(EngineError::Form)?),
                None => None,
            },
            text: String::new(),
            tokens: Vec::new(),
            engine: Arc::clone(sequence.engine()),
            options,
        })
    }

    /// Takes the end of the text before as what decides how the first new token reads.
    pub(crate) fn go_on_after(&mut self, sequence: &Sequence) -> Result<(), EngineError> {
        let (tokenizer, tokens) = (self.engine.tokenizer()?, sequence.tokens());
        for token in &tokens[tokens.len().saturating_sub(CONTEXT_TOKENS)..] {
            self.decoder.push(tokenizer, *token)?;
        }
        Ok(())
    }

    /// Whether it has as many tokens as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.tokens.len() >= self.options.max_tokens
    }

    /// Draws the next token from the logits of the sequence.
    pub(crate) fn draw(&mut self, sequence: &mut Sequence) -> Result<Drawn, EngineError> {
        let token = self.sample(sequence)?;
        let probabilities = |most| TokenProbabilities::of(&sequence.logits, token, most);
        let probabilities = self.options.probabilities.map(probabilities);
        self.tokens.push(token);
        sequence.answer.pending = Some(token);
        sequence.answer.sampler = Some(self.sampler.state());
        if self.ends_text(token) {
            return Ok(Drawn {
                token,
                text: String::new(),
                probabilities,
                stop: Some(StopReason::EndOfText),
            });
        }
        let is_complete = match &mut self.constraint {
            Some(constraint) => constraint.accept(token).map_err(EngineError::Form)?,
            None => false,
        };
        let piece = self.decoder.push(self.engine.tokenizer()?, token)?;
        let text = match self.tokens.len() <= self.options.min_tokens {
            true => piece,
            false => self.matcher.push(&piece),
        };
        self.text.push_str(&text);
        let stop = match self.matcher.matched() {
            Some(stop) => Some(StopReason::StopString(stop.to_owned())),
            None if is_complete => Some(StopReason::EndOfText),
            None if self.is_full() => Some(StopReason::MaxTokens),
            None if sequence.is_full() => Some(StopReason::ContextFull),
            None => None,
        };
        Ok(Drawn {
            token,
            text,
            probabilities,
            stop,
        })
    }

    fn sample(&mut self, sequence: &Sequence) -> Result<u32, EngineError> {
        let ends = &self.engine.generation_defaults().eos;
        let is_early = self.tokens.len() < self.options.min_tokens;
        let forbidden = match is_early && !self.options.ignores_end {
            true => [ends.as_slice(), &self.options.stop_tokens].concat(),
            false => Vec::new(),
        };
        let mut context = DrawContext {
            tokens: &sequence.tokens,
            answer_tokens: self.tokens.len(),
            allowed: None,
            forbidden: &forbidden,
        };
        if let Some(constraint) = &mut self.constraint {
            let allowed = constraint.allowed().map_err(EngineError::Form)?;
            let open: u32 = allowed.iter().map(|word| word.count_ones()).sum();
            let forbidden: BTreeSet<u32> = forbidden.iter().copied().collect();
            let closed = forbidden.iter().filter(|token| {
                let word = allowed.get(**token as usize / 32).copied().unwrap_or(0);
                word >> (**token % 32) & 1 == 1
            });
            if open as usize == closed.count() {
                return Err(EngineError::Form("no token of the model can come next".to_owned()));
            }
            context.allowed = Some(allowed);
        }
        Ok(self.sampler.sample(&sequence.logits, &context))
    }

    /// Whether a token ends the answer.
    fn ends_text(&self, token: u32) -> bool {
        let ends = &self.engine.generation_defaults().eos;
        (ends.contains(&token) && !self.options.ignores_end) || self.options.stop_tokens.contains(&token)
    }

    /// Why the answer cannot go on with a token that was drawn before.
    pub(crate) fn end_before(&self, sequence: &Sequence, token: u32) -> Option<StopReason> {
        if self.ends_text(token) {
            Some(StopReason::EndOfText)
        } else if sequence.is_full() {
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
        let tail = self.decoder.finish(self.engine.tokenizer()?)?;
        let tail = self.matcher.push(&tail) + &self.matcher.finish();
        self.text.push_str(&tail);
        Ok(tail)
    }

    /// What was generated.
    pub(crate) fn end(self, stop: StopReason) -> Generation {
        Generation {
            text: self.text,
            tokens: self.tokens,
            stop,
        }
    }
}
