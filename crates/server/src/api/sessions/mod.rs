//! `/sessions`: saves the pages of a text under a name and restores them.
//!
//! Prefixes are reused without it: a session gives kept pages a name, or compresses them. Names are letters, digits,
//! `-`, `_` and `.`: no path is ever taken from a client. Files are read and written while answers go on.

mod work;

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use riffle_engine::{EngineError, LoanedSequence, Restoring};
use serde_json::{Value, json};

use super::{fields_of, respond};
use crate::app::{App, aside};
use crate::failure::{Failure, Shape};
pub(crate) use work::{compress, save};

/// File name extension of saved sessions.
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

/// Loads a saved session into memory, for requests that name it or have the same beginning.
pub(crate) async fn restore(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request) -> Response {
    respond(Shape::OpenAi, restored(&app, &name, request).await)
}

async fn restored(app: &Arc<App>, name: &str, request: Request) -> Result<Response, Failure> {
    let path = existing(app, name)?;
    fields_of(request).await?.finish()?;
    let session = loaned(app, name, &path).await?;
    let tokens = session.sequence().tokens().len();
    app.driver.work(move |scheduler| scheduler.hold(session)).await?;
    Ok(Json(json!({"name": name, "tokens": tokens})).into_response())
}

/// Loads a session into memory if necessary. Returns its file, by which requests name it.
pub(crate) async fn bring(app: &App, name: &str) -> Result<PathBuf, Failure> {
    let path = existing(app, name)?;
    let file = path.clone();
    if !app.driver.work(move |scheduler| scheduler.holds(&file)).await? {
        let session = loaned(app, name, &path).await?;
        app.driver.work(move |scheduler| scheduler.hold(session)).await?;
    }
    Ok(path)
}

/// The sequence of a session: taken out of memory, or read from its file while answers continue.
async fn loaned(app: &App, name: &str, path: &FilePath) -> Result<LoanedSequence, Failure> {
    let file = path.to_owned();
    let found = app.driver.work(move |scheduler| match scheduler.take_held(&file) {
        Some(held) => Ok(Found::Held(Box::new(held))),
        None => scheduler.restoring(&file).map(Found::OnDisk),
    });
    let restored = match found.await? {
        Ok(Found::Held(held)) => return Ok(*held),
        Ok(Found::OnDisk(restoring)) => aside(move || Ok(restoring.run())).await?,
        Err(error) => Err(error),
    };
    restored.map_err(|error| match error {
        EngineError::NoRoom(_) => Failure::from_engine(&error),
        EngineError::ForeignSession { what, saved, now, .. } => Failure::new(
            StatusCode::CONFLICT,
            format!("the session {name:?} was made with another {what} ({saved}, now {now}): read its text again"),
        ),
        error => Failure::new(
            StatusCode::CONFLICT,
            format!(
                "the session {name:?} cannot be restored: {}",
                hide(&error.to_string(), app)
            ),
        ),
    })
}

/// A session's sequence, in memory or on disk.
enum Found {
    Held(Box<LoanedSequence>),
    OnDisk(Restoring),
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

/// Removes a session's file. Its pages in memory stay until their memory is needed.
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
    if path.is_file() {
        Ok(path)
    } else {
        Err(Failure::new(
            StatusCode::NOT_FOUND,
            format!("there is no session {name:?}: see /sessions"),
        ))
    }
}

/// Reports an error of the operating system without the path.
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
