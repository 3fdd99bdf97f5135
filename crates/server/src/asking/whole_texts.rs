//! Texts that the model reads whole, for vectors and scores.
//!
//! The engine's thread does this work between two pieces of the scheduler, so answers continue meanwhile.

use std::sync::Arc;

use axum::http::StatusCode;
use riffle_engine::{Encoding, Engine, EngineError};
use riffle_model::{RankingText, TextTokens, cut_text};
use tokio::sync::Semaphore;

use super::continuation::Prompt;
use crate::app::{App, aside};
use crate::failure::Failure;
use crate::tokenising::{Wanted, encode_now, encode_ranking_now, tokenise};

/// Number of requests whose texts are read at a time. Each takes memory for the activations of its texts.
static TURN: Semaphore = Semaphore::const_new(1);

/// Treatment of texts that are too long for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooLong {
    Refused,
    /// Texts are cut, except for their end token.
    Cut,
}

/// Texts to read, and their common options.
#[derive(Debug, Clone)]
pub(crate) struct WholeTexts {
    pub(crate) texts: Vec<Prompt>,
    /// Text before each of the texts.
    pub(crate) prompt: String,
    pub(crate) too_long: TooLong,
}

/// Vectors or scores, and the number of tokens read.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    pub(crate) results: Vec<Vec<f32>>,
    pub(crate) tokens: usize,
}

impl WholeTexts {
    /// The vectors of the texts.
    pub(crate) async fn vectors(self, app: &Arc<App>) -> Result<Encoded, Failure> {
        // The refusal comes before any tokenisation.
        app.engine.embedding().map_err(|error| Failure::from_engine(&error))?;
        let engine = Arc::clone(&app.engine);
        let tokens = tokenise(move |client| {
            let embedding = engine.embedding().map_err(|error| Failure::from_engine(&error))?;
            let tokenizer = engine.tokenizer().map_err(|error| Failure::from_engine(&error))?;
            let Self {
                texts,
                prompt,
                too_long,
            } = self;
            let tokens = texts.into_iter().map(|text| match text {
                Prompt::Tokens(tokens) => Ok(tokens),
                Prompt::Gap(_) => Err(Failure::field("input", "it must be a text or token ids")),
                Prompt::Text(text) => {
                    let encode = |content: &_| encode_now(&engine, content, true, Wanted::Count, client);
                    embedding.tokens((&prompt, &text), tokenizer, encode)
                }
            });
            let mut tokens = tokens.collect::<Result<Vec<_>, Failure>>()?;
            if too_long == TooLong::Cut {
                let most = Encoding::most_tokens(&engine);
                tokens.iter_mut().for_each(|tokens| cut_text(tokens, most, tokenizer));
            }
            Ok(tokens)
        });
        let tokens = tokens.await?;
        let count = tokens.iter().map(Vec::len).sum();
        encode(app, (tokens, count), Encoding::vectors).await
    }
}

/// The scores of prompts.
pub(crate) async fn scores(app: &Arc<App>, prompts: Vec<RankingText>) -> Result<Encoded, Failure> {
    let engine = Arc::clone(&app.engine);
    let tokens = tokenise(move |client| {
        let prompts = prompts.iter();
        prompts
            .map(|prompt| encode_ranking_now(&engine, prompt, client))
            .collect()
    });
    let tokens: Vec<TextTokens> = tokens.await?;
    let count = tokens.iter().map(|prompt| prompt.tokens.len()).sum();
    encode(app, (tokens, count), Encoding::scores).await
}

/// Starts the encoding of some texts, given as tokens.
type Begin<T> = fn(&Arc<Engine>, Vec<T>) -> Result<Encoding, EngineError>;

/// Reads texts, `tokens` together, when it is their turn.
async fn encode<T: Send + 'static>(
    app: &Arc<App>,
    (texts, tokens): (Vec<T>, usize),
    begin: Begin<T>,
) -> Result<Encoded, Failure> {
    let _permit = app.driver.permit()?;
    let read = async {
        let _turn = TURN.acquire().await;
        let engine = Arc::clone(&app.engine);
        let begin = move || begin(&engine, texts).map_err(|error| Failure::from_engine(&error));
        let mut encoding = aside(begin).await?;
        loop {
            let advance = move |_: &mut _| {
                let flow = encoding.advance();
                (encoding, flow)
            };
            let (advanced, flow) = app.driver.work(advance).await?;
            encoding = advanced;
            if flow.map_err(|error| Failure::from_engine(&error))?.is_break() {
                return Ok(encoding.into_results());
            }
        }
    };
    let results = tokio::time::timeout(app.options.limits.request_time, read).await;
    let late = "the request took longer than the server allows: send fewer texts";
    let results = results.unwrap_or_else(|_| Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, late)))?;
    Ok(Encoded { results, tokens })
}
