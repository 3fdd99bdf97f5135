//! Compiles and renders templates on a thread with a fixed stack size, which the caller can stop.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use minijinja::machinery::{CodeGenerator, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Error, ErrorKind, Value};
use serde_json::Map;

use super::limits::{MESSAGE_CHARACTERS, STACK_BYTES, STEPS, TemplateLimit};
use super::meter::Meter;
use super::{functions, guard};
use crate::ModelError;

const TEMPLATE_NAME: &str = "chat_template";
const POLL_EVERY: Duration = Duration::from_millis(20);

/// The reason a template failed.
enum Failure {
    Broken(String),
    Limit(TemplateLimit),
    Interrupted,
}

/// Refuses invalid templates, and templates that are too long to compile.
pub(super) fn check(file: &Path, source: &str) -> Result<(), ModelError> {
    let checked = on_own_thread(|| compile_only(source), &mut || {});
    checked.map_err(|failure| error(file, failure))
}

/// Renders the template for a context. A `sentinel` in texts is carried into the result.
pub(super) fn render(
    file: &Path,
    source: &str,
    context: Map<String, serde_json::Value>,
    sentinel: Option<char>,
    poll: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<String, ModelError> {
    let meter = Arc::new(Meter::new(context.iter().map(|(_, value)| input_bytes(value)).sum()));
    let mut interrupted = false;
    let rendered = on_own_thread(|| render_here(source, context, sentinel, &meter), &mut || {
        if poll().is_break() {
            interrupted = true;
            meter.stop();
        }
    });
    let rendered = if interrupted || poll().is_break() {
        Err(Failure::Interrupted)
    } else {
        rendered
    };
    rendered.map_err(|failure| error(file, failure))
}

/// Runs `work` on a thread with a large stack and calls `wait` every few milliseconds until it is done.
fn on_own_thread<T: Send>(
    work: impl FnOnce() -> Result<T, Failure> + Send,
    wait: &mut dyn FnMut(),
) -> Result<T, Failure> {
    thread::scope(|scope| {
        let (done, is_done) = channel::<()>();
        let worker = thread::Builder::new()
            .name("chat template".to_owned())
            .stack_size(STACK_BYTES);
        let worker = worker
            .spawn_scoped(scope, move || {
                // Dropped when the work ends, also by a panic.
                let _done = done;
                work()
            })
            .map_err(|error| Failure::Broken(format!("no thread could be started for it: {error}")))?;
        while is_done.recv_timeout(POLL_EVERY) == Err(RecvTimeoutError::Timeout) {
            wait();
        }
        worker
            .join()
            .unwrap_or_else(|_| Err(Failure::Broken("the template engine failed".to_owned())))
    })
}

fn compile_only(source: &str) -> Result<(), Failure> {
    let syntax = syntax()?;
    guard::check_source(source, &syntax).map_err(Failure::Limit)?;
    let parsed = parse(source, TEMPLATE_NAME, syntax).map_err(|error| broken(&error))?;
    let template = guard::guarded(&parsed).map_err(|error| broken(&error))?;
    let mut generator = CodeGenerator::new(TEMPLATE_NAME, source);
    generator.compile_stmt(&template);
    Ok(())
}

fn render_here(
    source: &str,
    context: Map<String, serde_json::Value>,
    sentinel: Option<char>,
    meter: &Arc<Meter>,
) -> Result<String, Failure> {
    let syntax = syntax()?;
    guard::check_source(source, &syntax).map_err(Failure::Limit)?;
    let environment = functions::environment(meter, sentinel);
    let parsed = parse(source, TEMPLATE_NAME, syntax).map_err(|error| broken(&error))?;
    let template = guard::guarded(&parsed).map_err(|error| broken(&error))?;
    let mut generator = CodeGenerator::new(TEMPLATE_NAME, source);
    generator.compile_stmt(&template);
    let (instructions, blocks) = generator.finish();
    let mut text = String::new();
    let outcome = {
        let mut output = make_string_output(&mut text);
        let registry = &meter.registry;
        let variables = context.into_iter().map(|(name, value)| (name, registry.input(value)));
        let root = Value::from_pairs(variables);
        eval(
            &environment,
            &instructions,
            root,
            &blocks,
            &mut output,
            AutoEscape::None,
        )
        .map(|_| ())
        .map_err(|error| failed(&error))
    };
    meter.registry.clear();
    // A template cannot hide that a limit was exceeded.
    match meter.passed() {
        Some(limit) => Err(Failure::Limit(limit.clone())),
        None => outcome.map(|()| text),
    }
}

fn syntax() -> Result<SyntaxConfig, Failure> {
    let mut builder = SyntaxConfig::builder();
    // Reading a template drops one line end at its end.
    let builder = builder
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(true);
    builder.build().map_err(|error| broken(&error))
}

fn failed(error: &Error) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if current
            .downcast_ref::<Error>()
            .is_some_and(|error| error.kind() == ErrorKind::OutOfFuel)
        {
            return Failure::Limit(TemplateLimit::Steps { limit: STEPS });
        }
        cause = current.source();
    }
    broken(error)
}

/// The reason, with the template's line if known.
fn broken(error: &Error) -> Failure {
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let characters = reason.chars().count();
    let reason = match reason.char_indices().nth(MESSAGE_CHARACTERS) {
        Some((end, _)) => format!("{}… ({characters} characters)", &reason[..end]),
        None => reason,
    };
    Failure::Broken(match error.line() {
        Some(line) => format!("{reason} (line {line} of the template)"),
        None => reason,
    })
}

fn error(file: &Path, failure: Failure) -> ModelError {
    let file = file.to_owned();
    match failure {
        Failure::Broken(problem) => ModelError::Template { file, problem },
        Failure::Limit(limit) => ModelError::TemplateLimit { file, limit },
        Failure::Interrupted => ModelError::TemplateInterrupted { file },
    }
}

/// Bytes of the texts of a JSON value, and a few for everything else.
fn input_bytes(value: &serde_json::Value) -> u64 {
    const EACH: u64 = 8;
    match value {
        serde_json::Value::String(text) => EACH + text.len() as u64,
        serde_json::Value::Array(items) => EACH + items.iter().map(input_bytes).sum::<u64>(),
        serde_json::Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| key.len() as u64 + input_bytes(value));
            EACH + entries.sum::<u64>()
        }
        _ => EACH,
    }
}
