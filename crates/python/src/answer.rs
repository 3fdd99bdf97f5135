//! Converts prompts from Python and answers to Python.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use riffle_engine::{Engine, EngineError, Generation, StopReason, TokenProbabilities};

use crate::failure::Failure;
use crate::items::{Element, Items};
use crate::options::check_tokens;

/// A text, or its tokens.
#[derive(FromPyObject)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Items<u32>),
}

impl Element for Prompt {
    fn elements(&self) -> usize {
        match self {
            Self::Text(text) => text.elements(),
            Self::Tokens(tokens) => tokens.elements(),
        }
    }
}

/// The tokens of a prompt.
pub(crate) fn prompt_tokens(engine: &Engine, prompt: Prompt) -> Result<Vec<u32>, Failure> {
    match prompt {
        Prompt::Text(text) if text.trim().is_empty() => Err(EngineError::EmptyPrompt.into()),
        Prompt::Text(text) => Ok(engine.tokenizer()?.encode(&text, true)?),
        Prompt::Tokens(tokens) => {
            let tokens = tokens.list("prompt")?;
            if tokens.is_empty() {
                return Err(EngineError::EmptyPrompt.into());
            }
            check_tokens(tokens.iter().copied(), engine.model().config().vocab_size)?;
            Ok(tokens)
        }
    }
}

/// An answer with its counts.
pub(crate) struct Answered {
    pub(crate) generation: Generation,
    pub(crate) prompt_tokens: usize,
    /// Tokens of the prompt that were already read.
    pub(crate) reused_tokens: usize,
    /// Probabilities, one for each token, if requested.
    pub(crate) probabilities: Vec<TokenProbabilities>,
    pub(crate) read_s: f64,
    pub(crate) answered_s: f64,
}

impl Answered {
    /// The fields of `riffle.Generation`.
    pub(crate) fn to_python<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let Generation {
            text,
            tokens,
            stop,
            drafts,
        } = &self.generation;
        let dict = PyDict::new(py);
        dict.set_item("text", text)?;
        dict.set_item("tokens", tokens)?;
        dict.set_item("stop_reason", stop.name())?;
        dict.set_item(
            "stop",
            match stop {
                StopReason::StopString(text) => Some(text),
                _ => None,
            },
        )?;
        dict.set_item("prompt_tokens", self.prompt_tokens)?;
        dict.set_item("reused_tokens", self.reused_tokens)?;
        dict.set_item("drafted_tokens", drafts.drafted)?;
        dict.set_item("accepted_tokens", drafts.accepted)?;
        dict.set_item("read_s", self.read_s)?;
        dict.set_item("answered_s", self.answered_s)?;
        let probabilities = self.probabilities.iter();
        let probabilities: Vec<_> = probabilities
            .map(|token| (token.token, token.log_probability, token.likeliest.clone()))
            .collect();
        dict.set_item("probabilities", probabilities)?;
        Ok(dict)
    }
}
