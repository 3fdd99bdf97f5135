//! `/api/generate`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::json;

use super::answer::{OllamaAnswer, Place, loaded};
use super::options::Shared;
use crate::api::openai::Tools;
use crate::api::{read, respond, send};
use crate::app::App;
use crate::asking::continuation::{Prompt, continue_prompts};
use crate::asking::effort::Thinking;
use crate::asking::infill::Gap;
use crate::asking::prompt::Conversation;
use crate::asking::question::Question;
use crate::asking::take_without_effect;
use crate::failure::{Failure, Shape};
use crate::fields::Fields;

/// A requested answer to one prompt.
enum Generation {
    /// No prompt: the request loads the model, or unloads it.
    Loading { model: String, leaves: bool },
    /// The prompt in the model's template.
    Asking(Box<Question>, bool),
    /// The prompt without the template.
    Raw(Box<Shared>, Prompt),
}

pub(crate) async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::Ollama, begin(app, request).await)
}

async fn begin(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let begun = Instant::now();
    let (asked, is_streamed) = match read(&app, request, Generation::take).await? {
        Generation::Loading { model, leaves } => return Ok(loaded(&model, leaves, Place::Response)),
        Generation::Asking(question, is_streamed) => (question.ask(&app).await?, is_streamed),
        Generation::Raw(shared, prompt) => {
            let Shared {
                wishes,
                form,
                is_streamed,
                ..
            } = *shared;
            (continue_prompts(&app, wishes, vec![prompt], form).await?, is_streamed)
        }
    };
    send(OllamaAnswer::new(app, asked, Place::Response, begun), is_streamed).await
}

impl Generation {
    fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Self, Failure> {
        let mut shared = Shared::take(app, fields)?;
        let thinking = Thinking::take(fields)?;
        let prompt = fields.text("prompt")?.unwrap_or_default();
        let system = fields.text("system")?.unwrap_or_default();
        let is_raw = fields.flag("raw")?.unwrap_or(false);
        let suffix = fields.text("suffix")?.unwrap_or_default();
        take_what_is_not_done(fields)?;
        take_without_effect(fields)?;
        if !suffix.is_empty() {
            if !system.is_empty() {
                return Err(Failure::field(
                    "system",
                    "a text with a suffix has no place for it: leave it out",
                ));
            }
            let prompt = Gap::between(app, prompt, suffix)?;
            shared.wishes.end_behind_gap(app);
            return Ok(Self::Raw(Box::new(shared), prompt));
        }
        if prompt.is_empty() {
            return Ok(Self::Loading {
                model: shared.wishes.model,
                leaves: shared.leaves,
            });
        }
        if is_raw {
            if system.is_empty() {
                return Ok(Self::Raw(Box::new(shared), Prompt::Text(prompt)));
            }
            let reason = "raw takes the prompt as it is: leave one of the two out";
            return Err(Failure::field("system", reason));
        }
        let mut messages = Vec::new();
        if !system.is_empty() {
            messages.push(json!({"role": "system", "content": system}));
        }
        messages.push(json!({"role": "user", "content": prompt}));
        let conversation = Conversation {
            messages,
            thinking,
            warnings: fields.warnings().clone(),
            ..Conversation::default()
        };
        let question = Question::new(app, shared.wishes, conversation, shared.form, Tools::default())?;
        Ok(Self::Asking(Box::new(question), shared.is_streamed))
    }
}

/// Refuses by name the fields that would change the answer.
fn take_what_is_not_done(fields: &mut Fields) -> Result<(), Failure> {
    let refusals = [
        ("images", json!([]), "this model reads text alone: leave pictures out"),
        (
            "template",
            json!(""),
            "the model's own template is used: leave it out, or send raw",
        ),
        ("context", json!([]), "send the earlier turns as messages to /api/chat"),
    ];
    for (field, harmless, reason) in refusals {
        fields.refuse(field, &[harmless], reason)?;
    }
    for field in ["width", "height", "steps"] {
        fields.refuse(field, &[json!(0)], "this model writes text alone: leave it out")?;
    }
    Ok(())
}
