//! `/v1/messages` and `/v1/messages/count_tokens`.

use std::convert::Infallible;
use std::sync::Arc;

use async_stream::stream;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use riffle_engine::StopReason;
use serde_json::{Value, json};

use super::blocks::Blocks;
use super::conversation;
use crate::api::answers::{Whole, collect, spoken};
use crate::api::{Answering, events, read, report, respond, send};
use crate::app::{App, new_id};
use crate::asking::effort::Thinking;
use crate::asking::options::take_wishes;
use crate::asking::prompt::{self, Conversation};
use crate::asking::question::{OngoingAnswers, Question};
use crate::asking::take_without_effect;
use crate::driver::{DriverEvent, Finished};
use crate::failure::{Failure, Shape};
use crate::fields::Fields;
use crate::forms::{Form, form_of};

/// Field with the form of an answer.
const OUTPUT_FORMAT: &str = "output_config.format";

/// A requested message.
struct Wanted {
    question: Question,
    is_streamed: bool,
}

/// A running message.
struct MessageAnswer {
    app: Arc<App>,
    asked: OngoingAnswers,
    id: String,
}

pub(crate) async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::Anthropic, begin(app, request).await)
}

async fn begin(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let wanted = read(&app, request, Wanted::take).await?;
    let answer = MessageAnswer {
        asked: wanted.question.ask(&app).await?,
        id: new_id("msg_"),
        app,
    };
    send(answer, wanted.is_streamed).await
}

pub(crate) async fn count(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::Anthropic, counted(app, request).await)
}

async fn counted(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let conversation = read(&app, request, |app, fields| {
        app.take_model(fields)?;
        let (conversation, _) = conversation::take(app, fields)?;
        let (_, thinking) = take_output(fields)?;
        take_what_is_not_done(fields)?;
        Ok(Conversation {
            thinking,
            ..conversation
        })
    });
    let tokens = prompt::count(&app, conversation.await?).await?;
    Ok(Json(json!({"input_tokens": tokens})).into_response())
}

impl Wanted {
    fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Self, Failure> {
        // Other APIs have another name for this field.
        fields.rename("stop_sequences", "stop")?;
        let wishes = take_wishes(app, fields, &["max_tokens"])?;
        if !wishes.has_length {
            return Err(Failure::field("max_tokens", "this field is required"));
        }
        if wishes.generate.max_tokens == 0 {
            return Err(Failure::field("max_tokens", "it must be at least 1"));
        }
        let (conversation, tools) = conversation::take(app, fields)?;
        let is_streamed = fields.flag("stream")?.unwrap_or(false);
        let (form, thinking) = take_output(fields)?;
        let form = form.map(|form| (form, OUTPUT_FORMAT.to_owned()));
        let conversation = Conversation {
            thinking,
            ..conversation
        };
        take_what_is_not_done(fields)?;
        Ok(Self {
            question: Question::new(app, wishes, conversation, form, tools)?,
            is_streamed,
        })
    }
}

/// Takes the required form of the answer, and the effort of thinking.
fn take_output(fields: &mut Fields) -> Result<(Option<Form>, Thinking), Failure> {
    let mut thinking = Thinking::default();
    let mut form = None;
    if let Some(mut output) = fields.object("output_config")? {
        thinking.take_word(&mut output, "effort")?;
        if let Some(mut format) = output.object("format")? {
            form = form_of(&mut format, OUTPUT_FORMAT)?;
            format.finish()?;
        }
        output.ignore_rest();
    }
    // The older name of the form.
    if let Some(mut format) = fields.object("output_format")? {
        form = form_of(&mut format, "output_format")?;
        format.finish()?;
    }
    thinking.take_switch(fields)?;
    Ok((form, thinking))
}

/// Takes the fields that do not change an answer. A request for tools of another server is refused.
fn take_what_is_not_done(fields: &mut Fields) -> Result<(), Failure> {
    take_without_effect(fields)?;
    fields.pass_over(&["speed", "diagnostics"]);
    fields.ignore(
        "context_management",
        &[json!({}), json!([])],
        "nothing is cut from a conversation",
    );
    for field in ["mcp_servers", "container"] {
        fields.refuse(field, &[json!([])], "this server does not do that: leave it out")?;
    }
    Ok(())
}

fn stop_reason(stop: &StopReason, calls: usize) -> (&'static str, Option<&str>) {
    match stop {
        StopReason::MaxTokens | StopReason::ContextFull | StopReason::Interrupted => ("max_tokens", None),
        StopReason::StopString(text) => ("stop_sequence", Some(text)),
        StopReason::EndOfText | StopReason::Loop { .. } if calls > 0 => ("tool_use", None),
        StopReason::EndOfText | StopReason::Loop { .. } => ("end_turn", None),
    }
}

fn usage_of(finished: &Finished) -> Value {
    let report = &finished.report;
    json!({
        "input_tokens": report.prompt_tokens - report.reused_tokens,
        "cache_read_input_tokens": report.reused_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": report.generation.tokens.len(),
    })
}

impl Answering for MessageAnswer {
    type Part = Event;

    async fn whole(self) -> Result<Response, Failure> {
        let wholes = collect(&self.app.engine, self.asked.answers, &self.asked.speech).await?;
        let whole = wholes.into_iter().next().ok_or_else(Failure::stopping)?;
        let content = content_of(&whole);
        let finished = whole.finished.ok_or_else(Failure::stopping)?;
        let (reason, stop) = stop_reason(&finished.report.generation.stop, whole.calls.len());
        let body = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.asked.wishes.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage_of(&finished),
            "riffle": report::riffle(&self.app, &self.asked.wishes, &finished),
        });
        Ok(Json(body).into_response())
    }

    fn stream(mut self) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
        stream! {
            let begun = json!({"type": "message_start", "message": {
                "id": self.id,
                "type": "message",
                "role": "assistant",
                "model": self.asked.wishes.model,
                "content": [],
                "stop_reason": null,
                "stop_sequence": null,
                "usage": {"input_tokens": self.asked.prompt_tokens, "output_tokens": 0},
            }});
            yield events::named("message_start", &begun);
            let mut blocks = Blocks::default();
            while let Some((_, told)) = self.asked.answers.next().await {
                match told {
                    DriverEvent::Accepted | DriverEvent::PromptProbabilities(_) | DriverEvent::Session(_) => {}
                    DriverEvent::Reading(reading) => {
                        let (_, own) = report::progress(&reading);
                        yield events::named("ping", &json!({"type": "ping", "riffle": own}));
                    }
                    DriverEvent::Token(token) => {
                        let text = spoken(&self.app.engine, &self.asked.speech, &token);
                        for piece in self.asked.speech.push(&text) {
                            for (name, event) in blocks.push(piece) {
                                yield events::named(name, &event);
                            }
                        }
                    }
                    DriverEvent::Finished(finished) => {
                        for piece in self.asked.speech.finish() {
                            for (name, event) in blocks.push(piece) {
                                yield events::named(name, &event);
                            }
                        }
                        for (name, event) in blocks.finish() {
                            yield events::named(name, &event);
                        }
                        let (reason, stop) = stop_reason(&finished.report.generation.stop, self.asked.speech.calls());
                        let end = json!({
                            "type": "message_delta",
                            "delta": {"stop_reason": reason, "stop_sequence": stop},
                            "usage": usage_of(&finished),
                            "riffle": report::riffle(&self.app, &self.asked.wishes, &finished),
                        });
                        yield events::named("message_delta", &end);
                        yield events::named("message_stop", &json!({"type": "message_stop"}));
                    }
                    DriverEvent::Failed(failure) => {
                        yield events::named("error", &failure.body(Shape::Anthropic));
                        return;
                    }
                }
            }
        }
    }
}

/// The blocks of a whole message: thoughts, text, calls.
fn content_of(whole: &Whole) -> Vec<Value> {
    let mut content = Vec::new();
    if !whole.thought.is_empty() {
        content.push(json!({"type": "thinking", "thinking": whole.thought, "signature": ""}));
    }
    if !whole.text.is_empty() || whole.calls.is_empty() {
        content.push(json!({"type": "text", "text": whole.text}));
    }
    for call in &whole.calls {
        content.push(json!({
            "type": "tool_use",
            "id": new_id("toolu_"),
            "name": call.name,
            "input": call.arguments(),
        }));
    }
    content
}
