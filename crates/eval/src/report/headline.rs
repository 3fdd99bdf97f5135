//! The main figure of a record, for the overview.

use crate::numbers::{milliseconds, percent, short, tokens};
use crate::record::{ComparisonTable, Results};
use crate::statistics::Interval;

/// One short text; where a record has many figures, the one that its kind is asked for.
pub(super) fn headline(results: &Results) -> String {
    match results {
        Results::Needle(table) => {
            let scores: Vec<f64> = table.samples.iter().map(|sample| sample.score()).collect();
            found(&scores)
        }
        Results::Ruler(table) => {
            let scores: Vec<f64> = table.samples.iter().map(|sample| sample.score).collect();
            found(&scores)
        }
        Results::Perplexity(table) => {
            let worst = table.rows.iter().map(|row| row.all.kl).fold(0.0, f64::max);
            format!("{} policies, KL up to {} nats", table.rows.len(), short(worst))
        }
        Results::Comparison(table) => best(table),
        Results::Audit(table) => format!("{} of the attention kept", percent(table.mean_mass)),
        Results::Context(table) => {
            table
                .rows
                .iter()
                .max_by_key(|row| row.context_tokens)
                .map_or_else(String::new, |row| {
                    let first = milliseconds(row.time_to_first_token_ms);
                    format!(
                        "{} tokens: first token after {first}",
                        tokens(row.context_tokens as f64)
                    )
                })
        }
        Results::Batch(table) => fastest(table.rows.iter().map(|row| row.decode_tokens_per_s)),
        Results::Model(table) => fastest(table.rates.iter().map(|rate| rate.decode_tokens_per_s)),
        Results::Draft(table) => format!("{} cases", table.rows.len()),
        Results::Policies(table) => format!("{} cases", table.rates.len()),
        Results::Attention(table) => {
            let share = table.rates.iter().map(|rate| rate.peak_share).fold(0.0, f64::max);
            format!("up to {} of the arithmetic peak", percent(share))
        }
        Results::Device(table) => format!("{}, {} cases", table.device, table.rates.len()),
        Results::Kv(table) => format!("{} formats and tiers", table.bytes.len()),
    }
}

fn found(scores: &[f64]) -> String {
    let score = Interval::of_scores(scores);
    format!("{} found of {} questions", percent(score.mean), score.samples)
}

fn fastest(rates: impl Iterator<Item = f64>) -> String {
    format!("up to {:.1} tokens/s", rates.fold(0.0, f64::max))
}

/// The sparse policy with the best mean over all tasks and lengths, beside dense attention.
fn best(table: &ComparisonTable) -> String {
    let mean = |policy: &str| {
        let rows: Vec<f64> = table
            .rows
            .iter()
            .filter(|row| row.policy == policy)
            .map(|row| row.score.mean)
            .collect();
        rows.iter().sum::<f64>() / rows.len().max(1) as f64
    };
    let sparse = table
        .rows
        .iter()
        .map(|row| &row.policy)
        .filter(|policy| *policy != "full");
    let best = sparse.max_by(|a, b| mean(a).total_cmp(&mean(b)));
    match best {
        Some(best) => format!("{best} {}, full {}", percent(mean(best)), percent(mean("full"))),
        None => format!("full {}", percent(mean("full"))),
    }
}
