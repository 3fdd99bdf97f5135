//! Tokens, templates, health, metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::openai::{read_messages, take_tools};
use super::{fields_of, respond};
use crate::app::{App, aside};
use crate::asking::effort::Thinking;
use crate::asking::options::token_of;
use crate::asking::prompt::{Conversation, encode, render, take_variables};
use crate::failure::{Failure, Shape};
use crate::models::choice::model_of_query;
use crate::site::Site;
use crate::tokenising::Wanted;

/// Answers that the server is running.
pub(crate) async fn health(State(site): State<Arc<Site>>) -> Response {
    if site.models.is_alive() {
        Json(json!({"status": "ok"})).into_response()
    } else {
        Failure::stopping().into_response()
    }
}

/// Answers whether the server accepts a request now.
pub(crate) async fn ready(State(site): State<Arc<Site>>) -> Response {
    let is_ending = site.is_ending.load(Ordering::Relaxed);
    if is_ending {
        Failure::stopping().into_response()
    } else if site.models.takes_requests() {
        Json(json!({"status": "ready"})).into_response()
    } else {
        Failure {
            retry_after_s: Some(5),
            ..Failure::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the server takes no further request now",
            )
        }
        .into_response()
    }
}

/// The version. Routers detect servers with vLLM's metrics by this path.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

pub(crate) async fn metrics(State(site): State<Arc<Site>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], site.metrics_text()).into_response()
}

/// Facts about the server and a model for the web page: the query's model, or the first.
pub(crate) async fn status(State(site): State<Arc<Site>>, uri: Uri) -> Response {
    respond(Shape::OpenAi, status_of(&site, uri.query()))
}

fn status_of(site: &Site, query: Option<&str>) -> Result<Response, Failure> {
    let index = site.models.find(model_of_query(query).as_deref())?;
    let entry = &site.models.entries()[index];
    let mut status = entry.metrics.summary();
    status["model"] = json!(entry.name);
    status["models"] = site.models.entries().iter().map(|entry| json!(entry.name)).collect();
    status["is_loaded"] = json!(site.models.is_loaded(index));
    status["context_tokens"] = json!(entry.context_tokens);
    status["kv_most_bytes"] = json!(entry.kv_bytes);
    status["prefill"] = json!(entry.options.sequence.prefill.to_string());
    status["decode"] = json!(entry.options.sequence.decode.to_string());
    status["has_chat_template"] = json!(entry.has_chat_template);
    status["body_bytes"] = json!(site.options.limits.body_bytes);
    Ok(Json(status).into_response())
}

/// The tokens of a text; there may be many.
#[derive(Serialize)]
struct Tokens {
    tokens: Vec<u32>,
    count: usize,
    max_model_len: usize,
}

pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, tokens_of(&app, request).await)
}

async fn tokens_of(app: &Arc<App>, request: Request) -> Result<Response, Failure> {
    let mut fields = fields_of(request).await?;
    app.take_model(&mut fields)?;
    // llama.cpp and vLLM use different names for this field.
    let text = match fields.text("content")? {
        Some(text) => text,
        None => fields
            .text("prompt")?
            .ok_or_else(|| Failure::field("content", "this field is required"))?,
    };
    let add_special = fields.flag("add_special")?.or(fields.flag("add_special_tokens")?);
    let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    fields.refuse(
        "parse_special",
        &[json!(true)],
        "special tokens in a text are always recognised",
    )?;
    fields.finish()?;
    let tokens = encode(app, text, add_special.unwrap_or(false), Wanted::Count).await?;
    let (count, context) = (tokens.len(), app.engine.plan().context_tokens);
    if !with_pieces {
        let all = Tokens {
            tokens,
            count,
            max_model_len: context,
        };
        return Ok(Json(all).into_response());
    }
    if count > context {
        return Err(Failure::field(
            "with_pieces",
            format!("the text has {count} tokens and the server's context holds {context}: leave it out"),
        ));
    }
    let tokenizer = app.engine.tokenizer().map_err(|error| Failure::from_engine(&error))?;
    let piece = |token: &u32| {
        let bytes = tokenizer.token_bytes(*token).unwrap_or_default();
        let piece = match String::from_utf8(bytes) {
            Ok(text) => json!(text),
            Err(bytes) => json!(bytes.into_bytes()),
        };
        json!({"id": token, "piece": piece})
    };
    let pieces: Value = tokens.iter().map(piece).collect();
    let body = json!({"tokens": pieces, "count": count, "max_model_len": context});
    Ok(Json(body).into_response())
}

pub(crate) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, text_of(&app, request).await)
}

async fn text_of(app: &Arc<App>, request: Request) -> Result<Response, Failure> {
    let mut fields = fields_of(request).await?;
    app.take_model(&mut fields)?;
    let tokens = fields.list("tokens")?;
    let tokens = tokens.ok_or_else(|| Failure::field("tokens", "this field is required"))?;
    fields.finish()?;
    let tokens = tokens.iter().map(|token| token_of(app, token, "tokens"));
    let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
    let engine = Arc::clone(&app.engine);
    let text = aside(move || {
        let decode = || Ok(engine.tokenizer()?.decode_with_special(&tokens)?);
        decode().map_err(|error: riffle_engine::EngineError| Failure::from_engine(&error))
    })
    .await?;
    Ok(Json(json!({"content": text, "prompt": text})).into_response())
}

pub(crate) async fn apply_template(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, template_of(&app, request).await)
}

async fn template_of(app: &Arc<App>, request: Request) -> Result<Response, Failure> {
    let mut fields = fields_of(request).await?;
    app.take_model(&mut fields)?;
    let messages = fields.list("messages")?;
    let messages = messages.ok_or_else(|| Failure::field("messages", "this field is required"))?;
    let tools = take_tools(app, &mut fields)?;
    let variables = take_variables(&mut fields)?;
    let is_answered = fields.flag("add_generation_prompt")?.unwrap_or(true);
    let thinking = Thinking::take(&mut fields)?;
    let warnings = fields.warnings().clone();
    fields.finish()?;
    let conversation = Conversation {
        messages: read_messages(messages, &warnings)?,
        tools: tools.known.shown(),
        variables,
        thinking,
        goes_on: false,
        ends_with_message: !is_answered,
        warnings,
    };
    let prompt = render(app, conversation).await?;
    Ok(Json(json!({"prompt": prompt.text()})).into_response())
}
