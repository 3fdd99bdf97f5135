//! Decides the amount of the documents to read, and creates the engine.

use std::path::Path;
use std::sync::Arc;

use riffle_documents::Document;
use riffle_engine::{Engine, EngineError, EngineOptions, largest_text_bytes, stretch_factor};

use crate::choice::{Need, choose, context_limit};
use crate::meaning::Meaning;
use crate::parts::PartChooser;
use crate::prompt::Prompt;
use crate::{Amount, AskError, AskOptions, Choice};

/// The engine with the selected options, and the readable text.
pub(crate) struct Opened {
    pub(crate) engine: Arc<Engine>,
    pub(crate) choice: Choice,
    /// Selects parts for each question, if the whole text is not read.
    pub(crate) chooser: Option<PartChooser>,
    /// Ranks the parts by meaning, if an embedding model is named.
    pub(crate) meaning: Option<Meaning>,
}

impl Opened {
    /// Selects by the tokens of `whole`, the prompt with the whole text.
    pub(crate) fn new(
        (path, engine): (&Path, &Arc<Engine>),
        loading: &EngineOptions,
        options: &AskOptions,
        documents: &[Document],
        whole: &Prompt,
    ) -> Result<Self, AskError> {
        let need = Need {
            documents: documents.len(),
            document_tokens: whole.document_tokens,
            parts_tokens: None,
            prompt_tokens: whole.tokens.len(),
            answer_tokens: options.answer_tokens,
        };
        let opened = |(engine, choice)| Self {
            engine,
            choice,
            chooser: None,
            meaning: None,
        };
        let refusal = if options.amount == Amount::Parts {
            None
        } else {
            match choose(engine, loading, options.given, need) {
                Ok(chosen) => return Ok(opened(chosen)),
                Err(error) => Some(error),
            }
        };
        match (options.amount, refusal) {
            (Amount::Whole, Some(error @ AskError::TooLong { .. })) => {
                let maximum = engine.model().config().max_position;
                let (engine, loading) = stretched(path, loading, need.least(), maximum).ok_or(error)??;
                Ok(opened(choose(&engine, &loading, options.given, need)?))
            }
            (Amount::Fitting, Some(error)) if !is_about_room(&error) => Err(error),
            (Amount::Whole, Some(error)) => Err(error),
            (_, refusal) => {
                let parts = Self::in_parts(engine, loading, options, (documents, whole), need);
                // If parts do not fit, the whole text does not fit either; the first error says more.
                parts.map_err(|error| match (error, refusal) {
                    (AskError::Engine(EngineError::OutOfMemory { .. }), Some(refusal)) => refusal,
                    (error, _) => error,
                })
            }
        }
    }

    fn in_parts(
        engine: &Arc<Engine>,
        loading: &EngineOptions,
        options: &AskOptions,
        (documents, whole): (&[Document], &Prompt),
        need: Need,
    ) -> Result<Self, AskError> {
        let question_tokens = need.prompt_tokens - need.document_tokens;
        let limit = context_limit(engine, loading, options.given);
        let room = limit.saturating_sub(question_tokens + options.answer_tokens);
        let mut chooser = PartChooser::new(documents, whole);
        let memory = engine.memory_bytes();
        let meaning = options.embeddings.as_ref().map(|path| Meaning::load(path, engine));
        let meaning = meaning.transpose()?;
        let mut beside = loading.clone();
        if let Some(meaning) = &meaning {
            let left = memory.saturating_sub(meaning.bytes(chooser.parts().len())?);
            beside = beside.with_memory_budget_bytes(Some(left));
        }
        let mut least = None;
        // The context may be shorter than the model's, because of memory.
        for room in [room, room / 2, room / 4] {
            chooser = chooser.with_room(room);
            let parts_tokens = chooser.first_tokens();
            let need = Need {
                parts_tokens: Some(parts_tokens),
                prompt_tokens: parts_tokens + question_tokens,
                ..need
            };
            match choose(engine, &beside, options.given, need) {
                Ok((engine, choice)) => {
                    return Ok(Self {
                        engine,
                        choice,
                        chooser: Some(chooser),
                        meaning,
                    });
                }
                Err(error) if is_about_room(&error) => least = Some(error),
                Err(error) => return Err(error),
            }
        }
        let least = least.unwrap_or(AskError::EmptyQuestion);
        Err(match &meaning {
            Some(meaning) => meaning.without_room(least),
            None => least,
        })
    }
}

/// The model with positions stretched for the text; `None` if that exceeds the limit, or if the caller set the
/// stretching.
fn stretched(
    path: &Path,
    loading: &EngineOptions,
    tokens: usize,
    maximum: usize,
) -> Option<Result<(Arc<Engine>, EngineOptions), AskError>> {
    if loading.model.rope_scaling.is_some() {
        return None;
    }
    let factor = stretch_factor(tokens, maximum)?;
    let scaling = format!("yarn:factor={factor}").parse();
    let options = scaling.map(|scaling| loading.clone().with_rope_scaling(Some(scaling)));
    Some(options.map_err(AskError::from).and_then(|options| {
        let engine = Engine::load(path, first_options(&options))?;
        Ok((engine, options))
    }))
}

/// True if fewer tokens could fit.
fn is_about_room(error: &AskError) -> bool {
    matches!(
        error,
        AskError::TooLong { .. } | AskError::Engine(EngineError::OutOfMemory { .. } | EngineError::TierTooSmall { .. })
    )
}

/// Bytes of the documents' text, which must fit in memory during tokenization.
pub(crate) fn text_bytes(documents: &[Document], options: &EngineOptions) -> Result<u64, AskError> {
    // Names and the text around them need a little more.
    let bytes = documents
        .iter()
        .map(|document| document.text.len() + document.name.len() + 16);
    let (bytes, limit_bytes) = (bytes.sum::<usize>() as u64, largest_text_bytes(options));
    if bytes > limit_bytes {
        Err(AskError::TooMuchText { bytes, limit_bytes })
    } else {
        Ok(bytes)
    }
}

/// Options for loading the model with the smallest context, because the tokenizer must be loaded first.
pub(crate) fn first_options(options: &EngineOptions) -> EngineOptions {
    const LEAST_CONTEXT_TOKENS: usize = 64;
    options
        .clone()
        .with_context_tokens(Some(LEAST_CONTEXT_TOKENS))
        .with_prompt(None)
}
