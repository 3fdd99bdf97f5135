//! `riffle bench draft`: the rates of answers with drafts and without.

use std::collections::BTreeSet;
use std::path::Path;

use riffle_engine::{DraftSpec, EngineError};
use riffle_eval::{DraftRateOptions, Results, measure_drafts};
use serde_json::json;

use crate::bench_args::BenchDraftArguments;
use crate::commands::eval::run::{Subject, file_name};
use crate::failure::Failure;

pub(super) fn draft(arguments: &BenchDraftArguments) -> Result<(), Failure> {
    let models: BTreeSet<&Path> = arguments.draft.iter().filter_map(DraftSpec::model).collect();
    if models.len() > 1 {
        return Err(Failure::new("--draft names two small models: measure one at a time"));
    }
    let subject = Subject {
        draft_model: models.first().map(|path| path.to_path_buf()),
        draft_predictor: arguments.draft.iter().any(DraftSpec::uses_predictor),
        ..Subject::new(&arguments.subject, "text/prophets.txt")?
    };
    subject.measure(
        ("draft", 0),
        &arguments.engine,
        &arguments.output,
        |engine, text, journal, watch| {
            let tokenizer = engine.tokenizer()?;
            let tokens = tokenizer.encode(text, true)?;
            let question = arguments
                .question
                .as_ref()
                .map(|question| tokenizer.encode(question, false));
            let options = DraftRateOptions {
                text: file_name(&subject.text),
                drafts: arguments.draft.clone(),
                depths: arguments.depth.clone(),
                question: question.transpose().map_err(EngineError::from)?.unwrap_or_default(),
                generated_tokens: arguments.tokens,
                repeats: arguments.repeats,
            };
            let about = json!({
                "text": riffle_eval::digest(&tokens),
                "drafts": options.drafts.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "question": arguments.question,
                "tokens": arguments.tokens,
                "repeats": arguments.repeats,
            });
            let rates = measure_drafts(engine, &tokens, &options, &mut journal(about)?, watch)?;
            Ok(Results::Draft(rates))
        },
    )
}
