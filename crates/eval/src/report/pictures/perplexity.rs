//! Perplexity by place and by budget.

use std::collections::{BTreeMap, BTreeSet};

use crate::pictures::{HeatCell, HeatMap, LineChart, Picture, Scale, Series};
use crate::record::PerplexityTable;
use crate::report::label;

pub(super) fn perplexity(table: &PerplexityTable, on: &str) -> Vec<(String, Picture)> {
    let text = format!("{on}Text {}, {} tokens scored.", table.text, table.tokens);
    let mut pictures = Vec::new();
    if let Some(ablation) = ablation(table, &text) {
        pictures.push(("ablation".to_owned(), ablation.draw()));
    }
    // The budgets of one policy have their own picture.
    let rows = table
        .rows
        .iter()
        .filter(|row| pictures.is_empty() || budgets(&row.settings.prefill).is_none());
    let series = rows.map(|row| Series {
        name: label(&row.settings),
        points: row
            .buckets
            .iter()
            .map(|bucket| (bucket.to_position as f64, bucket.perplexity))
            .collect(),
    });
    let series: Vec<Series> = series.filter(|series| series.points.len() > 1).collect();
    if !series.is_empty() {
        let chart = LineChart {
            title: "Perplexity by place in the window".to_owned(),
            subtitle: text,
            x_label: "position in the window, tokens (end of each stretch)".to_owned(),
            y_label: "perplexity".to_owned(),
            scale: Scale::Values,
            series,
        };
        pictures.push(("positions".to_owned(), chart.draw()));
    }
    pictures
}

/// Perplexity against the local and the heavy budget, for runs that differ only in these.
fn ablation(table: &PerplexityTable, text: &str) -> Option<HeatMap> {
    let mut cells: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    let mut dense = None;
    for row in &table.rows {
        match budgets(&row.settings.prefill) {
            Some(budgets) => drop(cells.insert(budgets, row.all.perplexity)),
            None if row.settings.prefill == "full" => dense = Some(row.all.perplexity),
            None => {}
        }
    }
    let locals: BTreeSet<usize> = cells.keys().map(|(local, _)| *local).collect();
    let heavies: BTreeSet<usize> = cells.keys().map(|(_, heavy)| *heavy).collect();
    if cells.len() < 2 {
        return None;
    }
    let all = || cells.values().copied().chain(dense).filter(|value| value.is_finite());
    let (low, high) = (
        all().fold(f64::INFINITY, f64::min),
        all().fold(f64::NEG_INFINITY, f64::max),
    );
    let cell = |local: usize, heavy: usize| {
        let value = *cells.get(&(local, heavy))?;
        Some(HeatCell {
            share: (value - low) / (high - low).max(f64::MIN_POSITIVE),
            text: format!("{value:.3}"),
        })
    };
    let beside = dense.map_or(String::new(), |dense| format!(" Full attention: {dense:.3}."));
    Some(HeatMap {
        title: "Perplexity by local and heavy budget of h2o-chunk".to_owned(),
        subtitle: format!("{text}{beside} Lower is better."),
        column_label: "H: heavy tokens of the memory".to_owned(),
        row_label: "L: local tokens".to_owned(),
        columns: heavies.iter().map(usize::to_string).collect(),
        rows: locals.iter().map(usize::to_string).collect(),
        cells: locals
            .iter()
            .flat_map(|local| heavies.iter().map(|heavy| cell(*local, *heavy)).collect::<Vec<_>>())
            .collect(),
        scale_label: "perplexity".to_owned(),
        scale_names: vec![format!("{low:.3}"), format!("{high:.3}")],
    })
}

/// Local and heavy tokens of an h2o-chunk policy.
fn budgets(policy: &str) -> Option<(usize, usize)> {
    let parameters = policy.strip_prefix("h2o-chunk:")?;
    let tokens = |name: &str| {
        let mut pairs = parameters.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name)?.1.parse().ok()
    };
    Some((tokens("local")?, tokens("heavy")?))
}
