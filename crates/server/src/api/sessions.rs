//! `/sessions`: what has been read, saved under a name and restored from it.
//!
//! Nobody needs it to have a beginning found again: it is for those who want to name what they keep. Names are letters, digits, `-`, `_`
//! and `.`: no path is ever taken from a client.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use riffle_engine::{EngineError, GenerateOptions};
use serde_json::{Value, json};

use super::openai::{read_messages, take_tools};
use super::{fields_of, respond};
use crate::app::{App, aside};
use crate::asking::prompt::{Conversation, encode, prompt};
use crate::driver::Told;
use crate::failure::{Failure, Shape};
use crate::fields::Fields;

/// What files of sessions end with.
const ENDING: &str = "riffle";

const LONGEST_NAME: usize = 64;

/// Sessions in the folder.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    respond(Shape::OpenAi, listed(&app).await)
}

async fn listed(app: &Arc<App>) -> Result<Response, Failure> {
    let folder = folder_of(app)?;
    let sessions = aside(move || {
        let mut sessions = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(|error| broken(&error))?.flatten() {
            let path = entry.path();
            let is_session = path.extension().is_some_and(|ending| ending == ENDING);
            let name = path.file_stem().and_then(|name| name.to_str()).map(str::to_owned);
            if let (true, Some(name), Ok(file)) = (is_session, name, entry.metadata()) {
                sessions.push((name, file.len()));
            }
        }
        sessions.sort();
        Ok(sessions)
    })
    .await?;
    let sessions = sessions
        .into_iter()
        .map(|(name, bytes)| json!({"name": name, "bytes": bytes}));
    Ok(Json(json!({"object": "list", "data": sessions.collect::<Vec<Value>>()})).into_response())
}

/// Reads a prompt, or finds it read, and saves it.
pub(crate) async fn save(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request) -> Response {
    respond(Shape::OpenAi, saved(&app, &name, request).await)
}

async fn saved(app: &Arc<App>, name: &str, request: Request) -> Result<Response, Failure> {
    let path = path_of(app, name)?;
    let mut fields = fields_of(request).await?;
    let tokens = take_prompt(app, &mut fields).await?;
    let request = riffle_engine::Request {
        tokens,
        generate: GenerateOptions {
            max_tokens: 0,
            ..GenerateOptions::default()
        },
        ..riffle_engine::Request::default()
    };
    let mut answer = app.driver.ask_and_save(request, Some(path.clone()))?;
    answer.accepted().await?;
    loop {
        match std::future::poll_fn(|context| answer.poll(context)).await {
            Some(Told::Finished(finished)) => {
                let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
                let report = &finished.report;
                return Ok(Json(json!({
                    "name": name,
                    "tokens": report.prompt_tokens,
                    "cached_tokens": report.reused_tokens,
                    "bytes": bytes,
                }))
                .into_response());
            }
            Some(Told::Failed(failure)) => return Err(failure),
            Some(_) => {}
            None => return Err(Failure::stopping()),
        }
    }
}

/// `prompt`, or `messages` with `tools`.
async fn take_prompt(app: &Arc<App>, fields: &mut Fields) -> Result<Vec<u32>, Failure> {
    app.check_model(fields.text("model")?.as_deref())?;
    let text = fields.text("prompt")?;
    let messages = fields.list("messages")?;
    let tools = take_tools(app, fields)?;
    fields.check_finished()?;
    match (text, messages) {
        (Some(text), None) => encode(app, text, true).await,
        (None, Some(messages)) => {
            let conversation = Conversation {
                messages: read_messages(messages)?,
                tools: tools.tools,
                ..Conversation::default()
            };
            Ok(prompt(app, conversation).await?.tokens)
        }
        _ => Err(Failure::field("prompt", "give either a prompt or messages")),
    }
}

/// Brings a saved session into memory, where whoever begins with the same text finds it.
pub(crate) async fn restore(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request) -> Response {
    respond(Shape::OpenAi, restored(&app, &name, request).await)
}

async fn restored(app: &Arc<App>, name: &str, request: Request) -> Result<Response, Failure> {
    let path = existing(app, name)?;
    fields_of(request).await?.finish()?;
    // The model's fingerprint takes long when it is first asked for.
    let engine = Arc::clone(&app.engine);
    aside(move || engine.fingerprint().map_err(|error| Failure::of(&error))).await?;
    let outcome = app.driver.work(move |scheduler| scheduler.restore(&path)).await?;
    match outcome {
        Ok(Some(tokens)) => Ok(Json(json!({"name": name, "tokens": tokens})).into_response()),
        Ok(None) => Err(Failure {
            retry_after_s: Some(10),
            ..Failure::new(
                StatusCode::CONFLICT,
                "there is no room for it now, or nobody could go on from it: try again when fewer requests run",
            )
        }),
        Err(EngineError::ForeignSession { what, saved, now, .. }) => Err(Failure::new(
            StatusCode::CONFLICT,
            format!("the session {name:?} was made with another {what} ({saved}, now {now}): read its text again"),
        )),
        Err(error) => Err(Failure::new(
            StatusCode::CONFLICT,
            format!(
                "the session {name:?} cannot be restored: {}",
                hide(&error.to_string(), app)
            ),
        )),
    }
}

/// Copies a session to another name.
pub(crate) async fn fork(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request) -> Response {
    respond(Shape::OpenAi, forked(&app, &name, request).await)
}

async fn forked(app: &Arc<App>, name: &str, request: Request) -> Result<Response, Failure> {
    let path = existing(app, name)?;
    let mut fields = fields_of(request).await?;
    let to = fields.required_text("to")?;
    fields.finish()?;
    let copy = path_of(app, &to)?;
    if copy.exists() {
        return Err(Failure::new(
            StatusCode::CONFLICT,
            format!("there is a session {to:?} already: delete it first, or choose another name"),
        ));
    }
    aside(move || std::fs::copy(&path, &copy).map_err(|error| broken(&error))).await?;
    Ok(Json(json!({"name": to})).into_response())
}

/// Removes a session's file. What of it is in memory stays there until its room is needed.
pub(crate) async fn delete(State(app): State<Arc<App>>, Path(name): Path<String>) -> Response {
    respond(Shape::OpenAi, deleted(&app, &name))
}

fn deleted(app: &Arc<App>, name: &str) -> Result<Response, Failure> {
    let path = existing(app, name)?;
    std::fs::remove_file(path).map_err(|error| broken(&error))?;
    Ok(Json(json!({"name": name, "deleted": true})).into_response())
}

fn folder_of(app: &App) -> Result<PathBuf, Failure> {
    app.options.session_folder.clone().ok_or_else(|| {
        Failure::new(
            StatusCode::NOT_FOUND,
            "this server keeps no named sessions: start it with --sessions DIR",
        )
    })
}

fn path_of(app: &App, name: &str) -> Result<PathBuf, Failure> {
    let folder = folder_of(app)?;
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with('.') || !name.chars().all(fits) {
        return Err(Failure::field(
            "name",
            format!("a name has up to {LONGEST_NAME} letters, digits, -, _ and ., and does not begin with a ."),
        ));
    }
    Ok(folder.join(format!("{name}.{ENDING}")))
}

fn existing(app: &App, name: &str) -> Result<PathBuf, Failure> {
    let path = path_of(app, name)?;
    match path.is_file() {
        true => Ok(path),
        false => Err(Failure::new(
            StatusCode::NOT_FOUND,
            format!("there is no session {name:?}: see /sessions"),
        )),
    }
}

/// What the system says, without the path.
fn broken(error: &std::io::Error) -> Failure {
    Failure::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        format!("the folder of sessions failed: {}", error.kind()),
    )
}

/// A message without the server's folders.
fn hide(message: &str, app: &App) -> String {
    let folder = app
        .options
        .session_folder
        .as_ref()
        .map(|folder| folder.display().to_string());
    folder
        .map_or_else(|| message.to_owned(), |folder| message.replace(&folder, ""))
        .replace('\n', " ")
}
