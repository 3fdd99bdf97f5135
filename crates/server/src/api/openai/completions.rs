//! `/v1/completions`.

use std::convert::Infallible;
use std::sync::Arc;

use async_stream::stream;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use riffle_engine::TokenProbabilities;
use serde_json::{Value, json};

use super::chat::{MOST_LIKELIEST, take_stream_options};
use super::chunks::{FINGERPRINT, Head, StreamUsage};
use super::probabilities::{self, Offsets};
use crate::api::answers::{Answers, Whole, collect};
use crate::api::report::{Usage, finish_reason};
use crate::api::{Answering, events, read, report, respond, send};
use crate::app::App;
use crate::asking::continuation::{self, Prompt, prompts_of};
use crate::asking::infill::Gap;
use crate::asking::options::take_wishes;
use crate::asking::{Wishes, take_options, take_without_effect};
use crate::driver::{DriverEvent, Finished};
use crate::failure::{Failure, Shape};
use crate::fields::Fields;
use crate::forms::{Form, take_form};

/// Maximum number of tokens of an answer whose request sets no limit, the same as OpenAI's.
const DEFAULT_TOKENS: usize = 16;

/// A requested completion.
struct Completion {
    wishes: Wishes,
    prompts: Vec<Prompt>,
    form: Option<(Form, String)>,
    choices: usize,
    echoes: bool,
    likeliest: Option<usize>,
    gives_tokens: bool,
    is_streamed: bool,
    stream_usage: StreamUsage,
}

/// A running completion.
struct CompletionAnswer {
    app: Arc<App>,
    wishes: Wishes,
    answers: Answers,
    head: Head,
    prompts: Vec<Vec<u32>>,
    choices: usize,
    echoes: bool,
    likeliest: Option<usize>,
    /// True if answers contain tokens in addition to texts.
    gives_tokens: bool,
    stream_usage: StreamUsage,
}

pub(crate) async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, begin(app, request).await)
}

async fn begin(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let completion = read(&app, request, Completion::take).await?;
    let is_streamed = completion.is_streamed;
    send(completion.ask(app).await?, is_streamed).await
}

impl Completion {
    fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Self, Failure> {
        take_options(app, fields)?;
        let mut prompts = prompts_of(app, fields.required("prompt")?, "prompt")?;
        let mut wishes = take_wishes(app, fields, &["max_tokens", "n_predict"])?;
        if !wishes.has_length {
            (wishes.generate.max_tokens, wishes.has_length) = (DEFAULT_TOKENS, true);
        }
        let echoes = fields.flag("echo")?.unwrap_or(false);
        let likeliest = fields.count("logprobs", 0..=MOST_LIKELIEST)?;
        wishes.generate.probabilities = likeliest;
        wishes.prompt_probabilities = match fields.count("prompt_logprobs", 0..=MOST_LIKELIEST)? {
            Some(asked) => Some(asked.max(likeliest.filter(|_| echoes).unwrap_or(0))),
            None => likeliest.filter(|_| echoes),
        };
        let choices = fields.count("n", 1..=64)?.unwrap_or(1);
        if let Some(suffix) = fields.text("suffix")?.filter(|suffix| !suffix.is_empty()) {
            prompts = Gap::before(app, prompts, &suffix)?;
            wishes.end_behind_gap(app);
        }
        fields.refuse(
            "best_of",
            &[json!(choices), json!(1)],
            "answers are not ranked: ask for n answers and choose",
        )?;
        take_without_effect(fields)?;
        let is_streamed = fields.flag("stream")?.unwrap_or(false);
        if is_streamed && echoes && likeliest.is_some() {
            return Err(Failure::field(
                "echo",
                "with logprobs it cannot be streamed: set stream to false",
            ));
        }
        Ok(Self {
            wishes,
            prompts,
            form: take_form(fields)?,
            choices,
            echoes,
            likeliest,
            gives_tokens: fields.flag("return_token_ids")?.unwrap_or(false),
            is_streamed,
            stream_usage: take_stream_options(fields, is_streamed)?,
        })
    }

    async fn ask(self, app: Arc<App>) -> Result<CompletionAnswer, Failure> {
        let Self {
            mut wishes,
            prompts,
            form,
            ..
        } = self;
        wishes.keep_to(&app, form).await?;
        let prompts = continuation::tokens_of(&app, prompts).await?;
        let answers = wishes.ask(&app, &prompts, self.choices).await?;
        Ok(CompletionAnswer {
            head: Head::new("cmpl-", &wishes.model),
            wishes,
            answers,
            prompts,
            choices: self.choices,
            echoes: self.echoes,
            likeliest: self.likeliest,
            gives_tokens: self.gives_tokens,
            stream_usage: self.stream_usage,
            app,
        })
    }
}

impl CompletionAnswer {
    fn body(&self, choices: Value) -> Value {
        json!({
            "id": self.head.id,
            "object": "text_completion",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        })
    }

    /// The prompt's text of an answer.
    fn echo(&self, index: usize) -> Result<String, Failure> {
        let decode = || {
            let tokenizer = self.app.engine.tokenizer()?;
            Ok(tokenizer.decode(&self.prompts[index / self.choices])?)
        };
        decode().map_err(|error: riffle_engine::EngineError| Failure::from_engine(&error))
    }

    fn choice(&self, index: usize, whole: &Whole) -> Result<Value, Failure> {
        let tokenizer = self
            .app
            .engine
            .tokenizer()
            .map_err(|error| Failure::from_engine(&error))?;
        let prompt = &self.prompts[index / self.choices];
        let mut text = whole.text.clone();
        let mut offsets = Offsets::default();
        if self.echoes {
            let echo = self.echo(index)?;
            offsets = Offsets::in_text(&echo);
            text.insert_str(0, &echo);
        }
        let written = whole.tokens.iter().filter_map(|token| token.probabilities.clone());
        let logs = self.likeliest.map(|most| {
            let (first, tokens): (_, Vec<TokenProbabilities>) = if self.echoes {
                (
                    prompt.first().copied(),
                    whole.prompt_probabilities.iter().cloned().chain(written).collect(),
                )
            } else {
                (None, written.collect())
            };
            probabilities::completion(tokenizer, first, &tokens, most > 0, &mut offsets)
        });
        let stop = whole.finished.as_ref().map(|finished| &finished.report.generation.stop);
        let mut choice = json!({
            "index": index,
            "text": text,
            "logprobs": logs,
            "finish_reason": stop.map(|stop| finish_reason(stop, 0)),
        });
        if self.gives_tokens {
            choice["token_ids"] = whole.tokens.iter().map(|token| token.token).collect();
            choice["prompt_token_ids"] = prompt.as_slice().into();
        }
        if self.wishes.prompt_probabilities.is_some() {
            choice["prompt_logprobs"] = probabilities::of_prompt(tokenizer, &whole.prompt_probabilities);
        }
        Ok(choice)
    }

    fn put_usage(&self, chunk: &mut Value, index: usize, written_tokens: usize) {
        let prompt = &self.prompts[index / self.choices];
        self.stream_usage.put(chunk, prompt.len(), written_tokens);
    }

    fn chunk(&self, index: usize, text: &str, logs: Value, finish_reason: Option<&str>) -> Value {
        self.body(json!([{"index": index, "text": text, "logprobs": logs, "finish_reason": finish_reason}]))
    }
}

impl Answering for CompletionAnswer {
    type Part = Event;

    async fn whole(mut self) -> Result<Response, Failure> {
        let answers = std::mem::take(&mut self.answers);
        let plain = continuation::plain_speech(&self.app);
        let wholes = collect(&self.app.engine, answers, &plain).await?;
        let finished: Vec<&Finished> = wholes.iter().filter_map(|whole| whole.finished.as_deref()).collect();
        let choices = wholes
            .iter()
            .enumerate()
            .map(|(index, whole)| self.choice(index, whole));
        let mut body = self.body(choices.collect::<Result<Vec<_>, _>>()?.into());
        body["usage"] = Usage::total(finished.iter().copied(), self.choices).openai();
        if let Some(first) = finished.first() {
            report::put_end(&mut body, &self.app, &self.wishes, first);
        }
        Ok(Json(body).into_response())
    }

    fn stream(mut self) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
        stream! {
            let mut finished: Vec<Box<Finished>> = Vec::new();
            let mut written = vec![0; self.answers.len()];
            let mut offsets = vec![Offsets::default(); self.answers.len()];
            if self.echoes {
                for index in 0..self.answers.len() {
                    if let Ok(text) = self.echo(index) {
                        yield events::data(&self.chunk(index, &text, Value::Null, None));
                    }
                }
            }
            while let Some((index, told)) = self.answers.next().await {
                match told {
                    DriverEvent::Accepted | DriverEvent::PromptProbabilities(_) | DriverEvent::Session(_) => {}
                    DriverEvent::Reading(reading) => {
                        let mut chunk = self.chunk(index, "", Value::Null, None);
                        report::put_progress(&mut chunk, &self.wishes, &reading);
                        self.put_usage(&mut chunk, index, written[index]);
                        yield events::data(&chunk);
                    }
                    DriverEvent::Token(token) => {
                        written[index] += 1;
                        let tokenizer = self.app.engine.tokenizer().ok();
                        let logs = token.probabilities.as_ref().zip(tokenizer).map_or(Value::Null, |(one, tokenizer)| {
                            let has_likeliest = self.likeliest.is_some_and(|most| most > 0);
                            probabilities::completion(tokenizer, None, std::slice::from_ref(one), has_likeliest, &mut offsets[index])
                        });
                        if !token.text.is_empty() || !logs.is_null() || self.gives_tokens {
                            let mut chunk = self.chunk(index, &token.text, logs, None);
                            if self.gives_tokens {
                                chunk["choices"][0]["token_ids"] = json!([token.token]);
                            }
                            self.put_usage(&mut chunk, index, written[index]);
                            yield events::data(&chunk);
                        }
                    }
                    DriverEvent::Finished(end) => {
                        let reason = finish_reason(&end.report.generation.stop, 0);
                        let mut chunk = self.chunk(index, "", Value::Null, Some(reason));
                        report::put_end(&mut chunk, &self.app, &self.wishes, &end);
                        self.put_usage(&mut chunk, index, written[index]);
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
                let mut chunk = self.body(json!([]));
                chunk["usage"] = Usage::total(finished.iter().map(|end| &**end), self.choices).openai();
                yield events::data(&chunk);
            }
            yield events::done();
        }
    }
}
