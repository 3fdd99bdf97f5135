//! `/v1/responses`.

use std::convert::Infallible;
use std::sync::Arc;

use async_stream::stream;
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::{Map, Value, json};

use super::input::{self, Input};
use super::items::Items;
use super::tools;
use crate::api::answers::spoken;
use crate::api::report::Usage;
use crate::api::{Answering, events, read, report, respond, send};
use crate::app::{App, new_id, unix_seconds};
use crate::asking::effort::Thinking;
use crate::asking::options::take_wishes;
use crate::asking::prompt::Conversation;
use crate::asking::question::{OngoingAnswers, Question};
use crate::asking::{Wishes, take_without_effect};
use crate::driver::{DriverEvent, Finished};
use crate::failure::{Failure, Shape};
use crate::fields::Fields;
use crate::forms::{Form, form_of};
use crate::site::Site;
use riffle_engine::StopReason;

/// Further parts of a response that clients may request. This server's answers have none of them.
const INCLUDED: &[&str] = &[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
];

/// A running response.
struct ResponseAnswer {
    app: Arc<App>,
    asked: OngoingAnswers,
    /// The response before any output.
    begun: Value,
    /// The input of a response to keep.
    kept_input: Option<Vec<Value>>,
}

/// A requested response.
struct Wanted {
    question: Question,
    is_streamed: bool,
    begun: Value,
    kept_input: Option<Vec<Value>>,
}

pub(crate) async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, begin(app, request).await)
}

async fn begin(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let wanted = read(&app, request, Wanted::take).await?;
    let is_streamed = wanted.is_streamed;
    send(wanted.ask(app).await?, is_streamed).await
}

/// Counts the tokens of the prompt.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, counted(app, request).await)
}

async fn counted(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let wanted = read(&app, request, Wanted::take).await?;
    let tokens = wanted.question.count(&app).await?;
    let body = json!({"object": "response.input_tokens", "input_tokens": tokens});
    Ok(Json(body).into_response())
}

/// Returns a kept response.
pub(crate) async fn one(State(site): State<Arc<Site>>, Path(id): Path<String>) -> Response {
    let found = site.models.kept_items().response(&id);
    let found = found.map(|response| Json(response).into_response());
    respond(Shape::OpenAi, found.ok_or_else(|| not_kept("id", &id)))
}

/// Forgets a response.
pub(crate) async fn delete(State(site): State<Arc<Site>>, Path(id): Path<String>) -> Response {
    let body = json!({"id": id, "object": "response", "deleted": true});
    let outcome = if site.models.kept_items().forget_response(&id) {
        Ok(Json(body).into_response())
    } else {
        Err(not_kept("id", &id))
    };
    respond(Shape::OpenAi, outcome)
}

fn not_kept(place: &str, id: &str) -> Failure {
    let shown: String = id.chars().take(80).collect();
    Failure {
        status: StatusCode::NOT_FOUND,
        ..Failure::field(
            place,
            format!("this server does not hold the response {shown:?} any more: send the whole conversation as input, what was read is found again"),
        )
    }
    .with_code("previous_response_not_found")
}

/// The response at its start. `shown` are the request's fields that it repeats.
fn as_begun(wishes: &Wishes, [instructions, previous, is_kept]: [Value; 3], shown: Map<String, Value>) -> Value {
    let mut begun = json!({
        "id": new_id("resp_"),
        "object": "response",
        "created_at": unix_seconds(),
        "completed_at": null,
        "status": "in_progress",
        "error": null,
        "incomplete_details": null,
        "instructions": instructions,
        "model": wishes.model,
        "output": [],
        "usage": null,
        "previous_response_id": previous,
        "store": is_kept,
        "background": false,
        "truncation": "disabled",
        "service_tier": "default",
        "max_tool_calls": null,
        "top_logprobs": 0,
        "temperature": wishes.generate.sampling.temperature,
        "top_p": wishes.generate.sampling.top_p,
        "presence_penalty": wishes.generate.sampling.presence_penalty,
        "frequency_penalty": wishes.generate.sampling.frequency_penalty,
    });
    for (name, value) in shown {
        begun[name] = value;
    }
    begun
}

impl Wanted {
    fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Self, Failure> {
        let shown = shown_as_asked(fields);
        let wishes = take_wishes(app, fields, &["max_output_tokens"])?;
        let instructions = fields.text("instructions")?;
        let thinking = Thinking::take(fields)?;
        let previous = fields.text("previous_response_id")?;
        let earlier = match &previous {
            Some(id) => app
                .kept_items
                .conversation(id)
                .ok_or_else(|| not_kept("previous_response_id", id))?,
            None => Vec::new(),
        };
        let is_kept = fields.flag("store")?.unwrap_or(true);
        let items = input::items_of(fields.required("input")?)?;
        let kept_input = is_kept.then(|| items.clone());
        let Input { mut messages, found } = input::read(earlier, items, &app.kept_items, fields.warnings())?;
        if let Some(instructions) = &instructions {
            messages.insert(0, json!({"role": "system", "content": instructions}));
        }
        let form = take_text_form(fields)?;
        let tools = tools::take_with(app, fields, found)?;
        let is_streamed = fields.flag("stream")?.unwrap_or(false);
        take_what_is_not_done(fields)?;
        let begun = as_begun(&wishes, [json!(instructions), json!(previous), json!(is_kept)], shown);
        let conversation = Conversation {
            messages,
            tools: tools.known.shown(),
            thinking,
            warnings: fields.warnings().clone(),
            ..Conversation::default()
        };
        Ok(Self {
            question: Question::new(app, wishes, conversation, form, tools)?,
            is_streamed,
            begun,
            kept_input,
        })
    }

    async fn ask(self, app: Arc<App>) -> Result<ResponseAnswer, Failure> {
        Ok(ResponseAnswer {
            asked: self.question.ask(&app).await?,
            begun: self.begun,
            kept_input: self.kept_input,
            app,
        })
    }
}

/// The request's fields that a response repeats, with their defaults.
fn shown_as_asked(fields: &Fields) -> Map<String, Value> {
    let defaults = [
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("max_output_tokens", Value::Null),
        ("text", json!({"format": {"type": "text"}})),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("metadata", json!({})),
        ("user", Value::Null),
        ("safety_identifier", Value::Null),
        ("prompt_cache_key", Value::Null),
    ];
    let defaults = defaults.into_iter();
    let mut shown: Map<String, Value> = defaults
        .map(|(name, value)| (name.to_owned(), fields.peek(name).cloned().unwrap_or(value)))
        .collect();
    if shown["text"].get("format").is_none() {
        shown["text"]["format"] = json!({"type": "text"});
    }
    for tool in shown["tools"].as_array_mut().into_iter().flatten() {
        for (name, value) in [
            ("description", Value::Null),
            ("parameters", Value::Null),
            ("strict", json!(false)),
        ] {
            if tool.get(name).is_none_or(Value::is_null) && tool["type"] == "function" {
                tool[name] = value;
            }
        }
    }
    shown
}

fn take_text_form(fields: &mut Fields) -> Result<Option<(Form, String)>, Failure> {
    let Some(mut text) = fields.object("text")? else {
        return Ok(None);
    };
    let place = text.name("format");
    let form = match text.object("format")? {
        None => None,
        Some(mut format) => {
            let form = form_of(&mut format, &place)?;
            format.finish()?;
            form
        }
    };
    text.ignore(
        "verbosity",
        &[json!("medium")],
        "how much a model writes is up to the prompt",
    );
    text.finish()?;
    Ok(form.map(|form| (form, place)))
}

/// Takes the fields without effect on an answer, and refuses unsupported ones.
fn take_what_is_not_done(fields: &mut Fields) -> Result<(), Failure> {
    take_without_effect(fields)?;
    fields.pass_over(&["max_tool_calls", "conversation_id"]);
    fields.refuse(
        "background",
        &[json!(false)],
        "a response is written while its client waits: leave it out",
    )?;
    fields.ignore(
        "truncation",
        &[json!("disabled")],
        "nothing is cut from an input: one that is too long is refused",
    );
    fields.refuse(
        "top_logprobs",
        &[json!(0)],
        "ask /v1/chat/completions for probabilities",
    )?;
    for included in fields.texts("include")? {
        if included == "message.output_text.logprobs" {
            return Err(Failure::field("include", "ask /v1/chat/completions for probabilities"));
        }
        if !INCLUDED.contains(&included.as_str()) {
            return Err(Failure::field(
                "include",
                format!("{included:?} is not known: leave it out"),
            ));
        }
    }
    fields.ignore("context_management", &[json!([])], "nothing is cut from an input");
    fields.refuse(
        "conversation",
        &[],
        "there are no stored conversations: go on from a response with previous_response_id",
    )?;
    fields.refuse("prompt", &[], "there are no stored prompts: send the text as input")?;
    if let Some(mut options) = fields.object("stream_options")? {
        options.pass_over(&["include_obfuscation"]);
        options.ignore_rest();
    }
    Ok(())
}

impl ResponseAnswer {
    /// The response at its end.
    fn complete(&self, items: &Items, finished: &Finished) -> Value {
        let is_cut = matches!(
            finished.report.generation.stop,
            StopReason::MaxTokens | StopReason::ContextFull | StopReason::Interrupted
        );
        let usage = Usage::total(std::iter::once(finished), 1);
        let mut response = self.begun.clone();
        response["status"] = json!(if is_cut { "incomplete" } else { "completed" });
        if is_cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        } else {
            response["completed_at"] = json!(unix_seconds());
        }
        let output = items.output(is_cut);
        self.app.kept_items.keep(&output);
        response["output"] = Value::Array(output);
        response["usage"] = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.written_tokens,
            "output_tokens_details": {"reasoning_tokens": self.asked.speech.thought_tokens()},
            "total_tokens": usage.prompt_tokens + usage.written_tokens,
        });
        response["riffle"] = report::riffle(&self.app, &self.asked.wishes, finished);
        if let Some(input) = &self.kept_input {
            self.app.kept_items.keep_response(&response, input);
        }
        response
    }
}

impl Answering for ResponseAnswer {
    type Part = Event;

    async fn whole(mut self) -> Result<Response, Failure> {
        let mut items = Items::default();
        while let Some((_, told)) = self.asked.answers.next().await {
            match told {
                DriverEvent::Accepted
                | DriverEvent::Reading(_)
                | DriverEvent::PromptProbabilities(_)
                | DriverEvent::Session(_) => {}
                DriverEvent::Token(token) => {
                    let text = spoken(&self.app.engine, &self.asked.speech, &token);
                    for piece in self.asked.speech.push(&text) {
                        drop(items.push(piece));
                    }
                }
                DriverEvent::Finished(finished) => {
                    for piece in self.asked.speech.finish() {
                        drop(items.push(piece));
                    }
                    drop(items.finish());
                    return Ok(Json(self.complete(&items, &finished)).into_response());
                }
                DriverEvent::Failed(failure) => return Err(failure),
            }
        }
        Err(Failure::stopping())
    }

    fn stream(mut self) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
        stream! {
            let mut number = 0;
            let mut numbered = move |kind: &str, mut event: Value| {
                event["type"] = json!(kind);
                event["sequence_number"] = json!(number);
                number += 1;
                events::named(kind, &event)
            };
            yield numbered("response.created", json!({"response": self.begun}));
            yield numbered("response.in_progress", json!({"response": self.begun}));
            let mut items = Items::default();
            while let Some((_, told)) = self.asked.answers.next().await {
                match told {
                    DriverEvent::Accepted | DriverEvent::PromptProbabilities(_) | DriverEvent::Session(_) => {}
                    DriverEvent::Reading(reading) => {
                        let (_, own) = report::progress(&reading);
                        yield numbered("response.in_progress", json!({"response": self.begun, "riffle": own}));
                    }
                    DriverEvent::Token(token) => {
                        let text = spoken(&self.app.engine, &self.asked.speech, &token);
                        for piece in self.asked.speech.push(&text) {
                            for (kind, event) in items.push(piece) {
                                yield numbered(kind, event);
                            }
                        }
                    }
                    DriverEvent::Finished(finished) => {
                        for piece in self.asked.speech.finish() {
                            for (kind, event) in items.push(piece) {
                                yield numbered(kind, event);
                            }
                        }
                        for (kind, event) in items.finish() {
                            yield numbered(kind, event);
                        }
                        let response = self.complete(&items, &finished);
                        let kind = if response["status"] == "completed" { "response.completed" } else { "response.incomplete" };
                        yield numbered(kind, json!({"response": response}));
                    }
                    DriverEvent::Failed(failure) => {
                        let mut response = self.begun.clone();
                        response["status"] = json!("failed");
                        response["error"] = json!({"code": "server_error", "message": failure.message});
                        yield numbered("response.failed", json!({"response": response}));
                        return;
                    }
                }
            }
        }
    }
}
