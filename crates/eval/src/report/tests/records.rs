//! A test record of every kind of measurement.

use crate::record::testing::header;
use crate::record::{
    AskPlace, BudgetFit, ComparisonRow, ComparisonTable, NeedleKind, NeedleSample, NeedleTable, PerplexityBucket,
    PerplexityRow, PerplexityTable, RulerSample, RulerTable,
};
use crate::record::{Record, Results, RunSettings};
use crate::{
    AheadRate, AttentionMap, AttentionRate, AttentionReport, AuditTable, AuditedHead, AuditedRows, ContextRow,
    ContextTable, DecodeRate, DevicePolicyRate, DeviceRate, DeviceReport, InstructionRate, Interval, KeyKind, KvBytes,
    KvRates, ModelRate, ModelRates, OffloadRate, PolicyRate, PolicyRates, StreamRate,
};

pub(super) fn settings(prefill: &str) -> RunSettings {
    RunSettings {
        prefill: prefill.to_owned(),
        decode: "full".to_owned(),
        key_format: "f16".to_owned(),
        value_format: "f16".to_owned(),
        attention: None,
        page_tokens: 256,
        batch_tokens: 4096,
        chunk_tokens: 512,
        context_tokens: 8192,
        tiers: "ram".to_owned(),
        token_selection: None,
        compress: None,
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
            budget: None,
            budget_kept: None,
            fit: None,
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
        budget: (policy != "full").then_some(0.1),
        budget_kept: (policy != "full").then_some(false),
        fit: (policy != "full").then(|| BudgetFit {
            parameter: "window=40".to_owned(),
            density: 0.125,
            reaches: false,
        }),
        settings: settings(policy),
        score: Interval {
            mean: 0.5,
            low: 0.25,
            high: 0.75,
            samples: 8,
        },
        // Half of the questions each, but not the same ones.
        scores: (0..8)
            .map(|n| f64::from(u8::from((n < 4) == (policy == "full"))))
            .collect(),
        density: 0.125,
        prefill_ms: Some(100.0),
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
        files: Vec::new(),
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
        answer_attention: None,
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

fn model() -> Results {
    let rate = |depth| ModelRate {
        depth,
        prefill_tokens_per_s: 900.0,
        decode_tokens_per_s: 80.0,
        weight_gigabytes_per_s: 8.0,
        read_gigabytes_per_s: 16.0,
        weight_read_share: 0.5,
        kv_bytes: 4096,
        experts: None,
    };
    Results::Model(ModelRates {
        settings: settings("full"),
        prompt_tokens: 512,
        generated_tokens: 64,
        repeats: 3,
        rates: vec![rate(0), rate(4096)],
    })
}

fn policies() -> Results {
    Results::Policies(PolicyRates {
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
    })
}

fn attention() -> Results {
    Results::Attention(AttentionReport {
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
    })
}

fn kv() -> Results {
    Results::Kv(KvRates {
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
    })
}

fn device() -> Results {
    let by_instructions = |name: &str| InstructionRate {
        name: name.to_owned(),
        is_chosen: name == "wgmma",
        median_ms: 0.1,
        matmul_share: 0.01,
        relative_error: 1e-4,
    };
    Results::Device(DeviceReport {
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
    })
}

/// A record of every kind.
pub(super) fn records() -> Vec<Record> {
    let kinds = [
        context(),
        audit(),
        comparison(),
        perplexity(),
        ruler(),
        needle(),
        model(),
        policies(),
        attention(),
        kv(),
        device(),
    ];
    let record = |(place, results): (usize, Results)| {
        let mut header = header(&format!("r{place}"));
        header.command = vec!["riffle".to_owned(), "--note=<script>alert('x')</script>".to_owned()];
        Record { header, results }
    };
    kinds.into_iter().enumerate().map(record).collect()
}
