//! `/v1/models`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::models::entry::{Entry, Name};
use crate::site::Site;

pub(crate) async fn list(State(site): State<Arc<Site>>) -> Json<Value> {
    let entries = site.models.entries().iter();
    let of_entry = |entry| {
        Entry::names(entry)
            .map(|name| model(&site, entry, &name))
            .collect::<Vec<_>>()
    };
    let models: Vec<Value> = entries.flat_map(of_entry).collect();
    Json(json!({"object": "list", "data": models}))
}

pub(crate) async fn one(
    State(site): State<Arc<Site>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Failure> {
    let Path(asked) = name.map_err(|rejection| Failure::bad(rejection.body_text()))?;
    let (entry, name) = site.models.find_listed(&asked)?;
    Ok(Json(model(&site, entry, &name)))
}

/// A name that requests may use as their model. An adapter has its fields in vLLM's shape.
fn model(site: &Site, entry: &Entry, name: &Name<'_>) -> Value {
    let (config, options) = (&entry.config, &entry.options);
    let mut model = json!({
        "id": name.text,
        "object": "model",
        "created": site.models.started(),
        "owned_by": "riffle",
        "max_model_len": entry.context_tokens,
        "meta": {
            "n_vocab": config.vocab_size,
            "n_ctx": entry.context_tokens,
            "n_ctx_train": config.max_position,
            "n_embd": config.hidden_size,
        },
        "riffle": {
            "prefill": options.sequence.prefill.to_string(),
            "decode": options.sequence.decode.to_string(),
            "page_tokens": options.cache.page_tokens,
            "has_chat_template": entry.has_chat_template,
        },
    });
    if let Some(path) = name.adapter {
        model["parent"] = json!(entry.name);
        model["root"] = json!(path);
    }
    model
}
