//! `riffle bench`: speed.

mod context;

use std::ops::ControlFlow;

use riffle_engine::{Engine, EngineOptions, Gpu, human_bytes, with_threads};
use riffle_eval::{
    AttentionCase, AttentionRate, DeviceCeilings, KeyKind, KvRateOptions, KvRow, ModelRateOptions, PolicyRate,
    PolicyRateOptions, attention_cases, device_cases, measure_attention, measure_device, measure_kv, measure_model,
    measure_policies, to_csv,
};
use riffle_policy::{Phase, PolicySpec, catalogue};

use super::{engine_options, print, print_json};
use crate::args::{
    BenchArguments, BenchAttentionArguments, BenchKvArguments, BenchModelArguments, BenchPoliciesArguments,
    BenchSubject,
};
use crate::failure::Failure;
use crate::interrupt::Interrupt;

pub(crate) fn bench(arguments: &BenchArguments) -> Result<(), Failure> {
    match &arguments.subject {
        BenchSubject::Attention(arguments) => attention(arguments),
        BenchSubject::Kv(arguments) => kv(arguments),
        BenchSubject::Model(arguments) => model(arguments),
        BenchSubject::Context(arguments) => context::context(arguments),
        BenchSubject::Policies(arguments) => policies(arguments),
    }
}

fn attention(arguments: &BenchAttentionArguments) -> Result<(), Failure> {
    let wanted = arguments.only.as_deref().unwrap_or("");
    let options = EngineOptions::default().on_device(Some(&arguments.device))?;
    let all = match options.device {
        Some(_) => device_cases(),
        None => attention_cases(),
    };
    let cases: Vec<AttentionCase> = all
        .iter()
        .copied()
        .filter(|case| case.name().contains(wanted))
        .collect();
    if cases.is_empty() {
        let names: Vec<String> = all.iter().map(AttentionCase::name).collect();
        return Err(Failure::new(format!(
            "no case holds {wanted:?}: there are {}",
            names.join(", ")
        )));
    }
    if let Some(gpu) = &options.device {
        return device_attention(arguments, gpu, &cases);
    }
    let interrupt = Interrupt::install()?;
    let mut printed = Ok(());
    let report = with_threads(arguments.threads, || {
        measure_attention(&cases, &mut |rate| {
            show(
                &(row(rate) + "\n"),
                arguments.json || arguments.csv,
                &interrupt,
                &mut printed,
            )
        })
    })??;
    printed?;
    if arguments.json {
        print_json(&report)?;
    } else if arguments.csv {
        print(&to_csv(&report.rates)?)?;
    } else {
        print(&format!(
            "{}, {} threads: multiply-add peak {:.0} GFLOP/s, memory read at {:.1} GB/s\n",
            report.instructions, report.threads, report.peak_gflops, report.read_gigabytes_per_s
        ))?;
    }
    whole(report.rates.len(), cases.len(), "cases")
}

fn device_attention(arguments: &BenchAttentionArguments, gpu: &Gpu, cases: &[AttentionCase]) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let mut printed = Ok(());
    let report = with_threads(arguments.threads, || {
        measure_device(gpu, cases, &DeviceCeilings::default(), &mut |rate| {
            let line = format!(
                "{:<32} {:>9.3} ms {:>7.1} TFLOP/s {:>5.1}% of matmul {:>7.1} GB/s {:>5.1}% of copy  error {:.0e}\n",
                rate.name,
                rate.median_ms,
                rate.teraflops,
                rate.matmul_share * 100.0,
                rate.gigabytes_per_s,
                rate.copy_share * 100.0,
                rate.relative_error
            );
            show(&line, arguments.json, &interrupt, &mut printed)
        })
    })??;
    printed?;
    if arguments.json {
        print_json(&report)?;
    } else {
        print(&format!(
            "{}: matmul {:.0} TFLOP/s, copy {:.0} GB/s, upload {:.1} GB/s\n",
            report.device, report.matmul_teraflops, report.copy_gigabytes_per_s, report.upload_gigabytes_per_s
        ))?;
        if let Some(rate) = &report.offload {
            print(&format!(
                "decode of {} tokens from main memory: {:.2} ms at {:.1} GB/s ({:.0}% of upload), resident {:.2} ms, {}\n",
                rate.tokens,
                rate.median_ms,
                rate.gigabytes_per_s,
                rate.upload_share * 100.0,
                rate.resident_ms,
                if rate.same_bits { "the same bits" } else { "OTHER BITS" }
            ))?;
        }
    }
    whole(report.rates.len(), cases.len(), "cases")
}

fn policies(arguments: &BenchPoliciesArguments) -> Result<(), Failure> {
    let phase = match arguments.phase.as_str() {
        "prefill" => Phase::Prefill,
        _ => Phase::Decode,
    };
    let specs: Vec<PolicySpec> = match arguments.policy.is_empty() {
        true => {
            let known = catalogue()
                .iter()
                .filter(|info| info.supports(phase) && info.name != "h2o-chunk");
            known.map(|info| policy_spec(info.name)).collect::<Result<_, _>>()?
        }
        false => arguments
            .policy
            .iter()
            .map(|text| policy_spec(text))
            .collect::<Result<_, _>>()?,
    };
    let [heads, kv_heads, head_dim] = arguments.shape[..] else {
        return Err(Failure::new("--shape takes three numbers, such as 16,8,128".to_owned()));
    };
    let options = PolicyRateOptions {
        tokens: arguments.tokens,
        heads,
        kv_heads,
        head_dim,
        formats: riffle_engine::parse_kv_type(&arguments.kv_type)?,
        keys: if arguments.keys == "random" {
            KeyKind::Random
        } else {
            KeyKind::Peaked
        },
        chunk_tokens: arguments.ub,
    };
    let interrupt = Interrupt::install()?;
    let mut printed = Ok(());
    let mut count = 0;
    let mut rates = Vec::new();
    with_threads(arguments.threads, || {
        measure_policies(&specs, phase, &options, &mut |rate| {
            count += 1;
            rates.push(rate.clone());
            show(&(policy_row(rate) + "\n"), arguments.json, &interrupt, &mut printed)
        })
    })??;
    printed?;
    if arguments.json {
        print_json(&rates)?;
    }
    whole(count, specs.len(), "policies")
}

fn policy_spec(text: &str) -> Result<PolicySpec, Failure> {
    text.parse::<PolicySpec>()
        .map_err(|error| Failure::new(error.to_string()))
}

fn policy_row(rate: &PolicyRate) -> String {
    format!(
        "{:<16} {:<8} dense {:>9.2} ms  select {:>8.2} ms  attend {:>8.2} ms  {:>5.1}x  {:>5.1}% of pairs  select {:>4.0}% of saved",
        rate.policy.split(':').next().unwrap_or_default(),
        rate.phase,
        rate.dense_ms,
        rate.select_ms,
        rate.attend_ms,
        rate.speed(),
        rate.density * 100.0,
        rate.share_of_saved() * 100.0,
    )
}

fn row(rate: &AttentionRate) -> String {
    format!(
        "{:<32} {:>9.3} ms {:>7.1} GFLOP/s {:>5.1}% of peak {:>6.1} GB/s {:>5.1}% of read  error {:.0e}",
        rate.name,
        rate.median_ms,
        rate.gflops,
        rate.peak_share * 100.0,
        rate.gigabytes_per_s,
        rate.read_share * 100.0,
        rate.relative_error
    )
}

fn kv(arguments: &BenchKvArguments) -> Result<(), Failure> {
    let options = KvRateOptions {
        folder: arguments.kv_disk.clone().unwrap_or_else(std::env::temp_dir),
        tokens: arguments.tokens,
        hot_tokens: arguments.hot_tokens,
        page_tokens: arguments.page_tokens,
        format: riffle_engine::parse_kv_type(&arguments.kv_type)?.0,
    };
    let interrupt = Interrupt::install()?;
    let mut printed = Ok(());
    let mut rows = 0;
    let rates = with_threads(arguments.threads, || {
        measure_kv(&options, &mut |row| {
            rows += 1;
            show(
                &(kv_row(row) + "\n"),
                arguments.json || arguments.csv,
                &interrupt,
                &mut printed,
            )
        })
    })??;
    printed?;
    if arguments.json {
        print_json(&rates)?;
    } else if arguments.csv {
        print(&to_csv(rates.rows())?)?;
    }
    whole(rows, 16, "rows")
}

fn kv_row(row: KvRow<'_>) -> String {
    match row {
        KvRow::Bytes(row) => format!(
            "bytes  {:<4} {:<4} pages of {}: {:.1} a token, {:.1} by format and shape ({:.3}×), bookkeeping {:.2}%",
            row.tier,
            row.format,
            row.page_tokens,
            row.bytes_per_token,
            row.formula_bytes_per_token,
            row.bytes_per_token / row.formula_bytes_per_token,
            row.bookkeeping_share * 100.0
        ),
        KvRow::Stream(row) => format!(
            "stream {}: {:.2} GB/s, plain {:.2} GB/s ({:.0}%)",
            row.path,
            row.gigabytes_per_s,
            row.plain_gigabytes_per_s,
            row.share * 100.0
        ),
        KvRow::Decode(row) => format!(
            "decode, older pages in {}: {:.2} ms, {:.2}× resident",
            row.older_pages, row.median_ms, row.ratio
        ),
    }
}

fn model(arguments: &BenchModelArguments) -> Result<(), Failure> {
    let options = engine_options(&arguments.engine)?;
    let measured = ModelRateOptions {
        prompt_tokens: arguments.prompt_tokens,
        generated_tokens: arguments.tokens,
        depths: arguments.depth.clone(),
        repeats: arguments.repeats,
    };
    let interrupt = Interrupt::install()?;
    let mut printed = Ok(());
    let rates = with_threads(arguments.engine.threads, || {
        let engine = Engine::load(&arguments.model.model, options)?;
        let rates = measure_model(&engine, &measured, &mut |rate| {
            let line = format!(
                "depth {:>7}  prompt of {} at {:>8.1} tokens/s  answer of {} at {:>8.1} tokens/s, weights at {:.1} of {:.1} GB/s ({:.0}%)  KV {}\n",
                rate.depth,
                measured.prompt_tokens,
                rate.prefill_tokens_per_s,
                measured.generated_tokens,
                rate.decode_tokens_per_s,
                rate.weight_gigabytes_per_s,
                rate.read_gigabytes_per_s,
                100.0 * rate.weight_read_share,
                human_bytes(rate.kv_bytes)
            );
            show(&line, arguments.json || arguments.csv, &interrupt, &mut printed)
        })?;
        Ok::<_, Failure>(rates)
    })??;
    printed?;
    if arguments.json {
        print_json(&rates)?;
    } else if arguments.csv {
        print(&to_csv(&rates)?)?;
    }
    whole(rates.len(), arguments.depth.len(), "depths")
}

/// Shows a row as it is measured: on standard error where standard output belongs to JSON or CSV.
fn show(line: &str, whole: bool, interrupt: &Interrupt, printed: &mut Result<(), Failure>) -> ControlFlow<()> {
    if whole {
        eprint!("{line}");
    } else {
        *printed = print(line);
    }
    if printed.is_ok() {
        interrupt.flow()
    } else {
        ControlFlow::Break(())
    }
}

/// A run that ended early says so.
fn whole(done: usize, asked: usize, what: &str) -> Result<(), Failure> {
    if done < asked {
        return Err(Failure::interrupted(format!(
            "interrupted after {done} of {asked} {what}"
        )));
    }
    Ok(())
}
