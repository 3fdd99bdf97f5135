mod records;

use serde_json::{Value, json};

use super::*;
use records::{records, settings};

fn page_of(folder: &std::path::Path) -> String {
    let records = Record::read_folder(folder).unwrap().records;
    std::fs::read_to_string(write_report(&records, folder).unwrap()).unwrap()
}

#[test]
fn the_page_holds_every_record_and_nothing_from_outside() {
    let folder = tempfile::tempdir().unwrap();
    for record in records() {
        record.write(folder.path()).unwrap();
    }
    let page = page_of(folder.path());
    for outside in ["http", "src=", "<link", "<script", "@import", "url(", "<img", "<iframe"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("&lt;script&gt;alert(&#39;"), "the command line, escaped");
    for part in [
        "Needles in a haystack: r5",
        "RULER: r4",
        "Perplexity: r3",
        "Policies compared: r2",
        "Audit of attention: r1",
        "Cost of context: r0",
        "viewport",
        "prefers-color-scheme",
        "Machine",
        "Seed",
        "fingerprint 00",
        "niah_single_1",
        "held out.txt",
        "Perplexity by local and heavy budget",
        "Attention of layer 1, head 2",
        "Where attention lies beyond",
        "Memory by part",
        "Rates of a model: r6",
        "Cost of policies: r7",
        "Attention kernels: r8",
        "KV tiers: r9",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    assert!(!page.contains("Not run"), "every kind is there");
    let pictures = page.matches("<svg").count();
    assert_eq!(pictures, page.matches("aria-label").count());
    assert!(pictures >= 13, "{pictures}");
    // Tags are closed in order.
    let wrapped = page
        .replace("<!DOCTYPE html>", "")
        .replace("<meta ", "<m ")
        .replace("<wbr>", "");
    let mut open: Vec<&str> = Vec::new();
    for tag in wrapped.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
        let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap();
        match tag {
            _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name)),
            _ if tag.ends_with('/') || name == "m" => {}
            _ => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn kinds_that_are_missing_are_named_and_a_broken_record_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    records()[0].write(folder.path()).unwrap();
    let page = page_of(folder.path());
    let missing = page.lines().find(|line| line.contains("Not run")).unwrap();
    assert!(
        missing.contains("riffle eval audit") && !missing.contains("riffle bench context"),
        "{missing}"
    );
    for broken in ["", "{", "[]", "{\"kind\": \"audit\"}"] {
        std::fs::write(folder.path().join("broken.json"), broken).unwrap();
        let found = Record::read_folder(folder.path()).unwrap();
        assert_eq!(found.records.len(), 1);
        let message = found.skipped[0].to_string();
        assert!(message.contains("broken.json") && !message.contains('\n'), "{message}");
    }
    std::fs::write(folder.path().join("report.html"), "my own page").unwrap();
    let message = write_report(&records(), folder.path()).unwrap_err().to_string();
    assert!(message.contains("is not a page of riffle eval report"), "{message}");
}

#[test]
fn pictures_of_every_kind_have_names_of_their_own() {
    for record in records() {
        let pictures = record.pictures();
        let names: std::collections::BTreeSet<&String> = pictures.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), pictures.len());
        let tables_only = matches!(
            record.results,
            Results::Policies(_) | Results::Attention(_) | Results::Device(_) | Results::Kv(_)
        );
        assert_eq!(pictures.is_empty(), tables_only, "{}", record.results.title());
        assert!(record.tables().iter().all(|table| !table.rows.is_empty()));
        for table in record.tables() {
            assert!(
                table.rows.iter().all(|row| row.len() == table.columns.len()),
                "{}",
                table.caption
            );
        }
    }
}

#[test]
fn runs_are_named_by_what_differs_from_the_defaults() {
    let mut run = settings("xattention");
    run.prefill = "xattention".parse::<PolicySpec>().unwrap().to_string();
    assert_eq!(label(&run), "prefill xattention");
    run.decode = "streaming"
        .parse::<PolicySpec>()
        .unwrap()
        .with("window", "77")
        .unwrap()
        .to_string();
    run.value_format = "q4_0".to_owned();
    run.tiers = "ram 4 MiB".to_owned();
    assert_eq!(
        label(&run),
        "prefill xattention, decode streaming:window=77, KV f16:q4_0, ram 4 MiB"
    );
    let selected = RunSettings {
        token_selection: Some("0.1,layers=10".to_owned()),
        compress: Some("kvzip:0.3".to_owned()),
        ..settings("full")
    };
    assert_eq!(label(&selected), "full, tokens 0.1,layers=10, compressed by kvzip:0.3");
    assert_eq!(label(&settings("full")), "full");
}

/// Every number and list of a value, with its path.
fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, field)| places(field, &format!("{path}/{name}"), found)),
        Value::Array(items) => {
            found.push(path.to_owned());
            // The first item represents the others.
            let items = items.iter().take(1).enumerate();
            items.for_each(|(place, item)| places(item, &format!("{path}/{place}"), found));
        }
        Value::Number(_) => found.push(path.to_owned()),
        _ => {}
    }
}

#[test]
fn a_record_with_any_number_or_list_changed_is_left_out_or_drawn() {
    let changes = [json!(-1), json!(1u64 << 40), json!(u64::MAX), json!(1e300), json!([])];
    let (mut drawn, mut left_out) = (0, 0);
    for record in records() {
        let whole = serde_json::to_value(&record).unwrap();
        let mut found = Vec::new();
        places(&whole, "", &mut found);
        for path in found {
            for change in &changes {
                let mut changed = whole.clone();
                *changed.pointer_mut(&path).unwrap() = change.clone();
                match Record::parse(&changed.to_string(), Path::new("changed.json")) {
                    Ok(record) => {
                        record.tables().iter().for_each(|table| drop(table.to_html()));
                        drawn += record.pictures().len() + 1;
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("changed.json"), "{error}");
                        left_out += 1;
                    }
                }
            }
        }
    }
    assert!(drawn > 100 && left_out > 100, "{drawn} {left_out}");
}

#[test]
fn records_that_no_measurement_makes_are_refused_with_the_reason() {
    let of_kind = |title: &str| {
        let records = records();
        let record = records.iter().find(|record| record.results.title() == title).unwrap();
        serde_json::to_value(record).unwrap()
    };
    for (title, path, value, reason) in [
        (
            "Needles in a haystack",
            "/results/samples/0/correct",
            json!(99),
            "correct is 99 of",
        ),
        (
            "Needles in a haystack",
            "/results/samples/0/depth_index",
            json!(1u64 << 40),
            "depth_index is 1099511627776",
        ),
        (
            "Needles in a haystack",
            "/results/samples/0/depth",
            json!(-0.5),
            "depth is -0.5, not a share",
        ),
        ("RULER", "/results/samples/0/score", json!(7), "score is 7, not a share"),
        (
            "Policies compared",
            "/results/rows/0/score/mean",
            json!(0.9),
            "outside its interval",
        ),
        ("Perplexity", "/results/rows/0/all/nll", json!(-1.0), "nll is -1"),
        (
            "Audit of attention",
            "/results/heads/0/layer",
            json!(1u64 << 40),
            "layer is 1099511627776, too large",
        ),
        ("Audit of attention", "/results/map/cells", json!(3), "a map of 3"),
        (
            "Cost of context",
            "/results/rows/0/kv_ram_bytes",
            json!(u64::MAX),
            "too large",
        ),
        ("Cost of context", "/name", json!("../up"), "not a file name"),
        ("Cost of context", "/seconds", json!(null), "null"),
    ] {
        let mut record = of_kind(title);
        *record.pointer_mut(path).unwrap() = value;
        let message = Record::parse(&record.to_string(), Path::new("x.json"))
            .unwrap_err()
            .to_string();
        assert!(
            message.contains(reason) && message.contains("x.json"),
            "{reason}: {message}"
        );
    }
}
