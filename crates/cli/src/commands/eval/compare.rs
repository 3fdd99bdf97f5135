//! `riffle eval compare`.

use riffle_eval::{CompareOptions, Results};

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

pub(super) fn compare(arguments: &CompareArguments) -> Result<(), Failure> {
    unused::refuse_audit("riffle eval compare", &arguments.engine)?;
    let (engine, mut policies) = policies(&arguments.engine, &arguments.policy)?;
    if policies.is_empty() {
        policies = parsed(&POLICIES.map(str::to_owned))?;
    }
    let options = CompareOptions {
        policies,
        tasks: parsed(&arguments.tasks)?,
        lengths: arguments.lengths.clone(),
        samples: arguments.samples,
        depths: arguments.depths,
        seed: arguments.prompts.seed,
        budget: arguments.budget,
        shares: arguments.share,
    };
    let questions = arguments.questions.read()?;
    let subject = Subject::new(&arguments.subject, "text/prophets.txt")?;
    let name = ("compare", options.seed);
    subject.measure(name, &engine, &arguments.output, |engine, text, journal, watch| {
        let (corpus, mut about) = corpus(engine, text, &arguments.prompts.wording, questions)?;
        about["budget"] = arguments.budget.into();
        about["seed"] = arguments.prompts.seed.into();
        if arguments.share {
            about["share"] = true.into();
        }
        let table = riffle_eval::compare(engine, &corpus, &options, &mut journal(about)?, watch)?;
        Ok(Results::Comparison(table))
    })
}
