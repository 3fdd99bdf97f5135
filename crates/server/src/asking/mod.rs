//! From the fields of a request of any API to a request for the scheduler.

pub(crate) mod adapters;
pub(crate) mod continuation;
pub(crate) mod effort;
pub(crate) mod infill;
pub(crate) mod options;
pub(crate) mod passing;
pub(crate) mod prompt;
pub(crate) mod question;
pub(crate) mod traits;
mod turns;
pub(crate) mod whole_texts;

pub(crate) use passing::{take_options, take_without_effect, warn_of_context};

use std::sync::Arc;

use riffle_engine::{GenerateOptions, Request, SequenceOptions};

use crate::api::answers::Answers;
use crate::api::sessions;
use crate::app::App;
use crate::failure::Failure;
use crate::fields::Warnings;
use crate::forms::Form;
use crate::forms::thoughts::BehindThought;
use crate::request_notes::{RequestNotes, line_of};

/// All options of an answer, without its prompt.
#[derive(Debug, Clone)]
pub(crate) struct Wishes {
    /// The model's name in the answer.
    pub(crate) model: String,
    pub(crate) generate: GenerateOptions,
    /// True if the request sets the length of an answer.
    pub(crate) has_length: bool,
    /// True if the request sets a seed; otherwise each answer has its own.
    pub(crate) has_seed: bool,
    pub(crate) extras: options::Extras,
    /// True if the answer begins inside a thought, and its form follows the thought.
    pub(crate) has_thought_first: bool,
    /// Warnings of the request.
    pub(crate) warnings: Warnings,
    pub(crate) prompt_probabilities: Option<usize>,
}

impl Wishes {
    /// Policies and adapters of this request, if they differ from the server's.
    fn sequence(&self, app: &App) -> Option<SequenceOptions> {
        let extras = &self.extras;
        let own = app.engine.options().sequence.clone();
        let adapters = extras.adapters.unwrap_or_else(|| app.adapter_scales());
        if extras.prefill.is_none() && extras.decode.is_none() && !extras.audits && adapters == own.adapters {
            return None;
        }
        Some(SequenceOptions {
            prefill: extras.prefill.clone().unwrap_or(own.prefill),
            decode: extras.decode.clone().unwrap_or(own.decode),
            audit: own.audit || extras.audits,
            adapters,
            ..own
        })
    }

    /// Constrains the answers to a form of the given field.
    pub(crate) async fn keep_to(&mut self, app: &App, form: Option<(Form, String)>) -> Result<(), Failure> {
        if let Some((form, place)) = form {
            self.generate.form = Some(app.forms.prepare(form, &place).await?);
        }
        Ok(())
    }

    /// Cuts the length of an answer to the context after its prompt.
    fn limit_length(&self, app: &App, prompt: usize, generate: &mut GenerateOptions) -> Result<(), Failure> {
        let context = app.engine.plan().context_tokens;
        if prompt > context {
            return Err(Failure::bad(format!(
                "the prompt has {prompt} tokens and the server's context holds {context}: shorten the prompt, or start the server with a larger --ctx"
            ))
            .with_code("context_length_exceeded"));
        }
        // The last token of an answer is not read, so it needs no place in the context.
        let room = context - prompt + 1;
        if !self.has_length {
            generate.max_tokens = app.options.default_max_tokens.min(room).max(1);
        } else if generate.max_tokens > room {
            self.warnings.add(
                "max_tokens",
                &format!("cut to {room}, the room behind a prompt of {prompt} tokens"),
            );
            generate.max_tokens = room;
        }
        generate.min_tokens = generate.min_tokens.min(generate.max_tokens);
        Ok(())
    }

    /// Requests `choices` answers to each of the prompts, in their order.
    pub(crate) async fn ask(&self, app: &App, prompts: &[Vec<u32>], choices: usize) -> Result<Answers, Failure> {
        let most = app.options.limits.answers_per_request;
        if prompts.len().saturating_mul(choices) > most {
            return Err(Failure::bad(format!(
                "{} prompts with {choices} answers each are more than the {most} answers that a request may ask for",
                prompts.len()
            )));
        }
        let seed = if self.has_seed {
            self.generate.sampling.seed
        } else {
            rand::random()
        };
        let session = match &self.extras.session {
            Some(name) => Some(sessions::bring(app, name).await?),
            None => None,
        };
        let mut answers = Vec::with_capacity(prompts.len() * choices);
        for prompt in prompts {
            for choice in 0..choices {
                let mut generate = self.generate.clone();
                generate.sampling.seed = seed.wrapping_add(choice as u64);
                self.limit_length(app, prompt.len(), &mut generate)?;
                if self.has_thought_first {
                    put_behind_thought(app, &mut generate)?;
                }
                answers.push(app.driver.ask(Request {
                    tokens: prompt.clone(),
                    generate,
                    priority: self.extras.priority,
                    sequence: self.sequence(app),
                    session: session.clone(),
                    prompt_probabilities: self.prompt_probabilities,
                })?);
            }
        }
        let warnings = self.warnings.lines();
        if !warnings.is_empty() {
            let line = line_of(RequestNotes::current().as_ref(), "without_effect");
            app.log.request(&line.with("fields", warnings.join("; ")));
        }
        // The scheduler must refuse a request before its answer begins.
        for answer in &mut answers {
            answer.accepted().await?;
        }
        Ok(Answers::new(answers))
    }
}

/// Makes an answer end its thought before its form begins. The thought gets at most half of the answer's length.
fn put_behind_thought(app: &App, generate: &mut GenerateOptions) -> Result<(), Failure> {
    if let Some(form) = generate.form.take() {
        let form = BehindThought::new(&app.engine, form, app.markup.thoughts().end, generate.max_tokens / 2);
        generate.form = Some(Arc::new(form.map_err(Failure::bad)?));
    }
    Ok(())
}
