//! `/v1/models`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::app::App;
use crate::failure::Failure;

pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let mut models: Vec<Value> = app.model_names().map(|name| model(&app, name)).collect();
    models.extend(app.adapter_names().map(|(number, name)| adapter(&app, number, name)));
    Json(json!({"object": "list", "data": models}))
}

pub(crate) async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Failure> {
    let Path(name) = name.map_err(|rejection| Failure::bad(rejection.body_text()))?;
    app.find_model(Some(&name))?;
    Ok(Json(match app.adapter(&name) {
        Some(number) => adapter(&app, number, &name),
        None => model(&app, &name),
    }))
}

/// An adapter that requests may name as their model, in vLLM's shape.
fn adapter(app: &App, number: usize, name: &str) -> Value {
    let mut adapter = model(app, name);
    adapter["parent"] = json!(app.options.model_name);
    adapter["root"] = json!(app.engine.adapters()[number].path);
    adapter
}

fn model(app: &App, name: &str) -> Value {
    let (config, options) = (app.engine.model().config(), app.engine.options());
    json!({
        "id": name,
        "object": "model",
        "created": app.started,
        "owned_by": "riffle",
        "max_model_len": app.engine.plan().context_tokens,
        "meta": {
            "n_vocab": config.vocab_size,
            "n_ctx": app.engine.plan().context_tokens,
            "n_ctx_train": config.max_position,
            "n_embd": config.hidden_size,
        },
        "riffle": {
            "prefill": options.sequence.prefill.to_string(),
            "decode": options.sequence.decode.to_string(),
            "page_tokens": options.cache.page_tokens,
            "has_chat_template": app.engine.chat_template().is_some(),
        },
    })
}
