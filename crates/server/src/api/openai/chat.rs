//! `/v1/chat/completions`.

use std::convert::Infallible;
use std::sync::Arc;

use async_stream::stream;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::{Value, json};

use super::chunks::{FINGERPRINT, Head, StreamUsage, call_value, delta_of};
use super::tools::{self, Tools};
use super::{messages, probabilities};
use crate::api::answers::{Whole, collect, spoken};
use crate::api::report::{Usage, finish_reason};
use crate::api::{Answering, events, read, report, respond, send};
use crate::app::App;
use crate::asking::effort::Thinking;
use crate::asking::options::take_wishes;
use crate::asking::prompt::{Conversation, take_variables};
use crate::asking::question::{OngoingAnswers, Question};
use crate::asking::{take_options, take_without_effect};
use crate::driver::{DriverEvent, Finished, Token};
use crate::failure::{Failure, Shape};
use crate::fields::Fields;
use crate::forms::take_form;
use crate::speech::Speech;

/// Maximum number of likeliest tokens per request.
pub(super) const MOST_LIKELIEST: i64 = 20;

/// A requested chat completion.
struct Chat {
    question: Question,
    is_streamed: bool,
    stream_usage: StreamUsage,
}

/// A running chat completion.
struct ChatAnswer {
    app: Arc<App>,
    asked: OngoingAnswers,
    head: Head,
    choices: usize,
    stream_usage: StreamUsage,
}

pub(crate) async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, begin(app, request).await)
}

async fn begin(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let chat = read(&app, request, Chat::take).await?;
    let is_streamed = chat.is_streamed;
    send(chat.ask(app).await?, is_streamed).await
}

/// Counts the tokens of the prompt.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, counted(app, request).await)
}

async fn counted(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let chat = read(&app, request, Chat::take).await?;
    let tokens = chat.question.count(&app).await?;
    let body = json!({"object": "chat.completion.input_tokens", "input_tokens": tokens});
    Ok(Json(body).into_response())
}

impl Chat {
    fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Self, Failure> {
        take_options(app, fields)?;
        let mut wishes = take_wishes(app, fields, &["max_completion_tokens", "max_tokens", "n_predict"])?;
        let shows_logs = fields.flag("logprobs")?.unwrap_or(false);
        let likeliest = fields.count("top_logprobs", 0..=MOST_LIKELIEST)?;
        if likeliest.is_some_and(|count| count > 0) && !shows_logs {
            return Err(Failure::field("top_logprobs", "it needs logprobs to be true"));
        }
        wishes.generate.probabilities = shows_logs.then_some(likeliest.unwrap_or(0));
        wishes.prompt_probabilities = fields.count("prompt_logprobs", 0..=MOST_LIKELIEST)?;
        let thinking = Thinking::take(fields)?;
        let tools = tools::take(app, fields)?;
        let form = take_form(fields)?;
        let name = fields.name("messages");
        let list = fields.list("messages")?;
        let list = list.ok_or_else(|| Failure::field(name, "this field is required"))?;
        let conversation = Conversation {
            thinking,
            ..take_conversation(fields, messages::read(list, fields.warnings())?, &tools)?
        };
        let is_streamed = fields.flag("stream")?.unwrap_or(false);
        let stream_usage = take_stream_options(fields, is_streamed)?;
        take_without_effect(fields)?;
        let mut question = Question::new(app, wishes, conversation, form, tools)?;
        question.choices = fields.count("n", 1..=64)?.unwrap_or(1);
        Ok(Self {
            question,
            is_streamed,
            stream_usage,
        })
    }

    async fn ask(self, app: Arc<App>) -> Result<ChatAnswer, Failure> {
        let choices = self.question.choices;
        let asked = self.question.ask(&app).await?;
        Ok(ChatAnswer {
            head: Head::new("chatcmpl-", &asked.wishes.model),
            asked,
            choices,
            stream_usage: self.stream_usage,
            app,
        })
    }
}

fn take_conversation(fields: &mut Fields, messages: Vec<Value>, tools: &Tools) -> Result<Conversation, Failure> {
    let variables = take_variables(fields)?;
    let is_assistants = messages.last().is_some_and(|last| last["role"] == "assistant");
    let goes_on = fields.flag("continue_final_message")?.unwrap_or(false);
    if goes_on && !is_assistants {
        return Err(Failure::field(
            "continue_final_message",
            "the last message must be the assistant's",
        ));
    }
    fields.refuse(
        "add_generation_prompt",
        &[json!(true), json!(!goes_on)],
        "an answer begins behind the generation prompt: leave it out",
    )?;
    Ok(Conversation {
        messages,
        tools: tools.known.shown(),
        variables,
        goes_on,
        warnings: fields.warnings().clone(),
        ..Conversation::default()
    })
}

pub(super) fn take_stream_options(fields: &mut Fields, is_streamed: bool) -> Result<StreamUsage, Failure> {
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(StreamUsage::default());
    };
    if !is_streamed {
        return Err(Failure::field("stream_options", "it needs stream to be true"));
    }
    let is_at_end = options.flag("include_usage")?.unwrap_or(false);
    // An option of vLLM.
    let is_in_chunks = options.flag("continuous_usage_stats")?.unwrap_or(false);
    options.pass_over(&["include_obfuscation"]);
    options.ignore_rest();
    Ok(StreamUsage {
        is_at_end,
        is_in_chunks: is_at_end && is_in_chunks,
    })
}

impl Answering for ChatAnswer {
    type Part = Event;

    async fn whole(self) -> Result<Response, Failure> {
        let wholes = collect(&self.app.engine, self.asked.answers, &self.asked.speech).await?;
        let finished: Vec<&Finished> = wholes.iter().filter_map(|whole| whole.finished.as_deref()).collect();
        let thoughts = wholes.iter().map(|whole| whole.thought_tokens).sum();
        let usage = Usage::total(finished.iter().copied(), self.choices).with_thoughts(thoughts);
        let choices: Result<Vec<Value>, Failure> = wholes
            .iter()
            .enumerate()
            .map(|(index, whole)| choice(&self.app, index, whole))
            .collect();
        let mut body = json!({
            "id": self.head.id,
            "object": "chat.completion",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices?,
            "usage": usage.openai(),
        });
        if let Some(first) = finished.first() {
            report::put_end(&mut body, &self.app, &self.asked.wishes, first);
        }
        if self.asked.wishes.prompt_probabilities.is_some() {
            let tokenizer = self
                .app
                .engine
                .tokenizer()
                .map_err(|error| Failure::from_engine(&error))?;
            body["prompt_logprobs"] = probabilities::of_prompt(tokenizer, &wholes[0].prompt_probabilities);
        }
        Ok(Json(body).into_response())
    }

    fn stream(mut self) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
        stream! {
            let count = self.asked.answers.len();
            let mut speeches = vec![self.asked.speech.clone(); count];
            let (mut calls, mut written) = (vec![0; count], vec![0; count]);
            let mut finished: Vec<Box<Finished>> = Vec::new();
            for index in 0..count {
                yield events::data(&self.head.chunk(index, &json!({"role": "assistant", "content": null}), None));
            }
            while let Some((index, told)) = self.asked.answers.next().await {
                match told {
                    DriverEvent::Accepted | DriverEvent::PromptProbabilities(_) | DriverEvent::Session(_) => {}
                    DriverEvent::Reading(reading) => {
                        let mut chunk = self.head.chunk(index, &json!({}), None);
                        if self.asked.wishes.generate.probabilities.is_some() {
                            // Clients that request probabilities expect this field in every chunk.
                            chunk["choices"][0]["logprobs"] = json!({"content": [], "refusal": null});
                        }
                        report::put_progress(&mut chunk, &self.asked.wishes, &reading);
                        self.stream_usage.put(&mut chunk, self.asked.prompt_tokens, written[index]);
                        yield events::data(&chunk);
                    }
                    DriverEvent::Token(token) => {
                        let text = spoken(&self.app.engine, &speeches[index], &token);
                        let pieces = speeches[index].push(&text);
                        written[index] += 1;
                        for mut chunk in self.chunks(index, pieces, &mut calls[index], Some(&token)) {
                            self.stream_usage.put(&mut chunk, self.asked.prompt_tokens, written[index]);
                            yield events::data(&chunk);
                        }
                    }
                    DriverEvent::Finished(end) => {
                        let pieces = speeches[index].finish();
                        for chunk in self.chunks(index, pieces, &mut calls[index], None) {
                            yield events::data(&chunk);
                        }
                        let reason = finish_reason(&end.report.generation.stop, calls[index]);
                        let mut chunk = self.head.chunk(index, &json!({}), Some(reason));
                        report::put_end(&mut chunk, &self.app, &self.asked.wishes, &end);
                        self.stream_usage.put(&mut chunk, self.asked.prompt_tokens, written[index]);
                        yield events::data(&chunk);
                        finished.push(end);
                    }
                    DriverEvent::Failed(failure) => {
                        yield events::data(&failure.body(Shape::OpenAi));
                        return;
                    }
                }
            }
            if self.stream_usage.is_at_end {
                let mut chunk = self.head.empty();
                let thoughts = speeches.iter().map(Speech::thought_tokens).sum();
                let usage = Usage::total(finished.iter().map(|end| &**end), self.choices).with_thoughts(thoughts);
                chunk["usage"] = usage.openai();
                yield events::data(&chunk);
            }
            yield events::done();
        }
    }
}

impl ChatAnswer {
    /// The chunks for the pieces of a token. Its probabilities are in the first.
    fn chunks(
        &self,
        index: usize,
        pieces: Vec<crate::speech::AnswerPiece>,
        calls: &mut usize,
        token: Option<&Token>,
    ) -> Vec<Value> {
        let mut chunks: Vec<Value> = pieces
            .into_iter()
            .map(|piece| self.head.chunk(index, &delta_of(piece, calls), None))
            .collect();
        let tokenizer = self.app.engine.tokenizer().ok();
        if let Some((probabilities, tokenizer)) = token.and_then(|token| token.probabilities.as_ref()).zip(tokenizer) {
            if chunks.is_empty() {
                chunks.push(self.head.chunk(index, &json!({}), None));
            }
            chunks[0]["choices"][0]["logprobs"] =
                json!({"content": [probabilities::chat(tokenizer, probabilities)], "refusal": null});
        }
        chunks
    }
}

/// One choice of a whole chat completion.
fn choice(app: &App, index: usize, whole: &Whole) -> Result<Value, Failure> {
    let tokenizer = app.engine.tokenizer().map_err(|error| Failure::from_engine(&error))?;
    let mut message = json!({"role": "assistant", "content": whole.text, "refusal": null});
    if !whole.thought.is_empty() {
        message["reasoning_content"] = whole.thought.clone().into();
    }
    if !whole.calls.is_empty() {
        message["tool_calls"] = whole.calls.iter().map(call_value).collect();
        if whole.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    let logs: Vec<Value> = whole
        .tokens
        .iter()
        .filter_map(|token| token.probabilities.as_ref())
        .map(|token| probabilities::chat(tokenizer, token))
        .collect();
    let logs = if logs.is_empty() {
        Value::Null
    } else {
        json!({"content": logs, "refusal": null})
    };
    let stop = whole.finished.as_ref().map(|finished| &finished.report.generation.stop);
    Ok(json!({
        "index": index,
        "message": message,
        "logprobs": logs,
        "finish_reason": stop.map(|stop| finish_reason(stop, whole.calls.len())),
    }))
}
