//! Speed against depth.

use super::capital;
use crate::ModelRates;
use crate::pictures::{LineChart, Picture, Scale, Series};
use crate::report::label;

/// Empty for a single depth.
pub(super) fn model(table: &ModelRates, on: &str) -> Vec<(String, Picture)> {
    if table.rates.len() < 2 {
        return Vec::new();
    }
    let at_depth = |value: fn(&crate::ModelRate) -> f64| {
        let mut points: Vec<(f64, f64)> = table
            .rates
            .iter()
            .map(|rate| (rate.depth as f64, value(rate)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let chart = LineChart {
        title: "Speed at depth".to_owned(),
        subtitle: format!("{on}{}.", capital(&label(&table.settings))),
        x_label: "tokens in the context before".to_owned(),
        y_label: "tokens/s".to_owned(),
        scale: Scale::Rates,
        series: vec![
            Series {
                name: format!("prompt of {}", table.prompt_tokens),
                points: at_depth(|rate| rate.prefill_tokens_per_s),
            },
            Series {
                name: format!("answer of {}", table.generated_tokens),
                points: at_depth(|rate| rate.decode_tokens_per_s),
            },
        ],
    };
    vec![("depth".to_owned(), chart.draw())]
}
