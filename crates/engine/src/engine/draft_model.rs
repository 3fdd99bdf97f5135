//! The small draft model beside the main model.

use std::path::Path;
use std::sync::Arc;

use riffle_kv::PagePool;
use riffle_model::Tokenizer;

use crate::{Engine, EngineError, EngineOptions};

/// Tokens of a text that the small model reads per step.
pub(crate) const CHUNK_TOKENS: usize = 512;

/// The drafting model of an engine.
pub(crate) struct DraftModel {
    pub(crate) engine: Arc<Engine>,
    /// The pages of the small model's sequences.
    pub(crate) pool: PagePool,
}

impl DraftModel {
    /// Loads the model at `path` beside a larger one, within the memory that the larger model's plan leaves.
    pub(crate) fn load(path: &Path, large: &Engine) -> Result<Arc<Self>, EngineError> {
        let options = options_beside(large, &riffle_model::inspect(path)?.config);
        let engine = Engine::load(path, options).map_err(|error| no_room(path, error))?;
        if let Some(problem) = other_tokens(engine.tokenizer()?, large.tokenizer()?) {
            let name = format!("model:{}", path.display());
            return Err(EngineError::option("draft_model", name, problem));
        }
        let pool = engine.page_pool()?;
        Ok(Arc::new(Self { engine, pool }))
    }

    /// This model as the small model of `large`, under the options that `large` leaves it.
    pub(crate) fn beside(&self, large: &Engine) -> Result<Arc<Self>, EngineError> {
        let options = options_beside(large, self.engine.model().config());
        let engine = self.engine.with_options(options);
        let engine = engine.map_err(|error| no_room(self.engine.path(), error))?;
        let pool = engine.page_pool()?;
        Ok(Arc::new(Self { engine, pool }))
    }
}

/// Adds to an out-of-memory error that it concerns the small model.
fn no_room(path: &Path, error: EngineError) -> EngineError {
    match error {
        EngineError::OutOfMemory { needed, available, .. } => EngineError::option(
            "draft_model",
            format!("model:{}", path.display()),
            format!(
                "it needs {needed} and the large model leaves {available}: lower `context_tokens`, raise `memory_budget_bytes`, or leave it out"
            ),
        ),
        error => error,
    }
}

/// Options of a small model beside an engine with a memory plan.
fn options_beside(large: &Engine, config: &riffle_model::ModelConfig) -> EngineOptions {
    let (options, plan) = (large.options(), large.plan());
    EngineOptions::default()
        .with_context_tokens(Some(plan.context_tokens.min(config.max_position)))
        .with_activations(options.model.activations)
        .with_batch_tokens(CHUNK_TOKENS)
        .with_chunk_tokens(CHUNK_TOKENS)
        .with_page_tokens(options.cache.page_tokens)
        .with_key_format(options.cache.key_format)
        .with_value_format(options.cache.value_format)
        .with_sequences(options.machine.sequences)
        .with_pool_tokens(options.cache.pool_tokens)
        .with_cost(options.machine.cost)
        .with_memory_budget_bytes(Some(plan.available_bytes.saturating_sub(plan.total_bytes)))
}

/// The reason the tokenizers' ids have different meanings, if they do.
fn other_tokens(small: &Tokenizer, large: &Tokenizer) -> Option<String> {
    let both = small.vocab_size().min(large.vocab_size()) as u32;
    let differs = (0..both).find(|token| small.token_text(*token) != large.token_text(*token));
    let differs = differs.or((large.vocab_size() > small.vocab_size() + MOST_ADDED).then_some(both));
    differs.map(|token| {
        format!("token {token} of this model is not token {token} of the other: a model that drafts needs the same vocabulary")
    })
}

/// Maximum number of tokens at the end of the vocabulary that a small model may lack, such as tokens for tools and
/// images.
const MOST_ADDED: usize = 1024;
