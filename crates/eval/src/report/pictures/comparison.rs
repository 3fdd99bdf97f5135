//! Policies beside each other: what they find. Times are in the table alone, since each prompt is read once and beside
//! whatever else the machine does; `riffle bench context` measures speed.

use std::collections::BTreeSet;

use crate::numbers::{percent, tokens};
use crate::pictures::{HeatCell, HeatMap, Picture};
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
            scale_names: vec!["0%".to_owned(), "100%".to_owned()],
        };
        pictures.push((format!("scores-{phase}"), map.draw()));
    }
    pictures
}

/// A policy's name where its phase is said already.
fn named_in(phase: &str, policy: &str) -> String {
    let bare = policy.strip_prefix(phase).and_then(|rest| rest.strip_prefix('='));
    bare.unwrap_or(policy).to_owned()
}
