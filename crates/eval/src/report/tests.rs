use serde_json::{Value, json};

use super::*;
use crate::record::testing::header;
use crate::record::{
    AskPlace, ComparisonRow, ComparisonTable, NeedleKind, NeedleSample, NeedleTable, PerplexityBucket, PerplexityRow,
    PerplexityTable, RulerSample, RulerTable,
};
use crate::{
    AheadRate, AttentionMap, AttentionRate, AttentionReport, AuditTable, AuditedHead, AuditedRows, ContextRow,
    ContextTable, DecodeRate, DevicePolicyRate, DeviceRate, DeviceReport, InstructionRate, Interval, KeyKind, KvBytes,
    KvRates, ModelRate, ModelRates, OffloadRate, PolicyRate, PolicyRates, StreamRate,
};

fn settings(prefill: &str) -> RunSettings {
    RunSettings {
        prefill: prefill.to_owned(),
        decode: "full".to_owned(),
        key_format: "f16".to_owned(),
        value_format: "f16".to_owned(),
        page_tokens: 256,
        batch_tokens: 4096,
        chunk_tokens: 512,
        context_tokens: 8192,
        tiers: "ram".to_owned(),
    }
}

fn needle() -> Results {
    let sample = |length: usize, depth: usize| NeedleSample {
        kind: NeedleKind::MultiKey,
        place: AskPlace::Late,
        context_tokens: length,
        depth_index: depth,
        depth: (depth + 1) as f64 / 4.0,
        distance_tokens: 10,
        seed: 1,
        names: vec!["<b>".to_owned()],
        expected: vec!["1".to_owned()],
        answered: "1".to_owned(),
        correct: usize::from(depth != 1),
    };
    Results::Needle(NeedleTable {
        settings: settings("full"),
        wording: "plain".to_owned(),
        samples: [2048, 4096]
            .iter()
            .flat_map(|length| (0..3).map(|depth| sample(*length, depth)))
            .collect(),
    })
}

fn ruler() -> Results {
    Results::Ruler(RulerTable {
        settings: settings("full"),
        wording: "plain".to_owned(),
        samples: vec![RulerSample {
            task: "niah_single_1".to_owned(),
            context_tokens: 4096,
            prompt_tokens: 4000,
            seed: 1,
            expected: vec!["1".to_owned()],
            answered: "1".to_owned(),
            score: 1.0,
        }],
    })
}

fn perplexity() -> Results {
    let row = |prefill: &str, perplexity: f64| {
        let bucket = |to_position: usize| PerplexityBucket {
            to_position,
            tokens: 100,
            nll: perplexity.ln(),
            perplexity,
            ..PerplexityBucket::default()
        };
        PerplexityRow {
            settings: settings(prefill),
            density: 0.5,
            all: bucket(4096),
            buckets: vec![bucket(2048), bucket(4096)],
        }
    };
    Results::Perplexity(PerplexityTable {
        text: "held out.txt".to_owned(),
        tokens: 1000,
        window_tokens: 4096,
        stride_tokens: 2048,
        rows: vec![
            row("full", 10.0),
            row("h2o-chunk:local=64,heavy=64,score=sum,from=auto", 14.0),
            row("h2o-chunk:local=256,heavy=64,score=sum,from=auto", 12.0),
            row("h2o-chunk:local=256,heavy=256,score=sum,from=auto", 11.0),
        ],
    })
}

fn comparison() -> Results {
    let row = |policy: &str, tokens: usize| ComparisonRow {
        policy: policy.to_owned(),
        phase: "prefill".to_owned(),
        task: "vt".to_owned(),
        context_tokens: tokens,
        budget: None,
        settings: settings(policy),
        score: Interval {
            mean: 0.5,
            low: 0.25,
            high: 0.75,
            samples: 8,
        },
        density: 0.125,
        prefill_ms: 100.0,
        decode_ms: 1.5,
        decode_bytes: 4096.0,
    };
    Results::Comparison(ComparisonTable {
        rows: vec![
            row("full", 2048),
            row("full", 8192),
            row("streaming", 2048),
            row("streaming", 8192),
        ],
    })
}

fn audit() -> Results {
    let head = |layer: usize, head: usize| AuditedHead {
        layer,
        head,
        kv_head: head / 2,
        samples: 64,
        mean_mass: 0.75,
        first_percentile_mass: 0.5,
        mean_output_error: 0.125,
        density: 0.25,
        sink_mass: 0.5,
        local_mass: 0.25,
        heavy_mass: 0.875,
        heavy_jaccard: (layer == 0).then_some(0.625),
        far_shares: vec![0.5, 0.25, 0.125, 0.125],
    };
    let heads = (0..2).flat_map(|layer| (0..4).map(move |number| head(layer, number)));
    Results::Audit(AuditTable {
        settings: settings("streaming"),
        text: "book.txt".to_owned(),
        tokens: 4096,
        sink_tokens: 4,
        local_tokens: 64,
        heavy_tokens: 64,
        samples: 512,
        mean_mass: 0.75,
        first_percentile_mass: 0.5,
        mean_output_error: 0.125,
        largest_output_error: 0.5,
        density: 0.25,
        heads: heads.collect(),
        rows: (0..4)
            .map(|place| AuditedRows {
                from_position: place * 1024,
                to_position: (place + 1) * 1024,
                samples: 128,
                mean_mass: 0.75,
                first_percentile_mass: 0.5,
                lowest_mass: 0.25,
            })
            .collect(),
        map: Some(AttentionMap {
            layer: 1,
            head: 2,
            cells: 4,
            shares: (0..16).map(|at| if at % 4 <= at / 4 { 0.25 } else { 0.0 }).collect(),
            read: (0..16).map(|at| if at % 4 == at / 4 { 1.0 } else { 0.0 }).collect(),
        }),
    })
}

fn context() -> Results {
    let row = |prefill: &str, tokens: usize| ContextRow {
        settings: settings(prefill),
        context_tokens: tokens,
        time_to_first_token_ms: 100.0,
        prefill_tokens_per_s: 1e4,
        decode_tokens_per_s: 500.0,
        density: 0.5,
        weights_bytes: 2 << 20,
        kv_device_bytes: 0,
        kv_ram_bytes: (tokens as u64) << 10,
        kv_disk_bytes: 0,
        kv_bookkeeping_bytes: 100,
        recurrent_bytes: 0,
        workspace_bytes: 3 << 20,
        peak_resident_bytes: Some(20 << 20),
    };
    let rows = ["full", "xattention"]
        .iter()
        .flat_map(|policy| [4096, 16_384].map(|tokens| row(policy, tokens)));
    Results::Context(ContextTable {
        text: "book.txt".to_owned(),
        generated_tokens: 32,
        repeats: 2,
        rows: rows.collect(),
    })
}

/// What is measured of a machine and a model without a text.
fn rates() -> [Results; 5] {
    let rate = |depth| ModelRate {
        depth,
        prefill_tokens_per_s: 900.0,
        decode_tokens_per_s: 80.0,
        weight_gigabytes_per_s: 8.0,
        read_gigabytes_per_s: 16.0,
        weight_read_share: 0.5,
        kv_bytes: 4096,
    };
    let model = Results::Model(ModelRates {
        settings: settings("full"),
        prompt_tokens: 512,
        generated_tokens: 64,
        repeats: 3,
        rates: vec![rate(0), rate(4096)],
    });
    let policies = Results::Policies(PolicyRates {
        threads: 2,
        tokens: 131_072,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        formats: ["f16", "q8_0"].map(str::to_owned),
        keys: KeyKind::Peaked,
        rates: vec![PolicyRate {
            policy: "quest".to_owned(),
            phase: "decode".to_owned(),
            dense_ms: 10.0,
            select_ms: 1.0,
            attend_ms: 2.0,
            density: 0.1,
            layers: 28,
            dense_layers: 2,
        }],
    });
    let attention = Results::Attention(AttentionReport {
        instructions: "avx512".to_owned(),
        threads: 2,
        peak_gflops: 100.0,
        read_gigabytes_per_s: 20.0,
        rates: vec![AttentionRate {
            name: "decode f16 1x16384 d128".to_owned(),
            median_ms: 1.5,
            gflops: 40.0,
            peak_share: 0.4,
            gigabytes_per_s: 18.0,
            read_share: 0.9,
            density: 1.0,
            relative_error: 3e-7,
        }],
    });
    let kv = Results::Kv(KvRates {
        threads: 2,
        tokens: 65_536,
        bytes: vec![KvBytes {
            tier: "ram".to_owned(),
            format: "f16".to_owned(),
            page_tokens: 256,
            formula_bytes_per_token: 16_384.0,
            bytes_per_token: 16_385.0,
            bookkeeping_share: 1e-4,
        }],
        streams: vec![StreamRate {
            path: "disk to ram".to_owned(),
            threads: 2,
            gigabytes_per_s: 2.0,
            plain_gigabytes_per_s: 2.5,
            share: 0.8,
        }],
        decode: vec![DecodeRate {
            older_pages: "device".to_owned(),
            median_ms: 4.0,
            ratio: 1.0,
        }],
    });
    let by_instructions = |name: &str| InstructionRate {
        name: name.to_owned(),
        is_chosen: name == "wgmma",
        median_ms: 0.1,
        matmul_share: 0.01,
        relative_error: 1e-4,
    };
    let device = Results::Device(DeviceReport {
        device: "a device".to_owned(),
        matmul_teraflops: 300.0,
        copy_gigabytes_per_s: 2000.0,
        upload_gigabytes_per_s: 50.0,
        rates: vec![DeviceRate {
            name: "decode f16 1x16384 d128".to_owned(),
            median_ms: 0.1,
            teraflops: 4.0,
            matmul_share: 0.01,
            gigabytes_per_s: 1500.0,
            copy_share: 0.75,
            density: 1.0,
            over_density: None,
            relative_error: 1e-4,
            instructions: ["mma", "wgmma"].map(by_instructions).to_vec(),
        }],
        offload: vec![OffloadRate {
            rows: 1,
            tokens: 131_072,
            median_ms: 12.0,
            resident_ms: 1.0,
            gigabytes_per_s: 45.0,
            upload_share: 0.9,
            overlap_share: 0.5,
            same_bits: true,
        }],
        ahead: vec![AheadRate {
            rows: 1,
            tokens: 2048,
            median_ms: 0.2,
            without_ms: 0.25,
            between_ms: 0.05,
            ahead_share: 0.25,
            overlap_share: 0.9,
            same_bits: true,
        }],
        policies: vec![DevicePolicyRate {
            policy: "quest".to_owned(),
            rows: 1,
            tokens: 131_072,
            median_ms: 1.0,
            select_ms: 0.2,
            dense_ms: 2.0,
            speedup: 2.0,
            offloaded_ms: 1.2,
            offloaded_share: 0.83,
            density: 0.02,
            same_bits: true,
        }],
    });
    [model, policies, attention, kv, device]
}

fn records() -> Vec<Record> {
    let mut kinds = vec![context(), audit(), comparison(), perplexity(), ruler(), needle()];
    kinds.extend(rates());
    let record = |(place, results): (usize, Results)| {
        let mut header = header(&format!("r{place}"));
        header.command = vec!["riffle".to_owned(), "--note=<script>alert('x')</script>".to_owned()];
        Record { header, results }
    };
    kinds.into_iter().enumerate().map(record).collect()
}

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
    assert_eq!(label(&settings("full")), "full");
}

/// Every number and list of a value, by the names and places that lead to it.
fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, field)| places(field, &format!("{path}/{name}"), found)),
        Value::Array(items) => {
            found.push(path.to_owned());
            // The first of many stands for all.
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
