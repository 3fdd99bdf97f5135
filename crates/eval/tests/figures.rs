//! Figures in README.md and docs/results are those of the records in docs/results/records.
//!
//! A figure is followed by a comment that names its record, the value in the record's `results`, and the rounding:
//!
//! ```text
//! 1,700<!-- figure context: rows[prefill=full, context_tokens=32768].prefill_tokens_per_s to 100 -->
//! 19.3<!-- figure context: rows[prefill=full, context_tokens=32768].time_to_first_token_ms / 1000 to 0.1 -->
//! 30<!-- figure needle-full: sum samples[context_tokens=4096].correct to 1 -->
//! ```
//!
//! Above a table, `<!-- figures NAME: VALUE -->` says the same of every cell: `ROW` stands for the text in its row's first cell,
//! `COLUMN` for the number that heads it (`4K` is 4096). Columns of different values have one each, `VALUE | VALUE | -`, where
//! `-` is not checked. In brackets, `name=value` chooses the items of a list by a field or by
//! a field of their `settings`; a policy is chosen by its name and those of its parameters that are given.
//!
//! `scripts/check-figures` runs this; `scripts/check-figures --write` puts the records' values in place of the figures.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

const FIGURE: &str = "<!-- figure ";
const TABLE: &str = "<!-- figures ";
const END: &str = " -->";

/// Values of records, by the name of the record.
struct Records(PathBuf);

impl Records {
    /// Looks up the figure that a comment names, rounded as the comment says.
    fn figure(&self, asked: &str) -> Result<String, String> {
        let (name, rest) = asked.split_once(": ").ok_or("no record is named")?;
        let (value, unit) = rest
            .rsplit_once(" to ")
            .ok_or("no rounding is given, as in \"to 10\"")?;
        let path = self.0.join(format!("{name}.json"));
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let record: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        rounded(value_of(&record["results"], value)?, unit)
    }
}

/// `[sum] PATH [/ NUMBER | * NUMBER]`
fn value_of(results: &Value, text: &str) -> Result<f64, String> {
    let divided = text.rsplit_once(" / ").map(|parts| (parts, true));
    let scaled = divided.or_else(|| text.rsplit_once(" * ").map(|parts| (parts, false)));
    if let Some(((value, number), is_divided)) = scaled {
        let number: f64 = number.trim().parse().map_err(|_| format!("{number} is no number"))?;
        let value = value_of(results, value)?;
        return Ok(if is_divided { value / number } else { value * number });
    }
    let (path, is_sum) = match text.strip_prefix("sum ") {
        Some(path) => (path, true),
        None => (text, false),
    };
    let found: Vec<f64> = found(results, path)?
        .iter()
        .filter_map(|value| value.as_f64())
        .collect();
    match found[..] {
        [] => Err(format!("{path}: the record has no such number")),
        [value] => Ok(value),
        _ if is_sum => Ok(found.iter().sum()),
        _ => Err(format!("{path}: the record has {} such numbers", found.len())),
    }
}

/// Every value that a path leads to.
fn found<'v>(results: &'v Value, path: &str) -> Result<Vec<&'v Value>, String> {
    let mut values = vec![results];
    let mut rest = path;
    while !rest.is_empty() {
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        values = values.into_iter().filter_map(|value| value.get(name)).collect();
        rest = after;
        if let Some(filters) = rest.strip_prefix('[') {
            let (filters, after) = filters.split_once(']').ok_or("a bracket is not closed")?;
            let items = values.into_iter().filter_map(Value::as_array).flatten();
            values = items
                .filter(|item| filters.split(", ").all(|filter| is_chosen(item, filter)))
                .collect();
            rest = after;
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    Ok(values)
}

fn is_chosen(item: &Value, filter: &str) -> bool {
    let Some((field, wanted)) = filter.split_once('=') else {
        return false;
    };
    let value = item.get(field).or_else(|| item.get("settings")?.get(field));
    match value {
        Some(Value::String(text)) => text == wanted || is_policy(text, wanted),
        Some(value) => {
            let text = value.to_string();
            text == wanted
        }
        None => false,
    }
}

fn is_policy(policy: &str, wanted: &str) -> bool {
    let parts = |text: &str| text.split([':', ',']).map(str::to_owned).collect::<Vec<_>>();
    let (policy, wanted) = (parts(policy), parts(wanted));
    policy.first() == wanted.first() && wanted.iter().all(|part| policy.contains(part))
}

/// To whole multiples of the unit, with thousands separated.
fn rounded(value: f64, unit: &str) -> Result<String, String> {
    let step: f64 = unit.parse().map_err(|_| format!("{unit} is no rounding"))?;
    let decimals = unit.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let text = format!("{:.decimals$}", (value / step).round() * step);
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    Ok(grouped + rest)
}

/// A page with the records' figures in place of its own.
#[derive(Default)]
struct Correction {
    lines: Vec<String>,
    /// Differences between the page and the records, by line.
    faults: Vec<String>,
    /// Figures that were compared.
    figures: usize,
}

/// A page with the records' figures in place of its own, and what differs, by line.
fn corrected(page: &str, records: &Records) -> (String, Vec<String>, usize) {
    let mut correction = Correction::default();
    // The current table's record, and its column names once they have been read.
    let mut table: Option<(String, Vec<String>)> = None;
    for line in page.lines() {
        if let Some(asked) = line.strip_prefix(TABLE).and_then(|rest| rest.strip_suffix(END)) {
            table = Some((asked.to_owned(), Vec::new()));
            correction.lines.push(line.to_owned());
            continue;
        }
        let mut new = line.to_owned();
        match &mut table {
            Some((asked, columns)) if line.starts_with('|') => {
                let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
                if columns.is_empty() {
                    *columns = cells.iter().map(|cell| count_of(cell)).collect();
                } else if !cells[0].starts_with("--") {
                    new = correction.row(&cells, asked, columns, records);
                }
            }
            Some((_, columns)) if !columns.is_empty() => table = None,
            _ => {}
        }
        let new = correction.line(&new, records);
        correction.lines.push(new);
    }
    let Correction { lines, faults, figures } = correction;
    (lines.join("\n") + "\n", faults, figures)
}

impl Correction {
    fn fault(&mut self, text: String) {
        self.faults.push(format!("line {}: {text}", self.lines.len() + 1));
    }

    /// A row of a table whose columns are asked for by `asked`.
    fn row(&mut self, cells: &[&str], asked: &str, columns: &[String], records: &Records) -> String {
        let mut written = vec![cells[0].to_owned()];
        let row = cells[0].trim_matches('`').replace(',', "");
        let (name, values) = asked.split_once(": ").unwrap_or((asked, "-"));
        let values: Vec<&str> = values.split(" | ").collect();
        for (place, (cell, column)) in cells.iter().zip(columns).enumerate().skip(1) {
            let value = values.get(place - 1).or(values.first().filter(|_| values.len() == 1));
            let Some(value) = value.filter(|value| **value != "-") else {
                written.push((*cell).to_owned());
                continue;
            };
            let asked = format!("{name}: {}", value.replace("ROW", &row).replace("COLUMN", column));
            self.figures += 1;
            let unit = if cell.ends_with('%') { "%" } else { "" };
            match records.figure(&asked) {
                Ok(figure) if *cell == figure.clone() + unit => written.push((*cell).to_owned()),
                Ok(figure) => {
                    self.fault(format!("{cell} is {figure}{unit} in {asked}"));
                    written.push(figure + unit);
                }
                Err(error) => {
                    self.fault(format!("{error} ({asked})"));
                    written.push((*cell).to_owned());
                }
            }
        }
        format!("| {} |", written.join(" | "))
    }

    /// A line with figures in its text.
    fn line(&mut self, line: &str, records: &Records) -> String {
        let (mut done, mut rest) = (String::new(), line);
        while let Some((before, after)) = rest.split_once(FIGURE) {
            let (asked, behind) = after.split_once(END).unwrap_or((after, ""));
            let is_figure = |c: char| c.is_ascii_digit() || c == ',' || c == '.';
            let begin = before.trim_end_matches(is_figure).len();
            let (text, quoted) = before.split_at(begin);
            self.figures += 1;
            let figure = records.figure(asked).unwrap_or_else(|error| {
                self.fault(format!("{error} ({asked})"));
                quoted.to_owned()
            });
            if figure != quoted {
                self.fault(format!("{quoted} is {figure} in {asked}"));
            }
            done += &format!("{text}{figure}{FIGURE}{asked}{END}");
            rest = behind;
        }
        done + rest
    }
}

/// `4K` is 4096.
fn count_of(text: &str) -> String {
    let count = text.strip_suffix('K').and_then(|count| count.parse::<usize>().ok());
    count.map_or(text.to_owned(), |count| (count << 10).to_string())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn quoted_figures_are_those_of_the_records() {
    let root = repository();
    let records = Records(root.join("docs/results/records"));
    let pages = fs::read_dir(root.join("docs/results")).unwrap();
    let mut pages: Vec<PathBuf> = pages
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.push(root.join("README.md"));
    pages.sort();
    let (mut faults, mut checked) = (Vec::new(), 0);
    for path in &pages {
        let page = fs::read_to_string(path).unwrap();
        let (new, found, figures) = corrected(&page, &records);
        checked += figures;
        if std::env::var_os("RIFFLE_WRITE_FIGURES").is_some() && new != page {
            fs::write(path, new).unwrap();
        }
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        faults.extend(found.iter().map(|fault| format!("{name} {fault}")));
    }
    println!("{checked} figures of {} pages compared with their records", pages.len());
    assert!(checked > 20, "the comments that name records are gone");
    assert!(faults.is_empty(), "figures differ:\n{}", faults.join("\n"));
}

#[test]
fn a_figure_that_differs_from_its_record_is_found_and_put_right() {
    let folder = tempfile::tempdir().unwrap();
    let record = r#"{"results": {"rows": [
        {"settings": {"prefill": "full"}, "tokens": 4096, "rate": 8930.66, "share": 0.2897},
        {"settings": {"prefill": "xattention:stride=8,block=128"}, "tokens": 4096, "rate": 17418.7, "share": 1}]}}"#;
    fs::write(folder.path().join("context.json"), record).unwrap();
    let records = Records(folder.path().to_owned());
    let right = "read at 8,900<!-- figure context: rows[prefill=full, tokens=4096].rate to 100 --> tokens/s, \
        17.42<!-- figure context: rows[prefill=xattention:stride=8].rate / 1000 to 0.01 -->K\n\
        <!-- figures context: rows[prefill=ROW, tokens=COLUMN].share * 100 to 1 -->\n\
        | share | 4K |\n|---|---:|\n| `full` | 29% |\n| `xattention` | 100% |\n\n\
        <!-- figures context: - | rows[prefill=ROW].rate to 1 -->\n\
        | policy | answer | tokens/s |\n|---|---|---|\n| `full` | 42 | 8,931 |\n";
    assert_eq!(corrected(right, &records), (right.to_owned(), Vec::new(), 5));
    let wrong = right.replace("8,900<", "9,000<").replace("29%", "30%");
    let (new, faults, _) = corrected(&wrong, &records);
    assert_eq!(new, right);
    assert!(faults[0].starts_with("line 1: 9,000 is 8,900 in context"), "{faults:?}");
    assert!(faults[1].starts_with("line 5: 30% is 29% in context"), "{faults:?}");
    for (broken, fault) in [
        (
            "1<!-- figure context: rows[tokens=4096].rate to 1 -->",
            "has 2 such numbers",
        ),
        (
            "1<!-- figure context: rows[prefill=flex].rate to 1 -->",
            "has no such number",
        ),
        ("1<!-- figure gone: rows[tokens=1].rate to 1 -->", "gone.json"),
        ("1<!-- figure context: rows[prefill=full].rate -->", "no rounding"),
    ] {
        let (_, faults, _) = corrected(broken, &records);
        assert!(faults[0].contains(fault), "{faults:?}");
    }
}
