//! `/api/embed` and the older `/api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use riffle_model::normalise;
use serde::Serialize;

use super::options::take_model_name;
use crate::api::embeddings::{model_of, prompt_of, shorten, take_dimensions};
use crate::api::{read, respond};
use crate::app::App;
use crate::asking::continuation::Prompt;
use crate::asking::whole_texts::{Encoded, TooLong, WholeTexts};
use crate::failure::{Failure, Shape};
use crate::fields::Fields;

/// A request for vectors.
struct Embed {
    model: String,
    texts: Vec<String>,
    too_long: TooLong,
    dimensions: Option<usize>,
}

#[derive(Serialize)]
struct Body {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// The answer of the older path, `/api/embeddings`: one vector.
#[derive(Serialize)]
struct One {
    embedding: Vec<f32>,
}

pub(crate) async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::Ollama, embed(&app, request).await)
}

pub(crate) async fn answer_one(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::Ollama, embed_one(&app, request).await)
}

async fn embed(app: &Arc<App>, request: Request) -> Result<Response, Failure> {
    let begun = Instant::now();
    let asked = read(app, request, |app, fields| {
        let texts = fields.texts("input")?;
        Embed::take(app, fields, texts)
    });
    let (model, encoded) = asked.await?.vectors(app).await?;
    let body = Body {
        model,
        embeddings: encoded.results,
        total_duration: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
        load_duration: 0,
        prompt_eval_count: encoded.tokens,
    };
    Ok(Json(body).into_response())
}

async fn embed_one(app: &Arc<App>, request: Request) -> Result<Response, Failure> {
    let asked = read(app, request, |app, fields| {
        let texts = fields.text("prompt")?.into_iter().collect();
        Embed::take(app, fields, texts)
    });
    let (_, encoded) = asked.await?.vectors(app).await?;
    let embedding = encoded.results.into_iter().next().unwrap_or_default();
    Ok(Json(One { embedding }).into_response())
}

impl Embed {
    fn take(app: &Arc<App>, fields: &mut Fields, texts: Vec<String>) -> Result<Self, Failure> {
        take_model_name(app, fields)?;
        let is_cut = fields.flag("truncate")?.unwrap_or(true);
        // The server sets the context and the threads.
        fields.pass_over(&["options", "keep_alive"]);
        Ok(Self {
            model: model_of(app, fields)?,
            // One empty text only requests that the model is loaded.
            texts: if texts == [""] { Vec::new() } else { texts },
            too_long: if is_cut { TooLong::Cut } else { TooLong::Refused },
            dimensions: take_dimensions(app, fields)?,
        })
    }

    /// The model's name and the vectors, scaled to length 1 like Ollama's.
    async fn vectors(self, app: &Arc<App>) -> Result<(String, Encoded), Failure> {
        let texts = WholeTexts {
            texts: self.texts.into_iter().map(Prompt::Text).collect(),
            prompt: prompt_of(app, None)?,
            too_long: self.too_long,
        };
        let mut encoded = texts.vectors(app).await?;
        for vector in &mut encoded.results {
            shorten(vector, self.dimensions);
            normalise(vector);
        }
        Ok((self.model, encoded))
    }
}
