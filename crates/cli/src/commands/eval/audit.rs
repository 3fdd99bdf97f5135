//! `riffle eval audit`: the share of exact attention that a policy keeps.

use riffle_eval::{AuditOptions, Results};
use serde_json::json;

use super::run::{Subject, file_name};
use crate::args::EngineArguments;
use crate::eval_args::AuditArguments;
use crate::failure::Failure;

pub(super) fn audit(arguments: &AuditArguments) -> Result<(), Failure> {
    let subject = Subject::new(&arguments.subject, "text/prophets.txt")?;
    let engine = EngineArguments {
        audit: true,
        ..arguments.engine.clone()
    };
    let options = AuditOptions {
        text: file_name(&subject.text),
        sink_tokens: arguments.sinks,
        local_tokens: arguments.local,
        heavy_tokens: arguments.heavy,
        map: arguments.map,
    };
    subject.measure(
        ("audit", 0),
        &engine,
        &arguments.output,
        |engine, text, journal, watch| {
            let mut tokens = engine.tokenizer()?.encode(text, true)?;
            if let Some(length) = arguments.lengths.filter(|length| *length > tokens.len()) {
                let (text, there) = (&options.text, tokens.len());
                return Err(Failure::new(format!(
                    "--lengths {length}: {text} has {there} tokens; give a smaller --lengths or a longer --text"
                )));
            }
            tokens.truncate(arguments.lengths.unwrap_or(engine.plan().context_tokens));
            let about = json!({ "text": riffle_eval::digest(&tokens), "options": &options });
            let table = riffle_eval::audit(engine, &tokens, &options, &mut journal(about)?, watch)?;
            Ok(Results::Audit(table))
        },
    )
}
