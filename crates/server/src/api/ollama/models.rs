//! `/api/version`, `/api/tags`, `/api/ps`, `/api/show`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::facts::ModelFacts;
use super::{API_VERSION, time_text};
use crate::api::{fields_of, respond};
use crate::failure::{Failure, Shape};
use crate::models::entry::Entry;
use crate::site::Site;

/// Expiry of a model without a time limit: it stays until its memory is needed, or as long as the server runs.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": API_VERSION, "riffle": env!("CARGO_PKG_VERSION")}))
}

/// All models, loaded or not.
pub(crate) async fn tags(State(site): State<Arc<Site>>) -> Response {
    let list = async {
        let mut models = Vec::new();
        for entry in site.models.entries() {
            let facts = entry.facts().await?;
            let modified = time_text(facts.modified);
            put_entries(&mut models, entry, facts, &json!({"modified_at": modified}));
        }
        Ok(Json(json!({"models": models})).into_response())
    };
    respond(Shape::Ollama, list.await)
}

/// The loaded models.
pub(crate) async fn running(State(site): State<Arc<Site>>) -> Response {
    let list = async {
        let mut models = Vec::new();
        for loaded in site.models.all_loaded() {
            let entry = loaded.entry;
            let facts = entry.facts().await?;
            let expires = loaded.leaves.unwrap_or_else(|| SystemTime::now() + FOR_EVER);
            let more = json!({
                "expires_at": time_text(expires),
                "size_vram": if entry.on_device { facts.bytes } else { 0 },
                "context_length": entry.context_tokens,
            });
            put_entries(&mut models, entry, facts, &more);
        }
        Ok(Json(json!({"models": models})).into_response())
    };
    respond(Shape::Ollama, list.await)
}

/// Adds an entry for each name of a model.
fn put_entries(models: &mut Vec<Value>, entry: &Entry, facts: &ModelFacts, more: &Value) {
    for name in entry.names() {
        let mut fields = facts.entry(name.text);
        for (field, value) in more.as_object().into_iter().flatten() {
            fields[field.as_str()] = value.clone();
        }
        models.push(fields);
    }
}

/// Describes a model without loading it.
pub(crate) async fn show(State(site): State<Arc<Site>>, request: Request) -> Response {
    respond(Shape::Ollama, shown(&site, request).await)
}

async fn shown(site: &Site, request: Request) -> Result<Response, Failure> {
    let mut fields = fields_of(request).await?;
    if fields.peek("model").is_none() {
        fields.rename("name", "model")?;
    }
    let name = fields.text("model")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Failure::field("model", "this field is required"))?;
    fields.pass_over(&["name", "verbose", "system", "template", "options"]);
    fields.finish()?;
    let entry = &site.models.entries()[site.models.find(Some(&name))?];
    let facts = entry.facts().await?;
    let (config, family) = (&entry.config, &facts.family);
    let mut info = json!({
        "general.architecture": family,
        "general.parameter_count": facts.parameters,
    });
    for (field, value) in [
        ("context_length", config.max_position),
        ("embedding_length", config.hidden_size),
        ("block_count", config.layers),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("vocab_size", config.vocab_size),
    ] {
        info[format!("{family}.{field}")] = json!(value);
    }
    let mut capabilities = Vec::new();
    capabilities.push(if config.predicts_tokens {
        "completion"
    } else {
        "embedding"
    });
    if entry.fills_in {
        capabilities.push("insert");
    }
    if entry.takes_tools {
        capabilities.push("tools");
    }
    if entry.thinks {
        capabilities.push("thinking");
    }
    let body = json!({
        "modelfile": format!("FROM {name}\n"),
        "parameters": format!("num_ctx {}", entry.context_tokens),
        "template": "",
        "details": facts.details(),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": time_text(facts.modified),
    });
    Ok(Json(body).into_response())
}
