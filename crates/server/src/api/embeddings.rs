//! `/v1/embeddings`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use riffle_model::normalise;
use serde::Serialize;
use serde_json::{Value, json};

use super::{read, respond};
use crate::app::App;
use crate::asking::continuation::prompts_of;
use crate::asking::whole_texts::{TooLong, WholeTexts};
use crate::failure::{Failure, Shape};
use crate::fields::{Fields, unexpected};

/// Maximum number of texts of a request, the same as OpenAI's.
const MOST_TEXTS: usize = 2048;

/// A request for vectors.
struct Embeddings {
    model: String,
    texts: WholeTexts,
    is_base64: bool,
    dimensions: Option<usize>,
}

#[derive(Serialize)]
struct Body {
    object: &'static str,
    data: Vec<Entry>,
    model: String,
    usage: Value,
}

#[derive(Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// A vector as numbers, or as the base64 of its little-endian bytes.
#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

pub(crate) async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, embed(&app, request).await)
}

async fn embed(app: &Arc<App>, request: Request) -> Result<Response, Failure> {
    let asked = read(app, request, Embeddings::take).await?;
    let encoded = asked.texts.vectors(app).await?;
    let entry = |(index, mut vector): (usize, Vec<f32>)| {
        shorten(&mut vector, asked.dimensions);
        Entry {
            object: "embedding",
            index,
            embedding: if asked.is_base64 {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Vector::Base64(BASE64_STANDARD.encode(bytes))
            } else {
                Vector::Numbers(vector)
            },
        }
    };
    let body = Body {
        object: "list",
        data: encoded.results.into_iter().enumerate().map(entry).collect(),
        model: asked.model,
        usage: json!({"prompt_tokens": encoded.tokens, "total_tokens": encoded.tokens}),
    };
    Ok(Json(body).into_response())
}

impl Embeddings {
    fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Self, Failure> {
        let model = model_of(app, fields)?;
        let texts = prompts_of(app, fields.required("input")?, "input")?;
        if texts.len() > MOST_TEXTS {
            let problem = format!(
                "{} texts are more than the {MOST_TEXTS} of a request: send several requests",
                texts.len()
            );
            return Err(Failure::field("input", problem));
        }
        let is_base64 = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => return Err(unexpected("encoding_format", "\"float\" or \"base64\"", &json!(other))),
        };
        let prompt = prompt_of(app, fields.text("prompt_name")?.as_deref())?;
        fields.pass_over(&["user"]);
        Ok(Self {
            model,
            texts: WholeTexts {
                texts,
                prompt,
                too_long: TooLong::Refused,
            },
            is_base64,
            dimensions: take_dimensions(app, fields)?,
        })
    }
}

/// The model's name in the answer.
pub(super) fn model_of(app: &App, fields: &mut Fields) -> Result<String, Failure> {
    Ok(app
        .take_model(fields)?
        .unwrap_or_else(|| app.options.model_name.clone()))
}

/// Takes `dimensions`: the number of leading elements of a vector.
pub(super) fn take_dimensions(app: &App, fields: &mut Fields) -> Result<Option<usize>, Failure> {
    let hidden_size = app.engine.model().config().hidden_size;
    let width = app
        .engine
        .embedding()
        .map_or(hidden_size, |embedding| embedding.width(hidden_size));
    fields.count("dimensions", 1..=i64::try_from(width).unwrap_or(i64::MAX))
}

/// The model's prompt named in the field `prompt_name`. Without the field, the model's default prompt, or none.
pub(super) fn prompt_of(app: &App, asked: Option<&str>) -> Result<String, Failure> {
    let embedding = app.engine.embedding().map_err(|error| Failure::from_engine(&error))?;
    let Some(name) = asked.or(embedding.default_prompt.as_deref()) else {
        return Ok(String::new());
    };
    embedding.prompts.get(name).cloned().ok_or_else(|| {
        let known: Vec<&str> = embedding.prompts.keys().map(String::as_str).collect();
        let problem = if known.is_empty() {
            format!("{name:?} is unknown: this model brings no prompts; put them before the texts")
        } else {
            format!("{name:?} is unknown: this model brings {}", known.join(", "))
        };
        Failure::field("prompt_name", problem)
    })
}

/// Cuts a vector to its first elements, and scales it to length 1.
pub(super) fn shorten(vector: &mut Vec<f32>, dimensions: Option<usize>) {
    if let Some(dimensions) = dimensions.filter(|dimensions| *dimensions < vector.len()) {
        vector.truncate(dimensions);
        normalise(vector);
    }
}
