//! Abilities of a loaded model besides writing: vectors, scores, gaps in a text.

use riffle_model::{InfillTokens, Reranking, TextEmbedding};

use super::Engine;
use crate::EngineError;

impl Engine {
    /// The model's way to make a vector of a text.
    ///
    /// # Errors
    /// [`EngineError::NoVectors`] if its files require something unsupported.
    pub fn embedding(&self) -> Result<&TextEmbedding, EngineError> {
        match &self.loaded.embedding.refusal {
            None => Ok(&self.loaded.embedding),
            Some(problem) => Err(EngineError::NoVectors(problem.clone())),
        }
    }

    /// The model's way to score a document for a query.
    ///
    /// # Errors
    /// [`EngineError::NoScores`] if it is no reranker.
    pub fn reranking(&self) -> Result<&Reranking, EngineError> {
        self.loaded
            .reranking
            .as_ref()
            .map_err(|problem| EngineError::NoScores(problem.clone()))
    }

    /// The tokens for infill (the middle of a text), if the model has them.
    pub fn infill_tokens(&self) -> Option<&InfillTokens> {
        self.loaded.infill.as_ref()
    }

    /// Refuses a model that predicts no tokens.
    pub(crate) fn check_predicts(&self) -> Result<(), EngineError> {
        if self.model().config().predicts_tokens {
            Ok(())
        } else {
            Err(EngineError::NoTokens)
        }
    }
}
