//! Draws the tokens of an answer with its sampler, from the tokens that its form allows.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::{DrawContext, Engine, EngineError, GenerateOptions, Sampler, Sequence, TokenConstraint};

/// Draws the tokens of one answer.
pub(super) struct Draws {
    pub(super) engine: Arc<Engine>,
    pub(super) sampler: Sampler,
    constraint: Option<Box<dyn TokenConstraint>>,
    pub(super) options: Arc<GenerateOptions>,
}

/// Draws the tokens of a draft with the random numbers of the answer.
pub(crate) struct Guess {
    draws: Draws,
    /// Tokens of the answer and the draft.
    tokens: usize,
    is_complete: bool,
}

impl Draws {
    /// The draws of the sequence's next answer: they continue after the latest draws with the same seed.
    pub(super) fn new(sequence: &Sequence, options: GenerateOptions) -> Result<Self, EngineError> {
        let sampling = options.sampling.clone();
        Ok(Self {
            sampler: match &sequence.answer().drawn.sampler {
                Some(state) => Sampler::resume(sampling, state)?,
                None => Sampler::new(sampling)?,
            },
            constraint: match &options.form {
                Some(form) => Some(form.begin().map_err(EngineError::Form)?),
                None => None,
            },
            options: Arc::new(options),
            engine: Arc::clone(sequence.engine()),
        })
    }

    /// Copies the draws for a draft. If the form cannot be copied, the draft ignores it, and forbidden tokens are
    /// later rejected.
    pub(super) fn guess(&mut self, tokens: usize) -> Guess {
        Guess {
            draws: Self {
                engine: Arc::clone(&self.engine),
                sampler: self.sampler.fork(),
                constraint: self.constraint.as_mut().and_then(|constraint| constraint.fork()),
                options: Arc::clone(&self.options),
            },
            tokens,
            is_complete: false,
        }
    }

    /// Draws the token after `tokens`, of which the last `answer_tokens` are the answer, from the logits there,
    /// `[vocab]`.
    pub(super) fn draw(&mut self, tokens: &[u32], answer_tokens: usize, logits: &[f32]) -> Result<u32, EngineError> {
        let ends = &self.engine.generation_defaults().eos;
        let is_early = answer_tokens < self.options.min_tokens;
        let forbidden = if is_early && !self.options.ignores_end {
            [ends.as_slice(), &self.options.stop_tokens].concat()
        } else {
            Vec::new()
        };
        let mut context = DrawContext {
            tokens,
            answer_tokens,
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
        Ok(self.sampler.sample(logits, &context))
    }

    /// Continues after a token; returns true if the answer then has its complete form.
    pub(super) fn accept(&mut self, token: u32) -> Result<bool, EngineError> {
        match &mut self.constraint {
            Some(constraint) => constraint.accept(token).map_err(EngineError::Form),
            None => Ok(false),
        }
    }

    /// True if a token ends the answer.
    pub(super) fn ends_text(&self, token: u32) -> bool {
        let ends = &self.engine.generation_defaults().eos;
        (ends.contains(&token) && !self.options.ignores_end) || self.options.stop_tokens.contains(&token)
    }
}

impl Guess {
    /// True if no token can follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The token after `tokens`; `None` if the form cannot continue.
    pub(crate) fn draw(&mut self, tokens: &[u32], logits: &[f32]) -> Option<u32> {
        let token = self.draws.draw(tokens, self.tokens, logits).ok()?;
        self.tokens += 1;
        self.is_complete = self.draws.ends_text(token) || self.draws.accept(token).ok()?;
        Some(token)
    }
}
