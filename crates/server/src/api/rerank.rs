//! `/v1/rerank`, in the shape of Jina, Cohere, vLLM and llama.cpp.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use riffle_model::RankingText;
use serde_json::{Value, json};

use super::embeddings::model_of;
use super::{read, respond};
use crate::app::{App, new_id};
use crate::asking::whole_texts::scores;
use crate::failure::{Failure, Shape};
use crate::fields::{Fields, text_of};

/// Maximum number of documents of a request.
const MOST_DOCUMENTS: usize = 1024;

/// Documents to rank.
struct Rerank {
    model: String,
    documents: Vec<String>,
    prompts: Vec<RankingText>,
    most: usize,
    returns_documents: bool,
}

pub(crate) async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, rerank(&app, request).await)
}

async fn rerank(app: &Arc<App>, request: Request) -> Result<Response, Failure> {
    let asked = read(app, request, Rerank::take).await?;
    let encoded = scores(app, asked.prompts).await?;
    let mut ranked: Vec<(usize, f32)> = encoded.results.iter().map(|score| score[0]).enumerate().collect();
    ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let result = |(index, score): &(usize, f32)| {
        let mut result = json!({"index": index, "relevance_score": score});
        if asked.returns_documents {
            result["document"] = json!({"text": asked.documents[*index]});
        }
        result
    };
    let results: Vec<Value> = ranked.iter().take(asked.most).map(result).collect();
    let body = json!({
        "id": new_id("rerank-"),
        "object": "list",
        "model": asked.model,
        "results": results,
        "usage": {"prompt_tokens": encoded.tokens, "total_tokens": encoded.tokens},
    });
    Ok(Json(body).into_response())
}

impl Rerank {
    fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Self, Failure> {
        let model = model_of(app, fields)?;
        let query = fields.required_text("query")?;
        let documents = take_documents(fields)?;
        let most = fields
            .count("top_n", 1..=i64::from(i32::MAX))?
            .unwrap_or(documents.len());
        let returns_documents = fields.flag("return_documents")?.unwrap_or(false);
        let instruction = fields.text("instruction")?;
        fields.pass_over(&["user"]);
        let reranking = app.engine.reranking().map_err(|error| Failure::from_engine(&error))?;
        if instruction.is_some() && !reranking.takes_instruction() {
            return Err(Failure::field(
                "instruction",
                "this model's prompt has no place for it: leave it out",
            ));
        }
        let prompt = |document: &String| reranking.text(instruction.as_deref(), &query, document);
        Ok(Self {
            model,
            prompts: documents.iter().map(prompt).collect(),
            documents,
            most,
            returns_documents,
        })
    }
}

/// Takes `documents`: texts, or objects with a `text`.
fn take_documents(fields: &mut Fields) -> Result<Vec<String>, Failure> {
    let list = fields.list("documents")?.unwrap_or_default();
    if list.is_empty() {
        return Err(Failure::field("documents", "it must be a list of at least one text"));
    }
    if list.len() > MOST_DOCUMENTS {
        let problem = format!(
            "{} documents are more than the {MOST_DOCUMENTS} of a request: send several requests",
            list.len()
        );
        return Err(Failure::field("documents", problem));
    }
    let warnings = fields.warnings().clone();
    let documents = list.into_iter().enumerate().map(|(at, document)| {
        let place = format!("documents[{at}]");
        match document {
            object @ Value::Object(_) => {
                let mut object = Fields::from_value(object, &place, &warnings)?;
                let text = object.required_text("text")?;
                object.finish()?;
                Ok(text)
            }
            text => text_of(text, &place),
        }
    });
    documents.collect()
}
