//! `riffle bench`: speed.

use std::ops::ControlFlow;

use riffle_engine::with_threads;
use riffle_eval::{AttentionCase, AttentionRate, attention_cases, measure_attention};

use super::{print, print_json};
use crate::args::{BenchArguments, BenchAttentionArguments, BenchSubject};
use crate::failure::Failure;
use crate::interrupt::Interrupt;

pub(crate) fn bench(arguments: &BenchArguments) -> Result<(), Failure> {
    match &arguments.subject {
        BenchSubject::Attention(arguments) => attention(arguments),
    }
}

fn attention(arguments: &BenchAttentionArguments) -> Result<(), Failure> {
    let wanted = arguments.only.as_deref().unwrap_or("");
    let cases: Vec<AttentionCase> = attention_cases()
        .into_iter()
        .filter(|case| case.name().contains(wanted))
        .collect();
    if cases.is_empty() {
        let names: Vec<String> = attention_cases().iter().map(AttentionCase::name).collect();
        return Err(Failure::new(format!(
            "no case holds {wanted:?}: there are {}",
            names.join(", ")
        )));
    }
    let interrupt = Interrupt::install()?;
    let mut printed = Ok(());
    let report = with_threads(arguments.threads, || {
        measure_attention(&cases, &mut |rate| {
            if arguments.json {
                eprintln!("{}", row(rate));
            } else {
                printed = print(&(row(rate) + "\n"));
            }
            if printed.is_ok() {
                interrupt.flow()
            } else {
                ControlFlow::Break(())
            }
        })
    })??;
    printed?;
    if arguments.json {
        print_json(&report)?;
    } else {
        print(&format!(
            "{}, {} threads: multiply-add peak {:.0} GFLOP/s, memory read at {:.1} GB/s\n",
            report.instructions, report.threads, report.peak_gflops, report.read_gigabytes_per_s
        ))?;
    }
    if report.rates.len() < cases.len() {
        return Err(Failure::interrupted(format!(
            "interrupted after {} of {} cases",
            report.rates.len(),
            cases.len()
        )));
    }
    Ok(())
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
