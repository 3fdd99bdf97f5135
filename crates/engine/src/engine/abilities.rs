//! Abilities of a loaded model besides writing: vectors, scores, gaps in a text.

use riffle_model::{InfillTokens, Reranking, TextEmbedding};

use super::Engine;
use crate::EngineError;

impl Engine {
    /// How the model makes one vector of a text.
    ///
    /// # Errors
    /// [`EngineError::NoVectors`] where its files ask for what is not computed.
    pub fn embedding(&self) -> Result<&TextEmbedding, EngineError> {
        match &self.loaded.embedding.refusal {
            None => Ok(&self.loaded.embedding),
            Some(problem) => Err(EngineError::NoVectors(problem.clone())),
        }
    }

    /// How the model judges a document by a query.
    ///
    /// # Errors
    /// [`EngineError::NoScores`] where it is no reranker.
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
