//! `riffle eval`: measurements.

mod audit;
mod compare;
mod needle;
mod perplexity;
mod report;
pub(crate) mod run;

use riffle_engine::{Engine, with_threads};

use super::{engine_options, print, print_json};
use crate::eval_args::{EvalArguments, LogitsArguments, Measurement};
use crate::failure::Failure;
use crate::unused;

pub(crate) fn eval(arguments: &EvalArguments) -> Result<(), Failure> {
    match &arguments.measurement {
        Measurement::Logits(arguments) => logits(arguments),
        Measurement::Needle(arguments) => needle::needle(arguments),
        Measurement::Ruler(arguments) => needle::ruler(arguments),
        Measurement::Perplexity(arguments) => perplexity::perplexity(arguments),
        Measurement::Compare(arguments) => compare::compare(arguments),
        Measurement::Audit(arguments) => audit::audit(arguments),
        Measurement::Report(arguments) => report::report(arguments),
    }
}

fn logits(arguments: &LogitsArguments) -> Result<(), Failure> {
    unused::refuse_in_logits(&arguments.engine)?;
    let model = arguments.model.path()?;
    let options = engine_options(&arguments.engine)?;
    let tokens = riffle_eval::read_tokens(&arguments.tokens)?;
    riffle_eval::check_logits(&arguments.out)?;
    let report = with_threads(arguments.engine.threads, || {
        let engine = Engine::load(model, options)?;
        riffle_eval::write_logits(&engine, &tokens, &arguments.out)
    })??;
    if arguments.json {
        return print_json(&report);
    }
    print(&format!(
        "{}: logits of {} positions, {} each\n",
        report.path.display(),
        report.tokens,
        report.vocab_size
    ))
}
