//! Pictures of exact attention and of the mass that a policy keeps.

use std::collections::BTreeMap;

use super::capital;
use crate::numbers::percent;
use crate::pictures::{HeatCell, HeatMap, LineChart, Picture, Scale, Series, ShareMap};
use crate::report::label;
use crate::{AttentionMap, AuditTable, AuditedHead, AuditedRows};

pub(super) fn audit(table: &AuditTable, on: &str) -> Vec<(String, Picture)> {
    let run = format!(
        "{on}{}, {}, {} tokens.",
        capital(&label(&table.settings)),
        table.text,
        table.tokens
    );
    let map = table.map.as_ref().map(|map| attention(table, map, &run));
    let named = [
        ("attention", map),
        ("heavy-hitters", Some(heavy_hitters(table, &run))),
        ("kept", Some(kept_by_head(table, &run))),
        ("rows", Some(kept_by_row(table, &run))),
    ];
    let drawn = named
        .into_iter()
        .filter_map(|(name, picture)| Some((name.to_owned(), picture?)));
    drawn.collect()
}

/// Map of one head's attention by query.
fn attention(table: &AuditTable, map: &AttentionMap, run: &str) -> Picture {
    let sparse = table.density < 0.9995;
    let chosen = |read: &Vec<f64>| read.iter().map(|share| *share >= 0.5).collect();
    ShareMap {
        title: format!("Attention of layer {}, head {}", map.layer, map.head),
        subtitle: format!("{run} True attention, averaged over each cell's sampled queries."),
        row_label: "position of the query, tokens".to_owned(),
        row_names: Vec::new(),
        rows: map.cells,
        columns: map.cells,
        tokens: table.tokens,
        shares: map.shares.clone(),
        chosen: if sparse { chosen(&map.read) } else { Vec::new() },
        remarks: None,
    }
    .draw()
}

fn kept_by_head(table: &AuditTable, run: &str) -> Picture {
    let layers = table.heads.iter().map(|head| head.layer + 1).max().unwrap_or(0);
    let heads = table.heads.iter().map(|head| head.head + 1).max().unwrap_or(0);
    let mut cells = vec![None; layers * heads];
    for head in &table.heads {
        cells[head.layer * heads + head.head] = Some(HeatCell {
            share: kept_shade(head.mean_mass),
            text: kept_text(head.mean_mass),
        });
    }
    HeatMap {
        title: "True attention kept, by layer and head".to_owned(),
        subtitle: format!("{run} Mean share of the exact softmax mass that was read, not renormalised."),
        column_label: "query head".to_owned(),
        row_label: "layer".to_owned(),
        columns: (0..heads).map(|head| head.to_string()).collect(),
        rows: (0..layers).map(|layer| layer.to_string()).collect(),
        cells,
        scale_label: "mass kept; shades by the mass lost, logarithmic".to_owned(),
        scale_names: ["0%", "90%", "99%", "99.9%", "99.99%"].map(str::to_owned).to_vec(),
    }
    .draw()
}

fn kept_by_row(table: &AuditTable, run: &str) -> Picture {
    let line = |name: &str, value: fn(&AuditedRows) -> f64| Series {
        name: name.to_owned(),
        points: table
            .rows
            .iter()
            .map(|row| (row.to_position as f64, 100.0 * value(row)))
            .collect(),
    };
    LineChart {
        title: "True attention kept, by place in the text".to_owned(),
        subtitle: format!("{run} Over all layers and heads."),
        x_label: "position of the query, tokens".to_owned(),
        y_label: "mass kept, %".to_owned(),
        scale: Scale::Shares,
        series: vec![
            line("mean", |row| row.mean_mass),
            line("first percentile", |row| row.first_percentile_mass),
            line("lowest", |row| row.lowest_mass),
        ],
    }
    .draw()
}

/// Lost mass below this has the shade of none.
const LEAST_LOST: f64 = 1e-4;

/// The shade of a head's lost mass on a logarithmic scale: a factor of ten is a quarter of the scale.
fn kept_shade(kept: f64) -> f64 {
    ((1.0 - kept).max(LEAST_LOST).log10() / LEAST_LOST.log10()).clamp(0.0, 1.0)
}

/// The kept mass, with enough digits to show the loss.
fn kept_text(kept: f64) -> String {
    let lost = 1.0 - kept;
    match lost {
        _ if lost <= 0.0 => "100%".to_owned(),
        0.01.. => percent(kept),
        0.0001.. => format!("{:.2}%", 100.0 * kept),
        _ => "≥ 99.99%".to_owned(),
    }
}

/// Map of each head's attention; with many heads, the mean of each layer.
fn heavy_hitters(table: &AuditTable, run: &str) -> Picture {
    const MOST_ROWS: usize = 64;
    let mut groups: BTreeMap<(usize, usize), Vec<&AuditedHead>> = BTreeMap::new();
    let by_layer = table.heads.len() > MOST_ROWS;
    for head in &table.heads {
        let key = if by_layer {
            (head.layer, 0)
        } else {
            (head.layer, head.head)
        };
        groups.entry(key).or_default().push(head);
    }
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let columns = table.heads.first().map_or(1, |head| head.far_shares.len());
    let shares = groups.values().flat_map(|heads| {
        (0..columns).map(move |column| mean(heads.iter().map(|head| head.far_shares[column]).collect()))
    });
    let remark = |heads: &Vec<&AuditedHead>| {
        let jaccards: Vec<f64> = heads.iter().filter_map(|head| head.heavy_jaccard).collect();
        let sinks = percent(mean(heads.iter().map(|head| head.sink_mass).collect()));
        if jaccards.is_empty() {
            format!("{sinks} · –")
        } else {
            format!("{sinks} · {:.2}", mean(jaccards))
        }
    };
    let shares: Vec<f64> = shares.collect();
    ShareMap {
        title: format!("Where attention lies beyond the latest {} tokens", table.local_tokens),
        subtitle: format!(
            "{run} Right: attention on the first {} tokens; Jaccard index of the {} heaviest keys of neighbouring chunks.",
            table.sink_tokens, table.heavy_tokens
        ),
        row_label: if by_layer { "layer" } else { "layer · head" }.to_owned(),
        row_names: groups
            .keys()
            .map(|(layer, head)| if by_layer { layer.to_string() } else { format!("{layer} · {head}") })
            .collect(),
        rows: groups.len(),
        columns,
        tokens: table.tokens,
        shares,
        chosen: Vec::new(),
        remarks: Some(("sinks · alike".to_owned(), groups.values().map(remark).collect())),
    }
    .draw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pictures::shade;

    #[test]
    fn heads_that_differ_in_what_they_lose_differ_in_shade_and_text() {
        let kept = [0.0, 0.5, 0.85, 0.95, 0.99, 0.998, 0.9995, 0.99995];
        let shades = kept.map(|kept| shade(kept_shade(kept)));
        assert!(shades.windows(2).all(|pair| pair[0] < pair[1]), "{shades:?}");
        assert!(shades[5] - shades[2] >= 5, "{shades:?}");
        assert_eq!(
            [0.85, 0.998, 0.9996, 0.99995, 1.0].map(kept_text),
            ["85%", "99.80%", "99.96%", "≥ 99.99%", "100%"]
        );
    }
}
