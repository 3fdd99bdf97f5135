//! Results as pictures.

use std::collections::{BTreeMap, BTreeSet};

use super::label;
use crate::numbers::{percent, tokens};
use crate::pictures::{Bar, HeatCell, HeatMap, LineChart, Picture, Scale, Series, ShareMap, Stack};
use crate::record::{
    AskPlace, ComparisonTable, NeedleCell, NeedleKind, NeedleTable, PerplexityTable, Record, Results, RulerTable,
};
use crate::{AuditTable, ContextRow, ContextTable};

pub(super) fn of(record: &Record) -> Vec<(String, Picture)> {
    let on = record.header.model.as_ref().map_or(String::new(), |model| {
        let size = riffle_engine::human_bytes(model.weights_bytes);
        format!("Model “{}” ({}, {size}). ", model.name, model.architecture)
    });
    match &record.results {
        Results::Needle(needle) => self::needle(needle, &on),
        Results::Ruler(ruler) => vec![("scores".to_owned(), self::ruler(ruler, &on))],
        Results::Perplexity(perplexity) => self::perplexity(perplexity, &on),
        Results::Comparison(comparison) => self::comparison(comparison, &on),
        Results::Audit(audit) => self::audit(audit, &on),
        Results::Context(context) => self::context(context, &on),
        // What they show is read off their tables.
        Results::Model(_) | Results::Policies(_) | Results::Attention(_) | Results::Device(_) | Results::Kv(_) => {
            Vec::new()
        }
    }
}

fn needle(table: &NeedleTable, on: &str) -> Vec<(String, Picture)> {
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
            scale_ends: ["none".to_owned(), "all".to_owned()],
        };
        (format!("{kind}-{place}"), picture.draw())
    };
    maps.into_iter().map(map).collect()
}

/// `3/4` where whole answers were counted.
fn found(cell: &NeedleCell) -> String {
    let right = cell.score.mean * cell.score.samples as f64;
    match (right - right.round()).abs() < 1e-6 {
        true => format!("{right:.0}/{}", cell.score.samples),
        false => percent(cell.score.mean),
    }
}

fn ruler(table: &RulerTable, on: &str) -> Picture {
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
        scale_ends: ["0%".to_owned(), "100%".to_owned()],
    }
    .draw()
}

fn perplexity(table: &PerplexityTable, on: &str) -> Vec<(String, Picture)> {
    let text = format!("{on}Text {}, {} tokens scored.", table.text, table.tokens);
    let mut pictures = Vec::new();
    if let Some(ablation) = ablation(table, &text) {
        pictures.push(("ablation".to_owned(), ablation.draw()));
    }
    // Budgets of one policy have a picture of their own.
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

/// Perplexity over the local and the heavy budget, of runs that differ in these.
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
        scale_ends: [format!("{low:.3}"), format!("{high:.3}")],
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

fn comparison(table: &ComparisonTable, on: &str) -> Vec<(String, Picture)> {
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
            columns: policies.iter().map(|policy| (*policy).to_owned()).collect(),
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
                    name: (*policy).to_owned(),
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

fn audit(table: &AuditTable, on: &str) -> Vec<(String, Picture)> {
    let run = format!(
        "{on}{}, {}, {} tokens.",
        capital(&label(&table.settings)),
        table.text,
        table.tokens
    );
    let mut pictures = Vec::new();
    if let Some(map) = &table.map {
        let sparse = table.density < 0.9995;
        let chosen = |read: &Vec<f64>| read.iter().map(|share| *share >= 0.5).collect();
        let map = ShareMap {
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
        };
        pictures.push(("attention".to_owned(), map.draw()));
    }
    pictures.push(("heavy-hitters".to_owned(), heavy_hitters(table, &run)));
    let layers = table.heads.iter().map(|head| head.layer + 1).max().unwrap_or(0);
    let heads = table.heads.iter().map(|head| head.head + 1).max().unwrap_or(0);
    let mut cells = vec![None; layers * heads];
    for head in &table.heads {
        cells[head.layer * heads + head.head] = Some(HeatCell {
            share: head.mean_mass,
            text: percent(head.mean_mass),
        });
    }
    let kept = HeatMap {
        title: "True attention kept, by layer and head".to_owned(),
        subtitle: format!("{run} Mean share of the exact softmax mass that was read, not renormalised."),
        column_label: "query head".to_owned(),
        row_label: "layer".to_owned(),
        columns: (0..heads).map(|head| head.to_string()).collect(),
        rows: (0..layers).map(|layer| layer.to_string()).collect(),
        cells,
        scale_label: "mass kept".to_owned(),
        scale_ends: ["0%".to_owned(), "100%".to_owned()],
    };
    pictures.push(("kept".to_owned(), kept.draw()));
    let line = |name: &str, value: fn(&crate::AuditedRows) -> f64| Series {
        name: name.to_owned(),
        points: table
            .rows
            .iter()
            .map(|row| (row.to_position as f64, 100.0 * value(row)))
            .collect(),
    };
    let rows = LineChart {
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
    };
    pictures.push(("rows".to_owned(), rows.draw()));
    pictures
}

/// Where the attention of each head lies; of many heads, the mean of each layer.
fn heavy_hitters(table: &AuditTable, run: &str) -> Picture {
    const MOST_ROWS: usize = 64;
    let mut groups: BTreeMap<(usize, usize), Vec<&crate::AuditedHead>> = BTreeMap::new();
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
    let remark = |heads: &Vec<&crate::AuditedHead>| {
        let jaccards: Vec<f64> = heads.iter().filter_map(|head| head.heavy_jaccard).collect();
        let sinks = percent(mean(heads.iter().map(|head| head.sink_mass).collect()));
        match jaccards.is_empty() {
            true => format!("{sinks} · –"),
            false => format!("{sinks} · {:.2}", mean(jaccards)),
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

fn context(table: &ContextTable, on: &str) -> Vec<(String, Picture)> {
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

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
