//! `/stats`: tokens, times and memory of a conversation.

use riffle_chat::{ChatReport, Loaded, TurnReport};
use riffle_engine::human_bytes;

use super::turns_text;
use crate::commands::grouped;
use crate::commands::run::audit_text;
use crate::flags;

/// Sizes, speeds and policies of the conversation, in a few lines.
pub(crate) fn stats(report: &ChatReport) -> String {
    let context = match report.context_tokens {
        Some(context) => format!("{} of {} tokens", grouped(report.tokens), grouped(context)),
        None => format!("{} tokens, without end", grouped(report.tokens)),
    };
    let last = report.last.as_ref().map_or(String::new(), last_turn);
    let share = match report.pairs.causal {
        0 => 100.0,
        causal => report.pairs.read as f64 / causal as f64 * 100.0,
    };
    format!(
        "turns     {turns}, {branches} of the conversation
context   {context}{last}
KV pages  device {device}, RAM {ram}, disk {disk}; {shared} of them shared
policies  prefill {prefill}, decode {decode}: {share:.1}% of the query-key pairs read, {read} of {causal}
memory    weights {weights}, scratch {scratch}, KV at most {kv}{audit}",
        turns = turns_text(report.turns),
        audit = report
            .audit
            .as_ref()
            .map_or(String::new(), |audit| format!("\n{}", audit_text(audit))),
        branches = match report.branches.len() {
            1 => "one copy".to_owned(),
            copies => format!("{copies} copies"),
        },
        device = human_bytes(report.device_bytes),
        ram = human_bytes(report.ram_bytes),
        disk = human_bytes(report.disk_bytes),
        shared = human_bytes(report.shared_bytes),
        prefill = report.prefill_policy,
        decode = report.decode_policy,
        read = grouped(report.pairs.read as usize),
        causal = grouped(report.pairs.causal as usize),
        weights = human_bytes(report.plan.weights_bytes),
        scratch = human_bytes(report.plan.scratch_bytes),
        kv = human_bytes(report.plan.kv_bytes),
    )
}

fn last_turn(turn: &TurnReport) -> String {
    let again = match turn.again_tokens {
        0 => String::new(),
        again => format!(
            " ({} of them for the second time: the template changed earlier turns, or the model could not go back)",
            grouped(again)
        ),
    };
    format!(
        "
last turn {read} read{again}, {reused} kept from before{found}, at {rate:.0} tokens/s; first token after {first:.2} s
answer    {written} at {decode:.1} tokens/s, ended by {stop}",
        read = tokens_text(turn.read_tokens),
        reused = grouped(turn.reused_tokens),
        found = match turn.found_tokens {
            0 => String::new(),
            found => format!(" ({} of them on disk)", grouped(found)),
        },
        rate = turn.prefill_tokens_per_s,
        first = turn.time_to_first_token_ms / 1e3,
        written = tokens_text(turn.generated_tokens),
        decode = turn.decode_tokens_per_s,
        stop = flags::typed(&turn.stop.to_string()),
    )
}

/// A number of tokens as text, with the correct plural.
fn tokens_text(tokens: usize) -> String {
    match tokens {
        1 => "one token".to_owned(),
        tokens => format!("{} tokens", grouped(tokens)),
    }
}

/// The branches of the conversation, one per line.
pub(crate) fn branches(report: &ChatReport) -> String {
    let lines = report.branches.iter().map(|branch| {
        let here = if branch.is_current { " (you are here)" } else { "" };
        format!("{:<12} {}{here}", branch.name, turns_text(branch.turns))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Describes a conversation loaded from a file.
pub(crate) fn loaded(loaded: &Loaded) -> String {
    let turns = turns_text(loaded.turns);
    match (loaded.again_tokens, &loaded.problem) {
        (_, Some(problem)) => format!(
            "{turns}; your next message reads all of it again: {}",
            flags::typed(problem)
        ),
        (0, None) => format!("{turns}; nothing has to be read again"),
        (again, None) => format!("{turns}; your next message reads {} again", tokens_text(again)),
    }
}
