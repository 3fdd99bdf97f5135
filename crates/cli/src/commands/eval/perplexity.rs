//! `riffle eval perplexity`.

use riffle_eval::{PerplexityOptions, PolicyChoice, Results};
use riffle_policy::Phase;
use serde_json::json;

use super::needle::parsed;
use super::run::{Subject, file_name};
use crate::args::EngineArguments;
use crate::eval_args::PerplexityArguments;
use crate::failure::Failure;
use crate::unused;

pub(super) fn perplexity(arguments: &PerplexityArguments) -> Result<(), Failure> {
    unused::refuse_audit("riffle eval perplexity", &arguments.engine)?;
    let mut given = arguments.policy.clone();
    for local in &arguments.ablate_local {
        let heavy = arguments.ablate_heavy.iter();
        given.extend(heavy.map(|heavy| format!("prefill=h2o-chunk:local={local},heavy={heavy}")));
    }
    let (engine, policies) = policies("riffle eval perplexity", &arguments.engine, &given)?;
    let has_decode = policies.iter().any(|policy| policy.phase == Phase::Decode);
    let stride = arguments
        .stride
        .unwrap_or(arguments.window / if has_decode { 2 } else { 1 });
    let budget = arguments.predictions_budget;
    let subject = Subject::new(&arguments.subject, "text/zechariah.txt")?;
    let name = file_name(&subject.text);
    subject.measure(
        ("perplexity", 0),
        &engine,
        &arguments.output,
        |engine, text, journal, watch| {
            let tokenizer = engine.tokenizer()?;
            let mut tokens = tokenizer.encode(text, true)?;
            let beginning = tokenizer.encode("", true)?.first().copied();
            let beginning = beginning.filter(|beginning| tokens.first() == Some(beginning));
            tokens.truncate(arguments.tokens.unwrap_or(usize::MAX));
            let mut about = json!({
                "text": riffle_eval::digest(&tokens),
                "window": arguments.window,
                "stride": stride,
                "beginning": beginning,
            });
            if let Some(share) = arguments.budget {
                about["budget"] = share.into();
            }
            let options = PerplexityOptions {
                text: name,
                tokens,
                beginning,
                window_tokens: arguments.window,
                stride_tokens: stride,
                policies,
                budget: arguments.budget,
                predictions_budget_bytes: budget,
            };
            let table = riffle_eval::perplexity(engine, &options, &mut journal(about)?, watch)?;
            Ok(Results::Perplexity(table))
        },
    )
}

/// The policies to compare, including the policies of --prefill and --decode, and the arguments of the dense run.
pub(super) fn policies(
    command: &str,
    engine: &EngineArguments,
    given: &[String],
) -> Result<(EngineArguments, Vec<PolicyChoice>), Failure> {
    unused::refuse_h2o(command, engine)?;
    if engine.auto.is_some() || engine.profile.is_some() || engine.window_size.is_some() {
        return Err(Failure::new(
            "--auto, --profile and --window-size are not compared here: give policies with --policy, and auto:SHARE or a profile's path in place of one",
        ));
    }
    let mut policies: Vec<PolicyChoice> = parsed(given)?;
    let full = "full".to_owned();
    for (phase, text) in [("prefill", &engine.prefill), ("decode", &engine.decode)] {
        if *text != full {
            policies.push(format!("{phase}={text}").parse()?);
        }
    }
    let engine = EngineArguments {
        prefill: full.clone(),
        decode: full,
        ..engine.clone()
    };
    Ok((engine, policies))
}
