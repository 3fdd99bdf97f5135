//! The embedding model: vectors of texts.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use riffle_engine::{Encoding, Engine, EngineError, EngineOptions};
use riffle_model::{TextEmbedding, cut_text, normalise};

use crate::AskError;

/// Texts of a batch; between batches the caller hears of the progress.
const TEXTS_TOGETHER: usize = 16;

/// Tokens for which memory is planned. Several texts together have as many.
const PLANNED_TOKENS: usize = 1024;

/// A model in memory that gives texts their vectors.
pub(super) struct Embedder {
    engine: Arc<Engine>,
}

impl Embedder {
    /// Loads the model at `path` into the memory that the loaded language model leaves.
    pub(super) fn load(path: &Path, language: &Engine) -> Result<Self, AskError> {
        let left = language.memory_bytes().saturating_sub(language.loaded_bytes());
        let options = EngineOptions::default()
            .with_families(language.options().model.families)
            .with_memory_budget_bytes(Some(left));
        let positions = riffle_model::inspect_with(path, &options.model.load_options())?
            .config
            .max_position;
        let options = options.with_context_tokens(Some(positions.min(PLANNED_TOKENS)));
        let engine = Engine::load(path, options).map_err(|error| match error {
            EngineError::OutOfMemory { needed, available, .. } => AskError::NoRoom {
                model: "the embedding model",
                other: "the language model",
                needed,
                available,
            },
            error => error.into(),
        })?;
        let embedder = Self { engine };
        let embedding = embedder.embedding()?;
        if !embedding.is_stated && embedder.engine.model().config().predicts_tokens {
            return Err(AskError::NoEmbeddings {
                path: path.to_owned(),
                reason: "its files state no pooling".to_owned(),
            });
        }
        Ok(embedder)
    }

    /// Bytes that the model takes while it reads texts.
    pub(super) fn bytes(&self) -> u64 {
        self.engine.plan().total_bytes
    }

    pub(super) fn embedding(&self) -> Result<&TextEmbedding, AskError> {
        self.engine.embedding().map_err(|error| match error {
            EngineError::NoVectors(reason) => AskError::NoEmbeddings {
                path: self.engine.path().to_owned(),
                reason,
            },
            error => error.into(),
        })
    }

    /// Elements of a vector.
    pub(super) fn width(&self) -> Result<usize, AskError> {
        Ok(self.embedding()?.width(self.engine.model().config().hidden_size))
    }

    /// Bytes that differ between models with different vectors.
    pub(super) fn identity(&self) -> Result<Vec<u8>, AskError> {
        let mut identity = self.engine.fingerprint()?.to_le_bytes().to_vec();
        identity.extend(format!("{:?}", self.embedding()?).bytes());
        Ok(identity)
    }

    /// The tokens of a text after a prompt. A text beyond the model's limit loses its end.
    pub(super) fn tokens(&self, prompt: &str, text: &str) -> Result<Vec<u32>, AskError> {
        let tokenizer = self.engine.tokenizer()?;
        let encode = |content: &_| tokenizer.encode_conversation(content, true);
        let mut tokens = self.embedding()?.tokens((prompt, text), tokenizer, encode)?;
        cut_text(&mut tokens, Encoding::most_tokens(&self.engine), tokenizer);
        Ok(tokens)
    }

    /// The vector of each text, of length 1. `observe` receives the number of finished texts and may stop the work.
    pub(super) fn vectors(
        &self,
        texts: &[Vec<u32>],
        observe: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<f32>>, AskError> {
        let mut vectors = Vec::with_capacity(texts.len());
        for together in texts.chunks(TEXTS_TOGETHER) {
            let mut encoding = Encoding::vectors(&self.engine, together.to_vec())?;
            while encoding.advance()?.is_continue() {
                if observe(vectors.len()).is_break() {
                    return Err(AskError::Engine(EngineError::Interrupted {
                        tokens: texts[..vectors.len()].iter().map(Vec::len).sum(),
                        total: texts.iter().map(Vec::len).sum(),
                    }));
                }
            }
            vectors.extend(encoding.into_results());
        }
        vectors.iter_mut().for_each(|vector| normalise(vector));
        Ok(vectors)
    }

    /// The error of a language model that does not fit beside this one.
    pub(super) fn without_room(&self, error: AskError) -> AskError {
        match error {
            AskError::Engine(EngineError::OutOfMemory { needed, available, .. }) => AskError::NoRoom {
                model: "the language model",
                other: "the embedding model",
                needed,
                available,
            },
            error => error,
        }
    }
}
