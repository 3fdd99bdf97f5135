//! One page of all records, without external files.

use std::fmt::Write as _;

use super::headline::headline;
use crate::escape::escaped;
use crate::pictures::STYLE;
use crate::record::{Header, Record, Results};

/// The kinds of measurement, with their commands.
const KINDS: [(&str, &str); 11] = [
    ("Needles in a haystack", "riffle eval needle"),
    ("RULER", "riffle eval ruler"),
    ("Perplexity", "riffle eval perplexity"),
    ("Policies compared", "riffle eval compare"),
    ("Audit of attention", "riffle eval audit"),
    ("Cost of context", "riffle bench context"),
    ("Rates of a model", "riffle bench model"),
    ("Cost of policies", "riffle bench policies"),
    ("Attention kernels", "riffle bench attention"),
    ("Attention kernels of a device", "riffle bench attention --device cuda"),
    ("KV tiers", "riffle bench kv"),
];

pub(super) fn html(records: &[Record]) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<title>Riffle: what was measured</title>\n<style>\n{}{}</style>\n</head>\n<body>\n<h1>Riffle: what was measured</h1>\n",
        include_str!("page.css"),
        *STYLE
    );
    let in_order = in_order(records);
    overview(&mut html, &in_order);
    let missing: Vec<String> = KINDS
        .iter()
        .filter(|(title, _)| records.iter().all(|record| record.results.title() != *title))
        .map(|(title, command)| format!("{title} (<code>{command}</code>)"))
        .collect();
    if !missing.is_empty() {
        let _ = writeln!(html, "<p class=\"missing\">Not run: {}.</p>", missing.join(", "));
    }
    for (number, record) in in_order.iter().enumerate() {
        section(&mut html, number, record);
    }
    html + "</body>\n</html>\n"
}

/// Sorts records by kind, in the order of [`KINDS`].
fn in_order(records: &[Record]) -> Vec<&Record> {
    let kind = |results: &Results| KINDS.iter().position(|(title, _)| *title == results.title());
    let mut records: Vec<&Record> = records.iter().collect();
    records.sort_by_key(|record| kind(&record.results));
    records
}

/// A line for each record: measurement, model, text, time and main figure.
fn overview(html: &mut String, records: &[&Record]) {
    *html += "<nav class=\"wide\"><table>\n<thead><tr><th>measurement</th><th>record</th><th>model</th><th>text</th><th>finished</th><th>riffle</th><th>main figure</th></tr></thead>\n<tbody>\n";
    for (number, record) in records.iter().enumerate() {
        let header = &record.header;
        let version = match &header.commit {
            // Twelve digits tell commits apart.
            Some(commit) => format!("{}, {}", header.version, commit.chars().take(12).collect::<String>()),
            None => header.version.clone(),
        };
        let cells = [
            header.model.as_ref().map_or("–", |model| &model.name),
            header.text.as_ref().map_or("–", |text| &text.name),
            header.date.split('T').next().unwrap_or_default(),
            &version,
            &headline(&record.results),
        ];
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
        let (title, name) = (record.results.title(), escaped(&header.name));
        let _ = writeln!(
            html,
            "<tr><td>{title}</td><td><a href=\"#r{number}\">{name}</a></td>{cells}</tr>"
        );
    }
    *html += "</tbody></table></nav>\n";
}

fn section(html: &mut String, number: usize, record: &Record) {
    let (title, name) = (record.results.title(), escaped(&record.header.name));
    let _ = writeln!(html, "<section id=\"r{number}\">\n<h2>{title}: {name}</h2>");
    head(html, &record.header);
    for table in record.tables() {
        *html += &table.to_html();
    }
    for (_, picture) in record.pictures() {
        let _ = writeln!(html, "<figure>{}</figure>", picture.inline_svg());
    }
    *html += "</section>\n";
}

fn head(html: &mut String, header: &Header) {
    let machine = &header.machine;
    let mut facts = vec![
        ("Command", format!("<code>{}</code>", escaped(&shell(&header.command)))),
        ("Seed", header.seed.to_string()),
        ("When", format!("{}, {:.0} s", escaped(&header.date), header.seconds)),
        (
            "Machine",
            format!(
                "{}, {} cores, {} threads, {}, {}, {}",
                escaped(&machine.processor),
                machine.cores,
                machine.threads,
                escaped(&machine.instructions),
                riffle_engine::human_bytes(machine.memory_bytes),
                escaped(&machine.system)
            ),
        ),
    ];
    if let Some(model) = &header.model {
        let text = format!(
            "{}: {}, {} layers ({} with attention), {} query and {} KV heads of {}, {}, fingerprint {}",
            model.name,
            model.architecture,
            model.layers,
            model.attention_layers,
            model.heads,
            model.kv_heads,
            model.head_dim,
            riffle_engine::human_bytes(model.weights_bytes),
            model.fingerprint
        );
        facts.insert(1, ("Model", escaped(&text)));
    }
    if let Some(text) = &header.text {
        let text = format!("{}, {} bytes, XXH3 {}", text.name, text.bytes, text.xxh3);
        facts.push(("Text", escaped(&text)));
    }
    let commit = header
        .commit
        .as_ref()
        .map_or_else(String::new, |commit| format!(", commit {commit}"));
    facts.push(("Riffle", escaped(&format!("{}{commit}", header.version))));
    *html += "<dl>\n";
    for (name, fact) in facts {
        let _ = writeln!(html, "<dt>{name}</dt><dd>{fact}</dd>");
    }
    *html += "</dl>\n";
}

/// A command line, quoted for a shell.
fn shell(command: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    let word = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}
