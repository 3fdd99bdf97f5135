//! Engines and helpers for tests of conversations.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_chat::{ChatOptions, Conversation, MOST_BRANCHES, TurnReport};
use riffle_engine::{Engine, EngineOptions, GenerateOptions, RunEvent, SamplingOptions};
pub(crate) use riffle_testing::fixture;
use tempfile::TempDir;

/// A typical template: roles in marks, and a line for the answer.
pub(crate) const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";

/// A template that shows earlier answers in another form than they were written, as for thinking models.
pub(crate) const CHANGING_TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {% if m.role == 'assistant' %}({{ m.content }}){% else %}{{ m.content }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";

/// The options of conversations, with a short context.
pub(crate) fn options() -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(4096))
        .with_sequences(MOST_BRANCHES)
}

/// The shipped model, which has no chat template.
pub(crate) fn plain_engine() -> Arc<Engine> {
    Engine::load(fixture("model"), options()).expect("the shipped model")
}

/// A copy of a shipped model with a chat template.
pub(crate) fn engine_with_template(model: &str, template: &str, options: EngineOptions) -> (Arc<Engine>, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(fixture(model)).expect("a shipped model") {
        let entry = entry.expect("a file");
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a copy");
    }
    fs::write(folder.path().join("chat_template.jinja"), template).expect("a file");
    (Engine::load(folder.path(), options).expect("a model"), folder)
}

/// Answers of at most `max_tokens` tokens.
pub(crate) fn chat_options(max_tokens: usize, temperature: f32) -> ChatOptions {
    ChatOptions {
        generate: Some(GenerateOptions {
            max_tokens,
            sampling: SamplingOptions {
                temperature,
                ..SamplingOptions::default()
            },
            ..GenerateOptions::default()
        }),
        ..ChatOptions::default()
    }
}

pub(crate) fn conversation(engine: &Arc<Engine>, max_tokens: usize) -> Conversation {
    Conversation::new(Arc::clone(engine), chat_options(max_tokens, 0.0)).expect("a conversation")
}

/// An observer for conversations that run to the end.
pub(crate) fn go_on(_: RunEvent<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Asks, and returns the answer with the turn's report.
pub(crate) fn ask(conversation: &mut Conversation, message: &str) -> (String, TurnReport) {
    let report = conversation.ask(message, &mut go_on).expect("an answer");
    (last_answer(conversation), report)
}

pub(crate) fn last_answer(conversation: &Conversation) -> String {
    conversation.turns().last().expect("a turn").answer.clone()
}
