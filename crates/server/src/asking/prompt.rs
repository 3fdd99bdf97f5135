//! Prompts as tokens.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use riffle_model::ConversationText;
use serde_json::{Map, Value};

use super::effort::Thinking;
use crate::app::{App, aside};
use crate::failure::Failure;
use crate::fields::{Fields, Warnings, unexpected};
use crate::tokenising::{Wanted, encode_now, tokenise};

/// Placeholder for the text of a begun answer while its conversation is rendered.
const BEGUN: &str = "\u{fdef}begun\u{fdef}";

/// A conversation to render with the template.
#[derive(Debug, Clone, Default)]
pub(crate) struct Conversation {
    /// Messages in the shape of templates.
    pub(crate) messages: Vec<Value>,
    /// Tools in OpenAI's shape; may be empty.
    pub(crate) tools: Vec<Value>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    /// The requested effort of thinking.
    pub(crate) thinking: Thinking,
    /// True if the last message is the beginning of the answer.
    pub(crate) goes_on: bool,
    /// True if the text ends with the last message, instead of the start of the assistant's turn.
    pub(crate) ends_with_message: bool,
    /// Warnings of the request.
    pub(crate) warnings: Warnings,
}

/// A prompt, and its end as text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// True if the prompt ends inside a thought that the answer continues.
    pub(crate) is_thinking: bool,
}

/// Takes `chat_template_kwargs`.
pub(crate) fn take_variables(fields: &mut Fields) -> Result<Map<String, Value>, Failure> {
    match fields.value("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(variables)) => Ok(variables),
        Some(other) => Err(unexpected("chat_template_kwargs", "an object", &other)),
    }
}

/// The tokens of a text.
pub(crate) async fn encode(
    app: &Arc<App>,
    text: String,
    add_special: bool,
    wanted: Wanted,
) -> Result<Vec<u32>, Failure> {
    let engine = Arc::clone(&app.engine);
    tokenise(move |client| encode_now(&engine, &text.into(), add_special, wanted, client)).await
}

/// The text of a conversation in the model's template; without a template the texts of its messages, joined.
pub(crate) async fn render(app: &Arc<App>, conversation: Conversation) -> Result<ConversationText, Failure> {
    let until = Instant::now() + app.options.limits.request_time;
    let app = Arc::clone(app);
    aside(move || render_now(&app, conversation, until)).await
}

fn render_now(app: &App, conversation: Conversation, until: Instant) -> Result<ConversationText, Failure> {
    let Conversation {
        messages,
        tools,
        variables,
        thinking,
        goes_on,
        ends_with_message,
        warnings,
    } = conversation;
    let Some(template) = app.engine.chat_template() else {
        if !tools.is_empty() {
            return Err(Failure::field(
                "tools",
                "this model has no chat template that could show it tools",
            ));
        }
        let mut text = ConversationText::default();
        for (number, message) in messages.iter().enumerate() {
            text.push_content(if number > 0 { "\n" } else { "" });
            text.push_content(message["content"].as_str().unwrap_or(""));
        }
        return Ok(text);
    };
    let traits = app.traits(template, !tools.is_empty());
    let mut all = thinking.variables(&traits.efforts, &traits.switches);
    if thinking != Thinking::default() && all.is_empty() {
        warnings.add("reasoning", "this model's chat template takes no effort");
    }
    if !tools.is_empty() {
        if !template.mentions("tools") {
            return Err(Failure::field(
                "tools",
                "this model's chat template has no place for tools: use a model that was trained to call them",
            ));
        }
        all.insert("tools".to_owned(), Value::Array(tools));
    }
    all.extend(variables);
    let mut messages = traits.turns.arrange(messages);
    traits.shorten_ids(&mut messages);
    if template.mentions("message.thinking") && !goes_on {
        messages.iter_mut().for_each(name_thought);
    }
    let render = |messages: &[Value], is_answered: bool| {
        let mut poll = || {
            if Instant::now() < until {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let text = template.render_until(&Value::Array(messages.to_vec()), is_answered, &all, &mut poll);
        text.map_err(|error| Failure::field("messages", error.to_string().replace('\n', " ")))
    };
    if goes_on {
        begun_answer(messages, &|messages| render(messages, false))
    } else {
        render(&messages, !ends_with_message)
    }
}

/// Renames a thought for templates of gpt-oss. These refuse a thought beside both a text and a call, so the thought of
/// such a message is dropped.
fn name_thought(message: &mut Value) {
    let has_text = message["content"].as_str().is_some_and(|text| !text.is_empty());
    let calls = message.get("tool_calls").is_some();
    let thought = message
        .as_object_mut()
        .and_then(|fields| fields.remove("reasoning_content"));
    if let Some(thought) = thought.filter(|_| !(has_text && calls)) {
        message["thinking"] = thought;
    }
}

/// The text of a conversation up to the end of its last message, which the answer continues.
fn begun_answer(
    mut messages: Vec<Value>,
    render: &dyn Fn(&[Value]) -> Result<ConversationText, Failure>,
) -> Result<ConversationText, Failure> {
    let Some(mut last) = messages.pop() else {
        return Err(Failure::field("messages", "it must have at least one message"));
    };
    let beginning = last["content"].as_str().unwrap_or("").to_owned();
    last["content"] = BEGUN.into();
    // The texts before and after the last message's text.
    let around = |last: Value| {
        let mut messages = messages.clone();
        messages.push(last);
        let mut text = render(&messages)?;
        let at = text
            .text()
            .rfind(BEGUN)
            .ok_or_else(|| Failure::field("messages", "this model's chat template does not show the last message"))?;
        let behind = text.tail(at + BEGUN.len());
        text.truncate(at);
        Ok::<_, Failure>((text, behind))
    };
    let (mut text, mut behind) = around(last.clone())?;
    let without = |name: &str| {
        let mut last = last.clone();
        last.as_object_mut().map(|fields| fields.remove(name));
        around(last)
    };
    // A field that the template does not render would be lost silently.
    let refuse = |name: &str| {
        Failure::field(
            format!("the last message's {name}"),
            "this model's chat template does not show it in an answer that is gone on with: leave it out",
        )
    };
    if last.get("reasoning_content").is_some() && without("reasoning_content")?.0 == text {
        return Err(refuse("reasoning_content"));
    }
    text.push_content(&beginning);
    if last.get("tool_calls").is_some() {
        // The answer continues after the calls, so only the end of the turn is removed.
        let (_, end_of_turn) = without("tool_calls")?;
        let calls = behind.text().strip_suffix(end_of_turn.text()).map_or(0, str::len);
        if calls == 0 {
            return Err(refuse("tool_calls"));
        }
        behind.truncate(calls);
        text.append(&behind);
    }
    Ok(text)
}

/// The prompt of a conversation.
pub(crate) async fn prompt(app: &Arc<App>, conversation: Conversation) -> Result<Prompt, Failure> {
    let begun = if conversation.goes_on {
        conversation.messages.last().and_then(|last| last["content"].as_str())
    } else {
        None
    };
    let is_begun_thinking = begun.is_some_and(|begun| app.markup.is_open_thought(begun));
    let text = render(app, conversation).await?;
    let is_thinking = is_begun_thinking || app.markup.ends_thinking(text.text());
    let tokens = encode_conversation(app, text, Wanted::Prompt).await?;
    Ok(Prompt { tokens, is_thinking })
}

/// Number of tokens in the prompt of a conversation; it may exceed the context.
pub(crate) async fn count(app: &Arc<App>, conversation: Conversation) -> Result<usize, Failure> {
    let text = render(app, conversation).await?;
    Ok(encode_conversation(app, text, Wanted::Count).await?.len())
}

async fn encode_conversation(app: &Arc<App>, text: ConversationText, wanted: Wanted) -> Result<Vec<u32>, Failure> {
    // A template writes the special tokens itself.
    let add_special = app.engine.chat_template().is_none();
    let engine = Arc::clone(&app.engine);
    tokenise(move |client| encode_now(&engine, &text, add_special, wanted, client)).await
}
