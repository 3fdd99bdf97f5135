//! Policies beside each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::numbers::{percent, tokens};
use crate::pictures::{HeatCell, HeatMap, LineChart, Picture, Scale, Series};
use crate::record::ComparisonTable;

pub(super) fn comparison(table: &ComparisonTable, on: &str) -> Vec<(String, Picture)> {
    let mut pictures = Vec::new();
    let phases: BTreeSet<&str> = table.rows.iter().map(|row| &*row.phase).collect();
    for phase in phases {
        let rows: Vec<_> = table.rows.iter().filter(|row| row.phase == phase).collect();
        let mut policies: Vec<&str> = Vec::new();
        let mut tasks: Vec<(String, usize)> = Vec::new();
        for row in &rows {
            if !policies.contains(&&*row.policy) {
                policies.push(&row.policy);
            }
            let task = (row.task.clone(), row.context_tokens);
            if !tasks.contains(&task) {
                tasks.push(task);
            }
        }
        let cell = |policy: &str, (task, length): &(String, usize)| {
            let mut rows = rows
                .iter()
                .filter(|row| row.policy == policy && row.task == *task && row.context_tokens == *length);
            rows.next().map(|row| HeatCell {
                share: row.score.mean,
                text: format!("{} · {}", percent(row.score.mean), percent(row.density)),
            })
        };
        let map = HeatMap {
            title: format!("Score by policy and task, {phase}"),
            subtitle: format!("{on}Each cell: score · share of the causal pairs that the policy read in its phase."),
            column_label: "policy, choosing in this phase; the other is dense".to_owned(),
            row_label: "task and tokens".to_owned(),
            columns: policies.iter().map(|policy| named_in(phase, policy)).collect(),
            rows: tasks
                .iter()
                .map(|(task, length)| format!("{task} {}", tokens(*length as f64)))
                .collect(),
            cells: tasks
                .iter()
                .flat_map(|task| policies.iter().map(|policy| cell(policy, task)).collect::<Vec<_>>())
                .collect(),
            scale_label: "mean score".to_owned(),
            scale_ends: ["0%".to_owned(), "100%".to_owned()],
        };
        pictures.push((format!("scores-{phase}"), map.draw()));
        if phase == "prefill" {
            let series = policies.iter().map(|policy| {
                let mut lengths: BTreeMap<usize, f64> = BTreeMap::new();
                for row in rows.iter().filter(|row| row.policy == *policy && row.prefill_ms > 0.0) {
                    let rate = row.context_tokens as f64 / row.prefill_ms * 1e3;
                    let best = lengths.entry(row.context_tokens).or_insert(rate);
                    *best = best.max(rate);
                }
                Series {
                    name: named_in(phase, policy),
                    points: lengths
                        .into_iter()
                        .map(|(length, rate)| (length as f64, rate))
                        .collect(),
                }
            });
            let chart = LineChart {
                title: "Prompt throughput by policy".to_owned(),
                subtitle: format!("{on}Best task of each length, selection included."),
                x_label: "prompt length, tokens".to_owned(),
                y_label: "prompt tokens/s".to_owned(),
                scale: Scale::Rates,
                series: series.collect(),
            };
            if chart.series.iter().any(|series| series.points.len() > 1) {
                pictures.push(("throughput".to_owned(), chart.draw()));
            }
        }
    }
    pictures
}

/// A policy's name where its phase is said already.
fn named_in(phase: &str, policy: &str) -> String {
    let bare = policy.strip_prefix(phase).and_then(|rest| rest.strip_prefix('='));
    bare.unwrap_or(policy).to_owned()
}
