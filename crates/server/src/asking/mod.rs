//! From the fields of a request, whatever its API, to what the scheduler is asked.

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

/// Everything that an answer needs but its prompt.
#[derive(Debug, Clone)]
pub(crate) struct Wishes {
    /// The name that the answer gives the model.
    pub(crate) model: String,
    pub(crate) generate: GenerateOptions,
    /// True if the request says how long an answer may be.
    pub(crate) has_length: bool,
    /// True if the request gives a seed; otherwise each answer has one of its own.
    pub(crate) has_seed: bool,
    pub(crate) extras: options::Extras,
    /// True if the answer begins inside a thought, and its form stands behind that.
    pub(crate) has_thought_first: bool,
    /// Warnings of the request.
    pub(crate) warnings: Warnings,
    pub(crate) prompt_probabilities: Option<usize>,
}

impl Wishes {
    /// Policies and adapters of this request, where they are not those of the server.
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

    /// Has the answers keep to a form, which stands in the field of the given name.
    pub(crate) async fn keep_to(&mut self, app: &App, form: Option<(Form, String)>) -> Result<(), Failure> {
        if let Some((form, place)) = form {
            self.generate.form = Some(app.forms.prepare(form, &place).await?);
        }
        Ok(())
    }

    /// Cuts the length of an answer to the room behind its prompt.
    fn limit_length(&self, app: &App, prompt: usize, generate: &mut GenerateOptions) -> Result<(), Failure> {
        let context = app.engine.plan().context_tokens;
        if prompt > context {
            return Err(Failure::bad(format!(
                "the prompt has {prompt} tokens and the server's context holds {context}: shorten the prompt, or start the server with a larger --ctx"
            ))
            .with_code("context_length_exceeded"));
        }
        // The last token of an answer is written and not read: it needs no room.
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

    /// Asks for `choices` answers to each of the prompts, in their order.
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
        // A refusal of the scheduler must come before an answer begins.
        for answer in &mut answers {
            answer.accepted().await?;
        }
        Ok(Answers::new(answers))
    }
}

/// Has an answer end its thought before it takes its form. The thought gets half of the answer's length at most.
fn put_behind_thought(app: &App, generate: &mut GenerateOptions) -> Result<(), Failure> {
    if let Some(form) = generate.form.take() {
        let form = BehindThought::new(&app.engine, form, app.markup.thoughts().end, generate.max_tokens / 2);
        generate.form = Some(Arc::new(form.map_err(Failure::bad)?));
    }
    Ok(())
}
