//! The main figure of a record, for the overview.

use crate::numbers::{milliseconds, percent, short, tokens};
use crate::record::{BudgetMiss, ComparisonRow, ComparisonTable, Results};
use crate::statistics::Interval;

/// A short text with the main figure of this kind.
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

/// The sparse policy with the best mean over all tasks and lengths, compared with dense attention. Among equals, the
/// policy that reads the smallest share wins. Policies over their budget come last.
fn best(table: &ComparisonTable) -> String {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for row in &table.rows {
        match runs.iter_mut().find(|run| run.is_of(row)) {
            Some(run) => run.rows.push(row),
            None => runs.push(Run { rows: vec![row] }),
        }
    }
    let is_full = |run: &&Run<'_>| run.rows[0].policy == "full";
    let full = runs.iter().find(is_full).map_or(0.0, Run::score);
    let best = runs.iter().filter(|run| !is_full(run)).max_by(|a, b| {
        let by_share = b.share().total_cmp(&a.share());
        b.is_over()
            .cmp(&a.is_over())
            .then(a.score().total_cmp(&b.score()))
            .then(by_share)
    });
    let full = percent(full);
    match best {
        Some(best) => {
            let (name, found, read) = (&best.rows[0].policy, percent(best.score()), percent(best.share()));
            let over = if best.is_over() { ", over its budget" } else { "" };
            format!("{name} {found} with {read} of the pairs{over}, full {full}")
        }
        None => format!("full {full}"),
    }
}

/// The rows of a policy under one budget.
struct Run<'a> {
    rows: Vec<&'a ComparisonRow>,
}

impl Run<'_> {
    fn is_of(&self, row: &ComparisonRow) -> bool {
        (&self.rows[0].policy, self.rows[0].budget) == (&row.policy, row.budget)
    }

    fn score(&self) -> f64 {
        self.mean(|row| row.score.mean)
    }

    fn share(&self) -> f64 {
        self.mean(|row| row.density)
    }

    fn is_over(&self) -> bool {
        self.rows.iter().any(|row| row.miss() == Some(BudgetMiss::Over))
    }

    fn mean(&self, value: impl Fn(&ComparisonRow) -> f64) -> f64 {
        self.rows.iter().map(|row| value(row)).sum::<f64>() / self.rows.len() as f64
    }
}
