//! `/completion`, `/props` and `/slots` of llama.cpp's server.

use std::convert::Infallible;
use std::sync::Arc;

use async_stream::stream;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use riffle_engine::StopReason;
use serde_json::{Value, json};

use super::answers::collect;
use super::{Answering, events, read, report, respond, send};
use crate::app::App;
use crate::asking::continuation::{Prompt, continue_prompts, prompts_of};
use crate::asking::options::take_wishes;
use crate::asking::question::OngoingAnswers;
use crate::asking::{Wishes, take_without_effect};
use crate::driver::{DriverEvent, Finished};
use crate::failure::{Failure, Shape};
use crate::fields::Fields;
use crate::forms::{Form, take_form};
use crate::models::choice::model_of_query;
use crate::models::entry::Entry;
use crate::site::Site;

/// A request for continuations.
pub(super) struct Completion {
    wishes: Wishes,
    prompts: Vec<Prompt>,
    form: Option<(Form, String)>,
    is_streamed: bool,
    /// Paths of the values that the answer is to have, such as `timings/prompt_ms`; empty for all.
    response_fields: Vec<String>,
}

/// Running continuations.
struct CompletionAnswer {
    app: Arc<App>,
    asked: OngoingAnswers,
    /// Prompts that were sent as texts, by their index.
    prompts: Vec<Option<String>>,
    response_fields: Vec<String>,
}

pub(crate) async fn complete(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, begin(app, request).await)
}

async fn begin(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let completion = read(&app, request, |app, fields| {
        let prompts = prompts_of(app, fields.required("prompt")?, "prompt")?;
        Completion::take(app, fields, prompts)
    });
    completion.await?.answer(app).await
}

impl Completion {
    /// Requests the continuations and answers with them.
    pub(super) async fn answer(self, app: Arc<App>) -> Result<Response, Failure> {
        let Self {
            wishes,
            prompts,
            form,
            is_streamed,
            response_fields,
        } = self;
        let text_of = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => Some(text.clone()),
            Prompt::Tokens(_) | Prompt::Gap(_) => None,
        };
        let texts = prompts.iter().map(text_of).collect();
        let asked = continue_prompts(&app, wishes, prompts, form).await?;
        let answer = CompletionAnswer {
            app,
            asked,
            prompts: texts,
            response_fields,
        };
        send(answer, is_streamed).await
    }

    /// Reads the fields of a request for continuations of `prompts`.
    pub(super) fn take(app: &Arc<App>, fields: &mut Fields, prompts: Vec<Prompt>) -> Result<Self, Failure> {
        let mut wishes = take_wishes(app, fields, &["n_predict", "max_tokens"])?;
        // A schema without OpenAI's object around it.
        if prompts.iter().any(|prompt| matches!(prompt, Prompt::Gap(_))) {
            wishes.end_behind_gap(app);
        }
        let form = match fields.value("json_schema") {
            Some(schema) => Some((Form::schema(schema, "json_schema")?, "json_schema".to_owned())),
            None => take_form(fields)?,
        };
        fields.refuse(
            "grammar",
            &[json!("")],
            "send a JSON schema as json_schema, or a Lark grammar as response_format",
        )?;
        // Answers always contain tokens.
        fields.pass_over(&["return_tokens"]);
        let response_fields = fields.texts("response_fields")?;
        take_without_effect(fields)?;
        Ok(Self {
            wishes,
            prompts,
            form,
            is_streamed: fields.flag("stream")?.unwrap_or(false),
            response_fields,
        })
    }
}

/// The stop reason of an answer, and the stop text that ended it.
fn stop_of(stop: &StopReason) -> (&'static str, &str) {
    match stop {
        StopReason::MaxTokens | StopReason::ContextFull | StopReason::Interrupted => ("limit", ""),
        StopReason::StopString(text) => ("word", text),
        StopReason::EndOfText | StopReason::Loop { .. } => ("eos", ""),
    }
}

/// The values of an answer at `paths`, each under its path, as llama.cpp's server has them. Without paths, the whole
/// answer.
fn chosen(body: Value, paths: &[String]) -> Value {
    if paths.is_empty() {
        return body;
    }
    let found = paths.iter().filter_map(|path| {
        let value = path.split('/').try_fold(&body, |value, name| value.get(name))?;
        Some((path.clone(), value.clone()))
    });
    Value::Object(found.collect())
}

impl CompletionAnswer {
    fn end(&self, index: usize, content: &str, tokens: &[u32], finished: &Finished) -> Value {
        let report = &finished.report;
        let (stop_type, stopping_word) = stop_of(&report.generation.stop);
        let sampling = &self.asked.wishes.generate.sampling;
        let mut body = json!({
            "index": index,
            "content": content,
            "tokens": tokens,
            "id_slot": 0,
            "stop": true,
            "model": self.asked.wishes.model,
            "tokens_predicted": report.generation.tokens.len(),
            "tokens_evaluated": report.prompt_tokens,
            "tokens_cached": report.reused_tokens,
            "generation_settings": {
                "n_ctx": self.app.engine.plan().context_tokens,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repeat_penalty": sampling.repeat_penalty,
                "n_predict": self.asked.wishes.generate.max_tokens,
            },
            "prompt": self.prompts[index],
            "has_new_line": content.contains('\n'),
            "truncated": false,
            "stop_type": stop_type,
            "stopping_word": stopping_word,
        });
        report::put_end(&mut body, &self.app, &self.asked.wishes, finished);
        chosen(body, &self.response_fields)
    }
}

impl Answering for CompletionAnswer {
    type Part = Event;

    async fn whole(mut self) -> Result<Response, Failure> {
        let answers = std::mem::take(&mut self.asked.answers);
        let wholes = collect(&self.app.engine, answers, &self.asked.speech).await?;
        let mut bodies = Vec::with_capacity(wholes.len());
        for (index, whole) in wholes.iter().enumerate() {
            let finished = whole.finished.as_ref().ok_or_else(Failure::stopping)?;
            let tokens: Vec<u32> = whole.tokens.iter().map(|token| token.token).collect();
            bodies.push(self.end(index, &whole.text, &tokens, finished));
        }
        // The answer to one prompt is not in a list.
        let body = if bodies.len() == 1 {
            bodies.remove(0)
        } else {
            bodies.into()
        };
        Ok(Json(body).into_response())
    }

    fn stream(mut self) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
        stream! {
            while let Some((index, told)) = self.asked.answers.next().await {
                match told {
                    DriverEvent::Accepted | DriverEvent::PromptProbabilities(_) | DriverEvent::Session(_) => {}
                    DriverEvent::Reading(reading) => {
                        if self.asked.wishes.extras.shows_progress {
                            let (progress, _) = report::progress(&reading);
                            let body = json!({"index": index, "content": "", "tokens": [], "stop": false, "prompt_progress": progress});
                            yield events::data(&body);
                        }
                    }
                    DriverEvent::Token(token) => {
                        let body = json!({"index": index, "content": token.text, "tokens": [token.token], "stop": false, "id_slot": 0});
                        yield events::data(&body);
                    }
                    DriverEvent::Finished(finished) => yield events::data(&self.end(index, "", &[], &finished)),
                    DriverEvent::Failed(failure) => {
                        yield events::data(&failure.body(Shape::OpenAi));
                        return;
                    }
                }
            }
        }
    }
}

/// Facts about a model and the defaults of requests.
pub(crate) async fn props(State(site): State<Arc<Site>>, uri: Uri) -> Response {
    let found = entry_of(&site, &uri).map(|entry| Json(props_of(&site, entry)).into_response());
    respond(Shape::OpenAi, found)
}

fn props_of(site: &Site, entry: &Entry) -> Value {
    let sampling = riffle_engine::SamplingOptions::recommended(&entry.generation);
    let settings = json!({
        "n_ctx": entry.context_tokens,
        "params": {
            "n_predict": site.options.default_max_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repeat_penalty,
            "repeat_last_n": sampling.repeat_window,
        },
    });
    json!({
        "default_generation_settings": settings,
        "total_slots": site.options.parallel,
        "model_alias": entry.name,
        "model_path": entry.path.display().to_string(),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("riffle ", env!("CARGO_PKG_VERSION")),
    })
}

/// One slot for each request that runs at a time. Requests have no fixed slots: the first ones are busy.
pub(crate) async fn slots(State(site): State<Arc<Site>>, uri: Uri) -> Response {
    let found = entry_of(&site, &uri).map(|entry| {
        let (busy, context) = (entry.metrics.running(), entry.context_tokens);
        let slot = |id| json!({"id": id, "n_ctx": context, "is_processing": id < busy});
        let slots: Value = (0..site.options.parallel).map(slot).collect();
        Json(slots).into_response()
    });
    respond(Shape::OpenAi, found)
}

/// The model named in a query, or the first.
fn entry_of<'s>(site: &'s Site, uri: &Uri) -> Result<&'s Entry, Failure> {
    let index = site.models.find(model_of_query(uri.query()).as_deref())?;
    Ok(&site.models.entries()[index])
}
