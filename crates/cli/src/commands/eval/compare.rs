//! `riffle eval compare`.

use riffle_eval::{CompareOptions, CompareTask, Results, RulerTask};
use serde_json::json;

use super::needle::parsed;
use super::perplexity::policies;
use super::run::{Subject, corpus};
use crate::eval_args::CompareArguments;
use crate::failure::Failure;
use crate::unused;

/// One policy of each kind and the baselines.
const POLICIES: [&str; 14] = [
    "streaming",
    "tri-shape",
    "log-stride",
    "h2o-chunk",
    "vertical-slash",
    "flex",
    "xattention",
    "random",
    "oracle-top-k",
    "oracle-top-p",
    "quest:dense_layers=0,block=64,budget=256",
    "certified",
    "h2o",
    "snapkv",
];

/// Tokens of a document.
const LENGTH: usize = 4096;

/// Prompts of a ruler task, and documents of a needle task.
const SAMPLES: u64 = 3;

/// Depths of a needle task.
const DEPTHS: usize = 10;

pub(super) fn compare(arguments: &CompareArguments) -> Result<(), Failure> {
    unused::refuse_audit("riffle eval compare", &arguments.engine)?;
    let tasks: Vec<CompareTask> = parsed(&arguments.tasks)?;
    refuse_unused(arguments, &tasks)?;
    let (engine, mut policies) = policies("riffle eval compare", &arguments.engine, &arguments.policy)?;
    if policies.is_empty() {
        policies = parsed(&POLICIES.map(str::to_owned))?;
    }
    let options = CompareOptions {
        policies,
        tasks,
        lengths: match &*arguments.lengths {
            [] => vec![LENGTH],
            lengths => lengths.to_vec(),
        },
        samples: arguments.samples.unwrap_or(SAMPLES),
        depths: arguments.depths.unwrap_or(DEPTHS),
        seed: arguments.prompts.seed,
        budgets: arguments.budget.clone(),
        shares: arguments.share,
    };
    let questions = arguments.questions.read()?;
    let subject = Subject::new(&arguments.subject, "text/prophets.txt")?;
    let name = ("compare", options.seed);
    subject.measure(name, &engine, &arguments.output, |engine, text, journal, watch| {
        let (corpus, mut about) = corpus(engine, text, &arguments.prompts.wording, questions)?;
        about["budget"] = match &*arguments.budget {
            [] => json!(null),
            // Journals of earlier versions have this form.
            [one] => json!(one),
            several => json!(several),
        };
        about["seed"] = arguments.prompts.seed.into();
        if arguments.share {
            about["share"] = true.into();
        }
        let files = options.files();
        if !files.is_empty() {
            about["files"] = json!(files);
        }
        let table = riffle_eval::compare(engine, &corpus, &options, &mut journal(about)?, watch)?;
        Ok(Results::Comparison(table))
    })
}

/// Refuses options that no requested task uses.
fn refuse_unused(arguments: &CompareArguments, tasks: &[CompareTask]) -> Result<(), Failure> {
    let made = |task: &CompareTask| !matches!(task, CompareTask::File(_));
    let needle = |task: &CompareTask| matches!(task, CompareTask::Needle(..));
    let qa = |task: &CompareTask| matches!(task, CompareTask::Ruler(RulerTask::Qa1 | RulerTask::Qa2));
    let (has_made, has_needle, has_qa) = (tasks.iter().any(made), tasks.iter().any(needle), tasks.iter().any(qa));
    unused::refuse_task_options(&[
        ("--lengths", !arguments.lengths.is_empty() && !has_made),
        ("--samples", arguments.samples.is_some() && !has_made),
    ])?;
    unused::refuse_depths(arguments.depths.is_some() && !has_needle)?;
    unused::refuse_questions("riffle eval compare", arguments.questions.is_given() && !has_qa)
}
