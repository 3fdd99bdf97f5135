//! `riffle eval needle` and `riffle eval ruler`.

use std::str::FromStr;

use riffle_eval::{EvalError, NeedleOptions, Results, RulerOptions, RulerTask};

use super::run::{Subject, corpus};
use crate::eval_args::{NeedleArguments, RulerArguments};
use crate::failure::Failure;
use crate::unused;

pub(super) fn needle(arguments: &NeedleArguments) -> Result<(), Failure> {
    unused::refuse_audit("riffle eval needle", &arguments.engine)?;
    let options = NeedleOptions {
        lengths: arguments.lengths.clone(),
        depths: arguments.depths,
        kinds: parsed(&arguments.kinds)?,
        places: parsed(&arguments.ask)?,
        documents: arguments.samples,
        seed: arguments.prompts.seed,
        compress: arguments.compress.as_deref().map(str::parse).transpose()?,
    };
    Subject::new(&arguments.subject, "text/prophets.txt")?.measure(
        ("needle", options.seed),
        &arguments.engine,
        &arguments.output,
        |engine, text, journal, watch| {
            let (corpus, mut about) = corpus(engine, text, &arguments.prompts.wording, Vec::new())?;
            if let Some(compress) = &options.compress {
                about["compress"] = compress.to_string().into();
            }
            let table = riffle_eval::needle(engine, &corpus, &options, &mut journal(about)?, watch)?;
            Ok(Results::Needle(table))
        },
    )
}

pub(super) fn ruler(arguments: &RulerArguments) -> Result<(), Failure> {
    unused::refuse_audit("riffle eval ruler", &arguments.engine)?;
    let tasks: Vec<RulerTask> = parsed(&arguments.tasks)?;
    let asks = tasks.is_empty() || tasks.iter().any(|task| matches!(task, RulerTask::Qa1 | RulerTask::Qa2));
    unused::refuse_questions("riffle eval ruler", arguments.questions.is_given() && !asks)?;
    let options = RulerOptions {
        tasks: if tasks.is_empty() {
            RulerTask::ALL.to_vec()
        } else {
            tasks
        },
        lengths: arguments.lengths.clone(),
        samples: arguments.samples,
        seed: arguments.prompts.seed,
        late: arguments.late,
    };
    let questions = arguments.questions.read()?;
    Subject::new(&arguments.subject, "text/prophets.txt")?.measure(
        ("ruler", options.seed),
        &arguments.engine,
        &arguments.output,
        |engine, text, journal, watch| {
            let (corpus, mut about) = corpus(engine, text, &arguments.prompts.wording, questions)?;
            about["late"] = arguments.late.into();
            let table = riffle_eval::ruler(engine, &corpus, &options, &mut journal(about)?, watch)?;
            Ok(Results::Ruler(table))
        },
    )
}

pub(super) fn parsed<T: FromStr<Err = EvalError>>(texts: &[String]) -> Result<Vec<T>, EvalError> {
    texts.iter().map(|text| text.trim().parse()).collect()
}
