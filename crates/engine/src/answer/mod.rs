//! From logits to text: the answer of one sequence, whoever takes its tokens through the model.

pub(crate) mod generate;
pub(crate) mod sampler;
pub(crate) mod stop;

use std::sync::Arc;

use riffle_model::StreamDecoder;

use crate::{Engine, EngineError, GenerateOptions, Generation, Sampler, Sequence, StopMatcher, StopReason};

/// Tokens of the text before that a continued answer's text depends on: a character is at most four bytes.
const CONTEXT_TOKENS: usize = 8;

/// An answer under way: draws tokens from the logits of its sequence, decodes them, and looks for what ends it.
pub(crate) struct Answer {
    engine: Arc<Engine>,
    options: GenerateOptions,
    sampler: Sampler,
    decoder: StreamDecoder,
    matcher: StopMatcher,
    text: String,
    tokens: Vec<u32>,
}

/// A token that was drawn.
pub(crate) struct Drawn {
    pub(crate) token: u32,
    /// The text that is certain now, often empty.
    pub(crate) text: String,
    /// Why the answer ends here, if it does; otherwise the token has to be read next.
    pub(crate) stop: Option<StopReason>,
}

impl Answer {
    /// The answer that a sequence goes on with: its draws begin where the latest of the same seed stood.
    ///
    /// # Errors
    /// [`EngineError::NoTokenizer`]; [`EngineError::Option`] for a sampling option out of range.
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
        let token = self.sampler.sample(&sequence.logits, &sequence.tokens);
        self.tokens.push(token);
        sequence.answer.pending = Some(token);
        sequence.answer.sampler = Some(self.sampler.state());
        if self.engine.generation_defaults().eos.contains(&token) {
            return Ok(Drawn {
                token,
                text: String::new(),
                stop: Some(StopReason::EndOfText),
            });
        }
        let piece = self.decoder.push(self.engine.tokenizer()?, token)?;
        let text = self.matcher.push(&piece);
        self.text.push_str(&text);
        let stop = match self.matcher.matched() {
            Some(stop) => Some(StopReason::StopString(stop.to_owned())),
            None if self.is_full() => Some(StopReason::MaxTokens),
            None if sequence.is_full() => Some(StopReason::ContextFull),
            None => None,
        };
        Ok(Drawn { token, text, stop })
    }

    /// Why the answer cannot go on with a token that was drawn before.
    pub(crate) fn end_before(&self, sequence: &Sequence, token: u32) -> Option<StopReason> {
        if self.engine.generation_defaults().eos.contains(&token) {
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
