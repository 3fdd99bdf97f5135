//! Throughput and memory against length.

use std::collections::BTreeSet;

use super::capital;
use crate::numbers::tokens;
use crate::pictures::{Bar, LineChart, Picture, Scale, Series, Stack};
use crate::report::label;
use crate::{ContextRow, ContextTable};

pub(super) fn context(table: &ContextTable, on: &str) -> Vec<(String, Picture)> {
    let mut policies: Vec<String> = Vec::new();
    for row in &table.rows {
        let name = label(&row.settings);
        if !policies.contains(&name) {
            policies.push(name);
        }
    }
    let series = |value: fn(&ContextRow) -> f64| -> Vec<Series> {
        let of = |name: &String| {
            let rows = table.rows.iter().filter(|row| label(&row.settings) == *name);
            let mut points: Vec<(f64, f64)> = rows.map(|row| (row.context_tokens as f64, value(row))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series {
                name: name.clone(),
                points,
            }
        };
        policies.iter().map(of).collect()
    };
    let text = format!("Text {}", table.text);
    let lines = |title: &str, y_label: &str, note: &str, value: fn(&ContextRow) -> f64| {
        LineChart {
            title: title.to_owned(),
            subtitle: format!("{on}{text}. {note}"),
            x_label: "prompt length, tokens".to_owned(),
            y_label: y_label.to_owned(),
            scale: Scale::Rates,
            series: series(value),
        }
        .draw()
    };
    let answers = format!("Answers of {} tokens at the end of the prompt.", table.generated_tokens);
    let mut pictures = vec![
        (
            "throughput".to_owned(),
            lines(
                "Prompt throughput by policy",
                "prompt tokens/s",
                "Selection included.",
                |row| row.prefill_tokens_per_s,
            ),
        ),
        (
            "first-token".to_owned(),
            lines("Time to the first token", "seconds", "From an empty session.", |row| {
                row.time_to_first_token_ms / 1e3
            }),
        ),
        (
            "decode".to_owned(),
            lines("Answer speed at depth", "answer tokens/s", &answers, |row| {
                row.decode_tokens_per_s
            }),
        ),
    ];
    // A single length makes no line.
    let lengths: BTreeSet<usize> = table.rows.iter().map(|row| row.context_tokens).collect();
    if lengths.len() < 2 {
        pictures.clear();
    }
    // Policies whose memory is the same share a picture.
    let mut groups: Vec<(Vec<&str>, Vec<&ContextRow>)> = Vec::new();
    for policy in &policies {
        let rows = table.rows.iter().filter(|row| label(&row.settings) == *policy);
        let mut rows: Vec<&ContextRow> = rows.collect();
        rows.sort_by_key(|row| row.context_tokens);
        let parts = |rows: &[&ContextRow]| {
            rows.iter()
                .map(|row| (row.context_tokens, row.parts()))
                .collect::<Vec<_>>()
        };
        match groups.iter_mut().find(|(_, other)| parts(other) == parts(&rows)) {
            Some((names, _)) => names.push(policy),
            None => groups.push((vec![policy.as_str()], rows)),
        }
    }
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
