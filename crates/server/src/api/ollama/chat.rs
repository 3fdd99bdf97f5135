//! `/api/chat`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::{OllamaAnswer, Place, loaded};
use super::options::Shared;
use crate::api::openai::{read_messages, take_tools};
use crate::api::{read, respond, send};
use crate::app::App;
use crate::asking::effort::Thinking;
use crate::asking::prompt::Conversation;
use crate::asking::question::Question;
use crate::asking::take_without_effect;
use crate::failure::{Failure, Shape};
use crate::fields::{Fields, Warnings};

/// A requested chat.
enum Chat {
    /// No messages: the request loads the model, or unloads it.
    Loading {
        model: String,
        leaves: bool,
    },
    Asking(Box<Question>, bool),
}

pub(crate) async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::Ollama, begin(app, request).await)
}

async fn begin(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let begun = Instant::now();
    match read(&app, request, Chat::take).await? {
        Chat::Loading { model, leaves } => Ok(loaded(&model, leaves, Place::Message)),
        Chat::Asking(question, is_streamed) => {
            let asked = question.ask(&app).await?;
            send(OllamaAnswer::new(app, asked, Place::Message, begun), is_streamed).await
        }
    }
}

impl Chat {
    fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Self, Failure> {
        let shared = Shared::take(app, fields)?;
        let thinking = Thinking::take(fields)?;
        let tools = take_tools(app, fields)?;
        let list = fields.list("messages")?.unwrap_or_default();
        take_without_effect(fields)?;
        if list.is_empty() {
            return Ok(Self::Loading {
                model: shared.wishes.model,
                leaves: shared.leaves,
            });
        }
        let messages = read_messages(messages_of(list, fields.warnings())?, fields.warnings())?;
        let conversation = Conversation {
            goes_on: messages.last().is_some_and(|last| last["role"] == "assistant"),
            messages,
            tools: tools.known.shown(),
            thinking,
            warnings: fields.warnings().clone(),
            ..Conversation::default()
        };
        let question = Question::new(app, shared.wishes, conversation, shared.form, tools)?;
        Ok(Self::Asking(Box::new(question), shared.is_streamed))
    }
}

/// Messages in OpenAI's names.
fn messages_of(list: Vec<Value>, warnings: &Warnings) -> Result<Vec<Value>, Failure> {
    let messages = list.into_iter().enumerate();
    messages
        .map(|(at, message)| {
            let mut fields = Fields::from_value(message, &format!("messages[{at}]"), warnings)?;
            fields.refuse(
                "images",
                &[json!([])],
                "this model reads text alone: leave pictures out",
            )?;
            if fields.peek("name").is_none() {
                fields.rename("tool_name", "name")?;
            }
            let mut message = fields.rest();
            message.entry("content").or_insert_with(|| json!(""));
            Ok(Value::Object(message))
        })
        .collect()
}
