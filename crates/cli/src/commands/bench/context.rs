//! `riffle bench context`: what a length of context costs.

use riffle_eval::{ContextRateOptions, Results, measure_context};
use serde_json::json;

use crate::args::BenchContextArguments;
use crate::commands::eval::run::{Subject, file_name, shipped};
use crate::failure::Failure;

pub(super) fn context(arguments: &BenchContextArguments) -> Result<(), Failure> {
    let subject = Subject {
        measurement: "context",
        model: shipped(arguments.model.as_ref(), "model")?,
        text: shipped(arguments.file.as_ref(), "text/prophets.txt")?,
        seed: 0,
    };
    let policies = arguments.policy.iter().map(|policy| policy.parse());
    let options = ContextRateOptions {
        text: file_name(&subject.text),
        lengths: arguments.lengths.clone(),
        policies: policies.collect::<Result<_, riffle_eval::EvalError>>()?,
        generated_tokens: arguments.tokens,
        repeats: arguments.repeats,
    };
    subject.measure(&arguments.engine, &arguments.output, |engine, text, journal, watch| {
        let tokens = engine.tokenizer()?.encode(text, true)?;
        let about = json!({
            "text": riffle_eval::digest(&tokens),
            "tokens": arguments.tokens,
            "repeats": arguments.repeats,
        });
        let table = measure_context(engine, &tokens, &options, &mut journal(about)?, watch)?;
        Ok(Results::Context(table))
    })
}
