//! Results as tables; [`speed_tables`] and [`device_tables`] have the tables of speed.

use std::collections::BTreeSet;

use super::{device_tables, label, short_policy, speed_tables};
use crate::numbers::{milliseconds, percent, short, tokens};
use crate::record::{BudgetFit, BudgetMiss, ComparisonTable, NeedleTable, PerplexityTable, Results, RulerTable};
use crate::statistics::Interval;
use crate::{AuditTable, Table};

pub(super) fn from_results(results: &Results) -> Vec<Table> {
    match results {
        Results::Needle(needle) => vec![self::needle(needle)],
        Results::Ruler(ruler) => vec![self::ruler(ruler)],
        Results::Perplexity(perplexity) => vec![self::perplexity(perplexity)],
        Results::Comparison(comparison) => vec![self::comparison(comparison)],
        Results::Audit(audit) => vec![self::audit(audit), self::audited_heads(audit)],
        Results::Context(context) => vec![speed_tables::speeds(context), speed_tables::memory(context)],
        Results::Batch(table) => speed_tables::batch(table),
        Results::Model(rates) => vec![speed_tables::model(rates)],
        Results::Draft(rates) => vec![speed_tables::drafts(rates)],
        Results::Policies(rates) => vec![speed_tables::policies(rates)],
        Results::Attention(report) => vec![speed_tables::attention(report)],
        Results::Device(report) => device_tables::device(report),
        Results::Kv(rates) => speed_tables::kv(rates).into(),
    }
}

fn needle(table: &NeedleTable) -> Table {
    let mut rows = Table::new(
        format!("Facts found, {} ({})", label(&table.settings), table.wording),
        &["kind", "asked", "tokens", "found", "95% interval", "questions"],
    );
    let keys: BTreeSet<_> = table
        .samples
        .iter()
        .map(|s| (s.kind, s.place, s.context_tokens))
        .collect();
    for key in keys {
        let samples = table
            .samples
            .iter()
            .filter(|s| (s.kind, s.place, s.context_tokens) == key);
        let score = Interval::of_scores(&samples.map(|sample| sample.score()).collect::<Vec<_>>());
        rows.rows.push(vec![
            key.0.to_string(),
            key.1.to_string(),
            tokens(key.2 as f64),
            percent(score.mean),
            interval(&score),
            score.samples.to_string(),
        ]);
    }
    rows
}

fn ruler(table: &RulerTable) -> Table {
    let mut rows = Table::new(
        format!("RULER scores, {} ({})", label(&table.settings), table.wording),
        &["task", "tokens", "score", "95% interval", "prompts"],
    );
    rows.rows = table
        .cells()
        .iter()
        .map(|cell| {
            vec![
                cell.task.clone(),
                tokens(cell.context_tokens as f64),
                percent(cell.score.mean),
                interval(&cell.score),
                cell.score.samples.to_string(),
            ]
        })
        .collect();
    rows
}

fn perplexity(table: &PerplexityTable) -> Table {
    let columns = [
        "policy",
        "pairs read",
        "perplexity",
        "nats a token",
        "KL to full, nats",
        "largest KL",
        "other first choice",
    ];
    let mut rows = Table::from_rows(
        format!(
            "Prediction of {} ({} tokens, windows of {} every {})",
            table.text,
            table.tokens,
            tokens(table.window_tokens as f64),
            tokens(table.stride_tokens as f64)
        ),
        &columns,
        &table.rows,
        |row| {
            vec![
                label(&row.settings),
                share(row.density, row.miss()),
                format!("{:.3}", row.all.perplexity),
                format!("{:.4}", row.all.nll),
                short(row.all.kl),
                short(row.all.largest_kl),
                percent(row.all.flips),
            ]
        },
    );
    let missed = table.rows.iter().filter_map(|row| {
        let (miss, budget) = (row.miss()?, row.budget?);
        Some(note(&label(&row.settings), miss, budget, row.fit.as_ref()))
    });
    rows.notes = distinct(missed);
    rows
}

/// A share of the pairs, with the sign of a miss.
fn share(density: f64, miss: Option<BudgetMiss>) -> String {
    let sign = miss.map_or(String::new(), |miss| format!(" {}", miss.sign()));
    percent(density) + &sign
}

/// A line that explains why a policy misses its budget.
fn note(name: &str, miss: BudgetMiss, budget: f64, fit: Option<&BudgetFit>) -> String {
    let reason = miss.reason(budget, fit);
    format!(
        "{} {name} misses its budget of {}: {reason}.",
        miss.sign(),
        percent(budget)
    )
}

/// Each line once, in order.
fn distinct(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in lines {
        if !found.contains(&line) {
            found.push(line);
        }
    }
    found
}

fn comparison(table: &ComparisonTable) -> Table {
    let columns = [
        "policy",
        "phase",
        "task",
        "tokens",
        "score",
        "95% interval",
        "against full: better / worse, p",
        "budget",
        "pairs read",
        "prefill",
        "a token",
        "KV read a token",
    ];
    let mut rows = Table::from_rows("Policies by task", &columns, &table.rows, |row| {
        vec![
            row.policy.clone(),
            row.phase.clone(),
            row.task.clone(),
            tokens(row.context_tokens as f64),
            percent(row.score.mean),
            interval(&row.score),
            table
                .against_full(row)
                .map_or("–".to_owned(), |paired| paired.to_string()),
            row.budget.map_or("–".to_owned(), percent),
            share(row.density, row.miss()),
            row.prefill_ms.map_or("–".to_owned(), milliseconds),
            milliseconds(row.decode_ms),
            riffle_engine::human_bytes(row.decode_bytes as u64),
        ]
    });
    if table.rows.iter().any(|row| row.budget.is_some()) {
        // Only fitting changes a policy, so other tables need no such column.
        rows.columns.insert(1, "as run".to_owned());
        for (cells, row) in rows.rows.iter_mut().zip(&table.rows) {
            cells.insert(1, short_policy(row.as_run()));
        }
    }
    let missed = table.rows.iter().filter_map(|row| {
        let (miss, budget) = (row.miss()?, row.budget?);
        let name = format!("{} at {} tokens", row.policy, tokens(row.context_tokens as f64));
        Some(note(&name, miss, budget, row.fit.as_ref()))
    });
    rows.notes = distinct(missed);
    let files = table.files.iter();
    rows.notes
        .extend(files.map(|file| format!("{}: {} bytes, XXH3 {}", file.name, file.bytes, file.xxh3)));
    rows
}

fn audit(table: &AuditTable) -> Table {
    let mut rows = Table::new(
        format!("Attention kept, {}", label(&table.settings)),
        &[
            "text",
            "tokens",
            "pairs read",
            "mean mass",
            "first percentile",
            "mean output error",
            "largest",
            "samples",
        ],
    );
    rows.rows.push(vec![
        table.text.clone(),
        table.tokens.to_string(),
        percent(table.density),
        percent(table.mean_mass),
        percent(table.first_percentile_mass),
        short(table.mean_output_error),
        short(table.largest_output_error),
        table.samples.to_string(),
    ]);
    rows
}

fn audited_heads(table: &AuditTable) -> Table {
    let columns = [
        "layer",
        "head",
        "pairs read",
        "mean mass",
        "first percentile",
        "output error",
        "sinks",
        "local",
        "heavy",
        "Jaccard",
    ];
    Table::from_rows(
        format!(
            "By layer and head: share of the true attention kept; share on the first {} tokens, the latest {} and the {} heaviest keys; how alike these are from chunk to chunk (Jaccard)",
            table.sink_tokens, table.local_tokens, table.heavy_tokens
        ),
        &columns,
        &table.heads,
        |head| {
            vec![
                head.layer.to_string(),
                head.head.to_string(),
                percent(head.density),
                percent(head.mean_mass),
                percent(head.first_percentile_mass),
                short(head.mean_output_error),
                percent(head.sink_mass),
                percent(head.local_mass),
                percent(head.heavy_mass),
                head.heavy_jaccard
                    .map_or("–".to_owned(), |jaccard| format!("{jaccard:.2}")),
            ]
        },
    )
}

fn interval(score: &Interval) -> String {
    format!("{}–{}", percent(score.low), percent(score.high))
}
