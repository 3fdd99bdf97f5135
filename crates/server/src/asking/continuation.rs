//! Texts to continue without the chat template.

use std::sync::Arc;

use serde_json::Value;

use super::Wishes;
use super::infill::Gap;
use super::options::token_of;
use super::question::OngoingAnswers;
use crate::app::App;
use crate::failure::Failure;
use crate::fields::{text_of, unexpected};
use crate::forms::Form;
use crate::speech::{KnownTools, Speech};
use crate::tokenising::{Wanted, encode_now, tokenise};

/// A prompt of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    /// A text with a gap to fill.
    Gap(Box<Gap>),
}

/// The prompts of a field: a text, token ids, or a list of either.
pub(crate) fn prompts_of(app: &App, value: Value, place: &str) -> Result<Vec<Prompt>, Failure> {
    let tokens = |ids: &[Value]| {
        let tokens = ids.iter().map(|id| token_of(app, id, place));
        tokens.collect::<Result<Vec<_>, _>>().map(Prompt::Tokens)
    };
    match value {
        Value::String(text) => Ok(vec![Prompt::Text(text)]),
        Value::Array(list) if list.is_empty() => Err(Failure::field(place, "it must not be empty")),
        Value::Array(list) if list.iter().all(Value::is_number) => Ok(vec![tokens(&list)?]),
        Value::Array(list) => list
            .into_iter()
            .enumerate()
            .map(|(at, prompt)| match prompt {
                Value::Array(ids) => tokens(&ids),
                text => text_of(text, &format!("{place}[{at}]")).map(Prompt::Text),
            })
            .collect(),
        other => Err(unexpected(place, "a text, token ids, or a list of these", &other)),
    }
}

/// The tokens of prompts. A text gets the tokenizer's first tokens.
pub(crate) async fn tokens_of(app: &App, prompts: Vec<Prompt>) -> Result<Vec<Vec<u32>>, Failure> {
    let engine = Arc::clone(&app.engine);
    tokenise(move |client| {
        let prompts = prompts.into_iter().map(|prompt| match prompt {
            Prompt::Text(text) => encode_now(&engine, &text.into(), true, Wanted::Prompt, client),
            Prompt::Tokens(tokens) => Ok(tokens),
            Prompt::Gap(gap) => gap.tokens(&engine, client),
        });
        prompts.collect()
    })
    .await
}

/// Reads an answer as plain text, including marks of thoughts and calls.
pub(crate) fn plain_speech(app: &App) -> Speech {
    Speech::new(app.markup, KnownTools::default(), false).without_thoughts()
}

/// Requests the continuation of each prompt. `form` includes its field.
pub(crate) async fn continue_prompts(
    app: &App,
    mut wishes: Wishes,
    prompts: Vec<Prompt>,
    form: Option<(Form, String)>,
) -> Result<OngoingAnswers, Failure> {
    wishes.keep_to(app, form).await?;
    let prompts = tokens_of(app, prompts).await?;
    Ok(OngoingAnswers {
        answers: wishes.ask(app, &prompts, 1).await?,
        speech: plain_speech(app),
        prompt_tokens: prompts.iter().map(Vec::len).sum(),
        wishes,
    })
}
