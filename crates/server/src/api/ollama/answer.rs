//! Answers in Ollama's shape: one object, or a line of JSON for each piece.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use async_stream::stream;
use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::{Map, Value, json};

use super::time_text;
use crate::api::Answering;
use crate::api::answers::{collect, spoken};
use crate::api::events::Line;
use crate::api::openai::probabilities;
use crate::api::report::{self, finish_reason};
use crate::app::{App, new_id};
use crate::asking::question::OngoingAnswers;
use crate::driver::{DriverEvent, Finished, Token};
use crate::failure::{Failure, Shape};
use crate::speech::{AnswerPiece, Call};

/// Field with the text of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The text stands in `message`, for `/api/chat`.
    Message,
    /// The text stands in `response`, for `/api/generate`.
    Response,
}

/// A running answer.
pub(super) struct OllamaAnswer {
    app: Arc<App>,
    asked: OngoingAnswers,
    place: Place,
    /// Arrival of the request.
    begun: Instant,
}

/// The answer to a request that only loads or unloads the model.
pub(super) fn loaded(model: &str, leaves: bool, place: Place) -> Response {
    let mut body = place.body(model, "", "", Vec::new());
    body.insert("done_reason".to_owned(), json!(if leaves { "unload" } else { "load" }));
    body.insert("done".to_owned(), json!(true));
    Json(body).into_response()
}

impl Place {
    /// An object with a text, a thought and calls.
    fn body(self, model: &str, text: &str, thought: &str, calls: Vec<Value>) -> Map<String, Value> {
        let mut content = Map::new();
        let text_field = match self {
            Self::Message => {
                content.insert("role".to_owned(), json!("assistant"));
                "content"
            }
            Self::Response => "response",
        };
        content.insert(text_field.to_owned(), json!(text));
        if !thought.is_empty() {
            content.insert("thinking".to_owned(), json!(thought));
        }
        if !calls.is_empty() {
            content.insert("tool_calls".to_owned(), calls.into());
        }
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(model));
        body.insert("created_at".to_owned(), json!(time_text(SystemTime::now())));
        match self {
            Self::Message => {
                body.insert("message".to_owned(), content.into());
            }
            Self::Response => body.extend(content),
        }
        body.insert("done".to_owned(), json!(false));
        body
    }
}

/// A call with its arguments as an object; `number` counts the calls before it.
fn call_value(call: &Call, number: usize) -> Value {
    json!({
        "id": new_id("call_"),
        "function": {"index": number, "name": call.name, "arguments": call.arguments()},
    })
}

impl OllamaAnswer {
    pub(super) fn new(app: Arc<App>, asked: OngoingAnswers, place: Place, begun: Instant) -> Self {
        Self {
            app,
            asked,
            place,
            begun,
        }
    }

    fn body(&self, text: &str, thought: &str, calls: Vec<Value>) -> Map<String, Value> {
        self.place.body(&self.asked.wishes.model, text, thought, calls)
    }

    /// An object for a piece of the answer; `calls` counts the calls before it.
    fn piece(&self, piece: &AnswerPiece, calls: &mut usize) -> Map<String, Value> {
        match piece {
            AnswerPiece::Text(text) => self.body(text, "", Vec::new()),
            AnswerPiece::Thought(thought) => self.body("", thought, Vec::new()),
            AnswerPiece::Call(call) => {
                let value = call_value(call, *calls);
                *calls += 1;
                self.body("", "", vec![value])
            }
        }
    }

    /// The objects for the pieces of a token. Its probabilities are in the first.
    fn pieces(&self, mut pieces: Vec<AnswerPiece>, calls: &mut usize, token: Option<&Token>) -> Vec<Value> {
        let logs = token.and_then(|token| self.log_probability(token));
        if pieces.is_empty() && logs.is_some() {
            pieces.push(AnswerPiece::Text(String::new()));
        }
        let mut bodies: Vec<Value> = pieces.iter().map(|piece| self.piece(piece, calls).into()).collect();
        if let (Some(logs), Some(first)) = (logs, bodies.first_mut()) {
            first["logprobs"] = json!([logs]);
        }
        bodies
    }

    fn log_probability(&self, token: &Token) -> Option<Value> {
        let tokenizer = self.app.engine.tokenizer().ok()?;
        let probabilities = token.probabilities.as_ref()?;
        Some(probabilities::chat(tokenizer, probabilities))
    }

    /// Adds counts and times, in nanoseconds, to the last object of an answer.
    fn finish(&self, body: &mut Map<String, Value>, finished: &Finished) {
        let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
        let (report, times) = (&finished.report, finished.report.times);
        let end = json!({
            "done": true,
            // An answer with calls ends by itself too.
            "done_reason": finish_reason(&report.generation.stop, 0),
            "total_duration": nanoseconds(self.begun.elapsed().as_secs_f64()),
            "load_duration": 0,
            "prompt_eval_count": report.prompt_tokens,
            "prompt_eval_duration": nanoseconds(times.read_s),
            "eval_count": report.generation.tokens.len(),
            "eval_duration": nanoseconds(times.answered_s),
            "riffle": report::riffle(&self.app, &self.asked.wishes, finished),
        });
        if let Value::Object(end) = end {
            body.extend(end);
        }
    }
}

impl Answering for OllamaAnswer {
    type Part = Line;

    async fn whole(mut self) -> Result<Response, Failure> {
        let answers = std::mem::take(&mut self.asked.answers);
        let wholes = collect(&self.app.engine, answers, &self.asked.speech).await?;
        let whole = wholes.into_iter().next().ok_or_else(Failure::stopping)?;
        let calls = whole.calls.iter().enumerate();
        let calls = calls.map(|(number, call)| call_value(call, number)).collect();
        let mut body = self.body(&whole.text, &whole.thought, calls);
        let logs: Vec<Value> = whole
            .tokens
            .iter()
            .filter_map(|token| self.log_probability(token))
            .collect();
        if !logs.is_empty() {
            body.insert("logprobs".to_owned(), logs.into());
        }
        let finished = whole.finished.ok_or_else(Failure::stopping)?;
        self.finish(&mut body, &finished);
        Ok(Json(body).into_response())
    }

    fn stream(mut self) -> impl Stream<Item = Result<Line, Infallible>> + Send + 'static {
        stream! {
            let mut calls = 0;
            while let Some((_, told)) = self.asked.answers.next().await {
                match told {
                    DriverEvent::Accepted | DriverEvent::PromptProbabilities(_) | DriverEvent::Session(_) => {}
                    DriverEvent::Reading(reading) => {
                        // A client of Ollama reads each line as a part of the answer, so progress is sent only on
                        // request.
                        if self.asked.wishes.extras.shows_progress {
                            let (_, own) = report::progress(&reading);
                            let mut body = self.body("", "", Vec::new());
                            body.insert("riffle".to_owned(), own);
                            yield Line::of(&body.into());
                        }
                    }
                    DriverEvent::Token(token) => {
                        let text = spoken(&self.app.engine, &self.asked.speech, &token);
                        let pieces = self.asked.speech.push(&text);
                        for body in self.pieces(pieces, &mut calls, Some(&token)) {
                            yield Line::of(&body);
                        }
                    }
                    DriverEvent::Finished(finished) => {
                        let pieces = self.asked.speech.finish();
                        for body in self.pieces(pieces, &mut calls, None) {
                            yield Line::of(&body);
                        }
                        let mut body = self.body("", "", Vec::new());
                        self.finish(&mut body, &finished);
                        yield Line::of(&body.into());
                    }
                    DriverEvent::Failed(failure) => {
                        yield Line::of(&failure.body(Shape::Ollama));
                        return;
                    }
                }
            }
        }
    }
}
