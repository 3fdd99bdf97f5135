//! `riffle bench context`: the cost of a context's length.

use riffle_eval::{ContextRateOptions, Results, measure_context};
use serde_json::json;

use crate::bench_args::BenchContextArguments;
use crate::commands::eval::run::{Subject, file_name};
use crate::failure::Failure;

pub(super) fn context(arguments: &BenchContextArguments) -> Result<(), Failure> {
    let subject = Subject::new(&arguments.subject, "text/prophets.txt")?;
    let policies = arguments.policy.iter().map(|policy| policy.parse());
    let options = ContextRateOptions {
        text: file_name(&subject.text),
        lengths: arguments.lengths.clone(),
        policies: policies.collect::<Result<_, riffle_eval::EvalError>>()?,
        generated_tokens: arguments.tokens,
        repeats: arguments.repeats,
        beside_memory: arguments.beside_memory,
    };
    subject.measure(
        ("context", 0),
        &arguments.engine,
        &arguments.output,
        |engine, text, journal, watch| {
            let tokens = engine.tokenizer()?.encode(text, true)?;
            let about = json!({
                "text": riffle_eval::digest(&tokens),
                "tokens": arguments.tokens,
                "repeats": arguments.repeats,
            });
            let table = measure_context(engine, &tokens, &options, &mut journal(about)?, watch)?;
            Ok(Results::Context(table))
        },
    )
}
