//! Policies compared by score and by share of the pairs. Only the table shows times, because each prompt runs once
//! under other load; `riffle bench context` measures speed.

use std::collections::BTreeSet;

use crate::numbers::{percent, tokens};
use crate::pictures::{HeatCell, HeatMap, LineChart, Picture, Scale, Series};
use crate::record::{ComparisonRow, ComparisonTable};

pub(super) fn comparison(table: &ComparisonTable, on: &str) -> Vec<(String, Picture)> {
    let sparse = table.rows.iter().filter(|row| row.policy != "full");
    let mut phases: BTreeSet<&str> = sparse.map(|row| &*row.phase).collect();
    if phases.is_empty() {
        phases.extend(table.rows.iter().map(|row| &*row.phase));
    }
    let mut pictures = Vec::new();
    for phase in phases {
        let compared = Compared::new(table, phase);
        pictures.push((format!("scores-{phase}"), compared.scores(on).draw()));
        if compared.runs.len() > 1 {
            pictures.push((format!("shares-{phase}"), compared.shares(on).draw()));
        }
    }
    pictures
}

/// A policy under one of the budgets.
#[derive(Clone, Copy, PartialEq)]
struct Run<'a> {
    policy: &'a str,
    budget: Option<f64>,
}

/// The policies of one phase, and full attention.
struct Compared<'a> {
    phase: &'a str,
    /// Full attention, then the policies in their order.
    runs: Vec<Run<'a>>,
    /// Tasks of these policies, with their lengths in tokens.
    tasks: Vec<(&'a str, usize)>,
    rows: Vec<&'a ComparisonRow>,
}

impl<'a> Run<'a> {
    fn of(row: &'a ComparisonRow) -> Self {
        Self {
            policy: &row.policy,
            budget: row.budget,
        }
    }
}

impl<'a> Compared<'a> {
    fn new(table: &'a ComparisonTable, phase: &'a str) -> Self {
        let is_full = |row: &&ComparisonRow| row.policy == "full";
        let of_phase = || table.rows.iter().filter(|row| row.phase == phase);
        let mut tasks: Vec<(&str, usize)> = Vec::new();
        // A task that only full attention ran has no comparison.
        let asked = || of_phase().filter(|row| !is_full(row));
        for row in asked().chain(of_phase().filter(|_| asked().next().is_none())) {
            let task = (&*row.task, row.context_tokens);
            if !tasks.contains(&task) {
                tasks.push(task);
            }
        }
        let full = table.rows.iter().filter(is_full);
        let full = full.filter(|row| tasks.contains(&(&*row.task, row.context_tokens)));
        let rows: Vec<&ComparisonRow> = full.chain(asked()).collect();
        let mut runs: Vec<Run<'_>> = Vec::new();
        for run in rows.iter().map(|row| Run::of(row)) {
            if !runs.contains(&run) {
                runs.push(run);
            }
        }
        Self {
            phase,
            runs,
            tasks,
            rows,
        }
    }

    fn scores(&self, on: &str) -> HeatMap {
        let cell = |run: &Run<'_>, task: &(&str, usize)| {
            let mut rows = self.rows.iter();
            let row = rows.find(|row| Run::of(row) == *run && (&*row.task, row.context_tokens) == *task)?;
            let sign = row.miss().map_or(String::new(), |miss| format!(" {}", miss.sign()));
            Some(HeatCell {
                share: row.score.mean,
                text: format!("{} · {}{sign}", percent(row.score.mean), percent(row.density)),
            })
        };
        let missed = self.rows.iter().any(|row| row.miss().is_some());
        let signs = if missed {
            " ▲ and ▼: more and less than the policy's budget."
        } else {
            ""
        };
        HeatMap {
            title: format!("Score by policy and task, {}", self.phase),
            subtitle: format!(
                "{on}Each cell: score · share of the causal pairs that the policy read in its phase.{signs}"
            ),
            column_label: "policy, choosing in this phase; the other is dense".to_owned(),
            row_label: "task and tokens".to_owned(),
            columns: self.runs.iter().map(|run| self.column(run)).collect(),
            rows: self
                .tasks
                .iter()
                .map(|(task, length)| format!("{task} {}", tokens(*length as f64)))
                .collect(),
            cells: self
                .tasks
                .iter()
                .flat_map(|task| self.runs.iter().map(|run| cell(run, task)).collect::<Vec<_>>())
                .collect(),
            scale_label: "mean score".to_owned(),
            scale_names: vec!["0%".to_owned(), "100%".to_owned()],
        }
    }

    /// Name of a column: the policy, and its budget if the policy has several.
    fn column(&self, run: &Run<'_>) -> String {
        let name = named_in(self.phase, run.policy);
        let several = self.runs.iter().filter(|other| other.policy == run.policy).count() > 1;
        match run.budget.filter(|_| several) {
            Some(budget) => format!("{name} {}", percent(budget)),
            None => name.to_owned(),
        }
    }

    /// Mean score against mean share of the pairs. Policies of equal name with other parameters or budgets are points
    /// of one line.
    fn shares(&self, on: &str) -> LineChart {
        let mut series: Vec<Series> = Vec::new();
        for run in &self.runs {
            let rows = || self.rows.iter().filter(|row| Run::of(row) == *run);
            let mean = |value: &dyn Fn(&ComparisonRow) -> f64| {
                rows().map(|row| value(row)).sum::<f64>() / rows().count().max(1) as f64
            };
            let point = (mean(&|row| row.density), mean(&|row| row.score.mean));
            let name = named_in(self.phase, run.policy).split(':').next().unwrap_or_default();
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => series.push(Series {
                    name: name.to_owned(),
                    points: vec![point],
                }),
            }
        }
        for series in &mut series {
            series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        LineChart {
            title: format!("Score over the share of pairs read, {}", self.phase),
            subtitle: format!("{on}Means over {} pairs of task and length.", self.tasks.len()),
            x_label: "share of the causal pairs read in this phase; the other is dense".to_owned(),
            y_label: "mean score".to_owned(),
            scale: Scale::ScoreOverShare,
            series,
        }
    }
}

/// A policy's name without its phase.
fn named_in<'a>(phase: &str, policy: &'a str) -> &'a str {
    let bare = policy.strip_prefix(phase).and_then(|rest| rest.strip_prefix('='));
    bare.unwrap_or(policy)
}
