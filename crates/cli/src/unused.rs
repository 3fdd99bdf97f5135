//! Refuses engine options that a command would ignore; the error names a command that uses the option.

use riffle_engine::{EngineError, EngineOptions, human_bytes};

use crate::args::EngineArguments;
use crate::failure::Failure;

/// An option, true if it was given, and its replacement.
type Unused = (&'static str, bool, &'static str);

/// Refuses policies in `riffle calibrate`, which selects prefill policies itself.
pub(crate) fn refuse_in_calibrate(arguments: &EngineArguments) -> Result<(), Failure> {
    const CANDIDATES: &str = "it chooses among those of --candidate; riffle run and riffle eval audit take it";
    refuse(
        "riffle calibrate",
        &[
            ("--prefill", is_policy(&arguments.prefill), CANDIDATES),
            ("--h2o-local", arguments.h2o_local.is_some(), CANDIDATES),
            ("--h2o-heavy", arguments.h2o_heavy.is_some(), CANDIDATES),
            (
                "--profile",
                arguments.profile.is_some(),
                "it makes a profile; riffle run --profile reads under one",
            ),
            (
                "--auto",
                arguments.auto.is_some(),
                "it chooses by --target; riffle run --auto chooses while it reads",
            ),
            (
                "--audit",
                arguments.audit,
                "it audits every candidate; riffle eval audit measures one policy",
            ),
        ],
    )
}

/// Refuses an audit in commands that do not measure the policies' attention mass.
pub(crate) fn refuse_audit(command: &str, arguments: &EngineArguments) -> Result<(), Failure> {
    let instead = "riffle run, riffle chat and riffle eval audit show one";
    refuse(command, &[("--audit", arguments.audit, instead)])
}

/// Refuses an audit and a decode policy in `riffle eval logits`, which reads all tokens as a prompt.
pub(crate) fn refuse_in_logits(arguments: &EngineArguments) -> Result<(), Failure> {
    refuse_audit("riffle eval logits", arguments)?;
    let instead = "it reads every token as a prompt; riffle run and riffle eval compare take it";
    refuse(
        "riffle eval logits",
        &[("--decode", is_policy(&arguments.decode), instead)],
    )
}

/// h2o-chunk policies are compared by their own names.
pub(crate) fn refuse_h2o(command: &str, arguments: &EngineArguments) -> Result<(), Failure> {
    let instead = "give --policy h2o-chunk:local=N,heavy=N";
    refuse(
        command,
        &[
            ("--h2o-local", arguments.h2o_local.is_some(), instead),
            ("--h2o-heavy", arguments.h2o_heavy.is_some(), instead),
        ],
    )
}

/// Refuses questions without a task that asks them.
pub(crate) fn refuse_questions(command: &str, is_unused: bool) -> Result<(), Failure> {
    let instead = "only the tasks qa_1 and qa_2 ask them, and none is among --tasks";
    refuse(command, &[("--questions", is_unused, instead)])
}

/// Refuses options of `riffle eval compare` that apply only to generated tasks, if all tasks are from files.
pub(crate) fn refuse_task_options(options: &[(&'static str, bool)]) -> Result<(), Failure> {
    let instead = "every line of a file is asked, with the context that stands there";
    let options: Vec<Unused> = options.iter().map(|(name, given)| (*name, *given, instead)).collect();
    refuse("riffle eval compare", &options)
}

/// Refuses depths without a needle task.
pub(crate) fn refuse_depths(is_unused: bool) -> Result<(), Failure> {
    let instead = "no task of --tasks is a needle task";
    refuse("riffle eval compare", &[("--depths", is_unused, instead)])
}

/// Refuses a device budget without effect: on a CPU alone, it needs --kv-ram-budget.
pub(crate) fn refuse_device_budget(arguments: &EngineArguments, options: &EngineOptions) -> Result<(), Failure> {
    match arguments.kv_device_budget {
        Some(bytes) if options.machine.device.is_none() && arguments.kv_ram_budget.is_none() => {
            Err(Failure::new(format!(
                "--kv-device-budget is {}, but no device computes here: --kv-ram-budget says what KV pages take in memory",
                human_bytes(bytes)
            )))
        }
        _ => Ok(()),
    }
}

/// Checks llama.cpp's options for key and value formats, so that errors show their names.
pub(crate) fn check_formats(arguments: &EngineArguments) -> Result<(), Failure> {
    for (option, given) in [
        ("--cache-type-k", &arguments.cache_type_k),
        ("--cache-type-v", &arguments.cache_type_v),
    ] {
        let Some(given) = given else { continue };
        // Each format is checked alone, because two together form a pair.
        if let Err(EngineError::Option { requirement, .. }) = riffle_engine::parse_kv_type(&format!("{given}:f16")) {
            let formats = requirement.split(", or two").next().unwrap_or_default();
            return Err(Failure::new(format!("{option} is {given:?}, but {formats}")));
        }
    }
    Ok(())
}

fn is_policy(text: &str) -> bool {
    !text.eq_ignore_ascii_case("full")
}

fn refuse(command: &str, options: &[Unused]) -> Result<(), Failure> {
    match options.iter().find(|(_, is_given, _)| *is_given) {
        Some((option, _, instead)) => Err(Failure::new(format!(
            "{option} would do nothing in {command}: {instead}"
        ))),
        None => Ok(()),
    }
}
