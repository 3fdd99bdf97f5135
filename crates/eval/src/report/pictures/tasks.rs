//! Needles and RULER.

use std::collections::{BTreeMap, BTreeSet};

use super::capital;
use crate::numbers::{percent, tokens};
use crate::pictures::{HeatCell, HeatMap, Picture};
use crate::record::{AskPlace, NeedleCell, NeedleKind, NeedleTable, RulerTable};
use crate::report::label;

pub(super) fn needle(table: &NeedleTable, on: &str) -> Vec<(String, Picture)> {
    let mut maps: BTreeMap<(NeedleKind, AskPlace), Vec<NeedleCell>> = BTreeMap::new();
    for cell in table.cells() {
        maps.entry((cell.kind, cell.place)).or_default().push(cell);
    }
    let map = |((kind, place), cells): ((NeedleKind, AskPlace), Vec<NeedleCell>)| {
        let asked = match place {
            AskPlace::End => "asked at the end",
            AskPlace::Middle => "asked in mid-document",
            AskPlace::Late => "asked after the document was read",
            AskPlace::SecondTurn => "asked in a second turn",
        };
        let lengths: BTreeSet<usize> = cells.iter().map(|cell| cell.context_tokens).collect();
        let lengths: Vec<usize> = lengths.into_iter().collect();
        let depths = cells.iter().map(|cell| cell.depth_index + 1).max().unwrap_or(0);
        let mut shown = vec![None; lengths.len() * depths];
        let mut depth_sums = vec![(0.0, 0); depths];
        for cell in &cells {
            let column = lengths.partition_point(|length| *length < cell.context_tokens);
            let sum = &mut depth_sums[cell.depth_index];
            *sum = (sum.0 + cell.depth, sum.1 + 1);
            shown[cell.depth_index * lengths.len() + column] = Some(HeatCell {
                share: cell.score.mean,
                text: found(cell),
            });
        }
        let picture = HeatMap {
            title: format!("Needles found: {kind}, {asked}"),
            subtitle: format!("{on}{}.", capital(&label(&table.settings))),
            column_label: "document length, tokens".to_owned(),
            row_label: "depth in the document".to_owned(),
            columns: lengths.iter().map(|length| tokens(*length as f64)).collect(),
            rows: depth_sums
                .iter()
                .map(|(sum, count)| format!("{:.0}%", 100.0 * sum / f64::from((*count).max(1))))
                .collect(),
            cells: shown,
            scale_label: "found exactly".to_owned(),
            scale_names: vec!["none".to_owned(), "all".to_owned()],
        };
        (format!("{kind}-{place}"), picture.draw())
    };
    maps.into_iter().map(map).collect()
}

/// `3/4` for counts of whole answers.
fn found(cell: &NeedleCell) -> String {
    let right = cell.score.mean * cell.score.samples as f64;
    if (right - right.round()).abs() < 1e-6 {
        format!("{right:.0}/{}", cell.score.samples)
    } else {
        percent(cell.score.mean)
    }
}

pub(super) fn ruler(table: &RulerTable, on: &str) -> Picture {
    let cells = table.cells();
    let lengths: BTreeSet<usize> = cells.iter().map(|cell| cell.context_tokens).collect();
    let mut tasks: Vec<String> = Vec::new();
    for cell in &cells {
        if !tasks.contains(&cell.task) {
            tasks.push(cell.task.clone());
        }
    }
    let cell = |task: &String, length: usize| {
        let cell = cells
            .iter()
            .find(|cell| cell.task == *task && cell.context_tokens == length)?;
        Some(HeatCell {
            share: cell.score.mean,
            text: percent(cell.score.mean),
        })
    };
    HeatMap {
        title: "RULER: score by task and length".to_owned(),
        subtitle: format!("{on}{}.", capital(&label(&table.settings))),
        column_label: "context length, tokens".to_owned(),
        row_label: "task".to_owned(),
        columns: lengths.iter().map(|length| tokens(*length as f64)).collect(),
        cells: tasks
            .iter()
            .flat_map(|task| lengths.iter().map(|length| cell(task, *length)).collect::<Vec<_>>())
            .collect(),
        rows: tasks,
        scale_label: "mean score".to_owned(),
        scale_names: vec!["0%".to_owned(), "100%".to_owned()],
    }
    .draw()
}
