//! The adapters (LoRA) of the model: `GET` and `POST /lora-adapters`, in llama.cpp's shape.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::{body_of, respond};
use crate::app::App;
use crate::asking::adapters::scales_of;
use crate::failure::{Failure, Shape};
use crate::fields::Warnings;

/// Lists the adapters and their default scales.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(described(&app))
}

/// Sets the default scales from a list of `{"id": 0, "scale": 0.5}`. Omitted adapters get 0.
pub(crate) async fn set(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, set_scales(&app, request).await)
}

async fn set_scales(app: &App, request: Request) -> Result<Response, Failure> {
    let body = body_of(request).await?;
    let value =
        crate::json::parse(&body).map_err(|error| Failure::bad(format!("the body is not valid JSON: {error}")))?;
    let scales = scales_of(app, &value, "the body", &Warnings::default())?;
    app.set_adapter_scales(scales);
    Ok(Json(described(app)).into_response())
}

fn described(app: &App) -> Value {
    let scales = app.adapter_scales();
    let adapters = app.engine.adapters().iter().enumerate();
    adapters
        .map(|(id, adapter)| json!({"id": id, "path": adapter.path, "scale": scales.get(id)}))
        .collect()
}
