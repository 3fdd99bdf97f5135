//! Throughput and memory against length.

use std::collections::BTreeSet;

use super::capital;
use crate::numbers::tokens;
use crate::pictures::{Bar, LineChart, Picture, Scale, Series, Stack};
use crate::report::label;
use crate::{ContextRow, ContextTable};

/// The rows of one policy, by length.
struct OfPolicy<'a> {
    name: String,
    rows: Vec<&'a ContextRow>,
}

pub(super) fn context(table: &ContextTable, on: &str) -> Vec<(String, Picture)> {
    let policies = by_policy(table);
    let mut pictures = speeds(table, &policies, on);
    pictures.extend(memory(&policies, on));
    pictures
}

fn by_policy(table: &ContextTable) -> Vec<OfPolicy<'_>> {
    let mut policies: Vec<OfPolicy<'_>> = Vec::new();
    for row in &table.rows {
        let name = label(&row.settings);
        match policies.iter_mut().find(|policy| policy.name == name) {
            Some(policy) => policy.rows.push(row),
            None => policies.push(OfPolicy { name, rows: vec![row] }),
        }
    }
    for policy in &mut policies {
        policy.rows.sort_by_key(|row| row.context_tokens);
    }
    policies
}

/// Rates against length. A single length gives no line.
fn speeds(table: &ContextTable, policies: &[OfPolicy<'_>], on: &str) -> Vec<(String, Picture)> {
    let lengths: BTreeSet<usize> = table.rows.iter().map(|row| row.context_tokens).collect();
    if lengths.len() < 2 {
        return Vec::new();
    }
    let lines = |title: &str, y_label: &str, note: &str, value: fn(&ContextRow) -> f64| {
        let point = |row: &&ContextRow| (row.context_tokens as f64, value(row));
        let series = policies.iter().map(|policy| Series {
            name: policy.name.clone(),
            points: policy.rows.iter().map(point).collect(),
        });
        LineChart {
            title: title.to_owned(),
            subtitle: format!("{on}Text {}. {note}", table.text),
            x_label: "prompt length, tokens".to_owned(),
            y_label: y_label.to_owned(),
            scale: Scale::Rates,
            series: series.collect(),
        }
        .draw()
    };
    let answers = format!("Answers of {} tokens at the end of the prompt.", table.generated_tokens);
    let throughput = lines(
        "Prompt throughput by policy",
        "prompt tokens/s",
        "Selection included.",
        |row| row.prefill_tokens_per_s,
    );
    let first_token = lines("Time to the first token", "seconds", "From an empty session.", |row| {
        row.time_to_first_token_ms / 1e3
    });
    let decode = lines("Answer speed at depth", "answer tokens/s", &answers, |row| {
        row.decode_tokens_per_s
    });
    vec![
        ("throughput".to_owned(), throughput),
        ("first-token".to_owned(), first_token),
        ("decode".to_owned(), decode),
    ]
}

/// Memory by part. Policies of equal memory share a picture.
fn memory(policies: &[OfPolicy<'_>], on: &str) -> Vec<(String, Picture)> {
    let mut groups: Vec<(Vec<&str>, &[&ContextRow])> = Vec::new();
    for OfPolicy { name, rows } in policies {
        let parts = |rows: &[&ContextRow]| {
            let parts = rows.iter().map(|row| (row.context_tokens, row.parts()));
            parts.collect::<Vec<_>>()
        };
        match groups.iter_mut().find(|(_, other)| parts(other) == parts(rows)) {
            Some((names, _)) => names.push(name),
            None => groups.push((vec![name.as_str()], rows)),
        }
    }
    let mut pictures = Vec::new();
    for (number, (names, rows)) in groups.iter().enumerate() {
        let Some(first) = rows.first() else { continue };
        let bar = |row: &&ContextRow| Bar {
            name: tokens(row.context_tokens as f64),
            bytes: row.parts().iter().map(|(_, bytes)| *bytes).collect(),
            mark_bytes: row.peak_resident_bytes,
        };
        let stack = Stack {
            title: "Memory by part".to_owned(),
            subtitle: format!("{on}{}.", capital(&names.join("; "))),
            x_label: "prompt length, tokens".to_owned(),
            parts: first.parts().iter().map(|(name, _)| (*name).to_owned()).collect(),
            mark: Some("peak RSS of the process".to_owned()),
            bars: rows.iter().map(bar).collect(),
        };
        let name = match groups.len() {
            1 => "memory".to_owned(),
            _ => format!("memory-{}", number + 1),
        };
        pictures.push((name, stack.draw()));
    }
    pictures
}
