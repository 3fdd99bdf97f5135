//! Tables of device measurements.

use crate::numbers::{percent, tokens};
use crate::{AheadRate, DevicePolicyRate, DeviceRate, DeviceReport, InstructionRate, OffloadRate, Table};

pub(super) fn device(report: &DeviceReport) -> Vec<Table> {
    let by_instructions: Vec<(&DeviceRate, &InstructionRate)> = report
        .rates
        .iter()
        .filter(|rate| rate.instructions.len() > 1)
        .flat_map(|rate| rate.instructions.iter().map(move |by| (rate, by)))
        .collect();
    let beside = [
        instructions(&by_instructions),
        offload(&report.offload),
        ahead(&report.ahead),
        device_policies(&report.policies),
    ];
    let measured = beside.into_iter().filter(|table| !table.rows.is_empty());
    std::iter::once(device_cases(report)).chain(measured).collect()
}

fn device_cases(report: &DeviceReport) -> Table {
    let columns = [
        "case",
        "median, ms",
        "TFLOP/s",
        "of matmul",
        "GB/s",
        "of copy",
        "pairs read",
        "over their share",
        "error",
    ];
    let caption = format!(
        "{}: matmul {:.0} TFLOP/s, copy {:.0} GB/s, upload {:.1} GB/s",
        report.device, report.matmul_teraflops, report.copy_gigabytes_per_s, report.upload_gigabytes_per_s
    );
    Table::from_rows(caption, &columns, &report.rates, |rate| {
        vec![
            rate.name.clone(),
            format!("{:.3}", rate.median_ms),
            format!("{:.1}", rate.teraflops),
            percent(rate.matmul_share),
            format!("{:.1}", rate.gigabytes_per_s),
            percent(rate.copy_share),
            percent(rate.density),
            rate.over_density.map_or_else(String::new, |over| format!("{over:.2}")),
            format!("{:.0e}", rate.relative_error),
        ]
    })
}

fn instructions(rates: &[(&DeviceRate, &InstructionRate)]) -> Table {
    let columns = ["case", "by", "chosen", "median, ms", "of matmul", "error"];
    let caption = "Prefill by each of the device's matrix instructions";
    Table::from_rows(caption, &columns, rates, |(rate, by)| {
        vec![
            rate.name.clone(),
            by.name.clone(),
            yes(by.is_chosen),
            format!("{:.3}", by.median_ms),
            percent(by.matmul_share),
            format!("{:.0e}", by.relative_error),
        ]
    })
}

fn offload(rates: &[OffloadRate]) -> Table {
    let columns = [
        "queries",
        "keys",
        "median, ms",
        "resident, ms",
        "GB/s",
        "of upload",
        "overlapped",
        "the same bits",
    ];
    Table::from_rows("Dense calls with pages from main memory", &columns, rates, |rate| {
        vec![
            rate.rows.to_string(),
            tokens(rate.tokens as f64),
            format!("{:.2}", rate.median_ms),
            format!("{:.2}", rate.resident_ms),
            format!("{:.1}", rate.gigabytes_per_s),
            percent(rate.upload_share),
            percent(rate.overlap_share),
            yes(rate.same_bits),
        ]
    })
}

fn ahead(rates: &[AheadRate]) -> Table {
    let columns = [
        "queries",
        "keys",
        "median, ms",
        "not ahead, ms",
        "work between, ms",
        "pages ahead",
        "of these overlapped",
        "the same bits",
    ];
    let caption = "Two layers in turn with pages from main memory, the first of each read ahead";
    Table::from_rows(caption, &columns, rates, |rate| {
        vec![
            rate.rows.to_string(),
            tokens(rate.tokens as f64),
            format!("{:.3}", rate.median_ms),
            format!("{:.3}", rate.without_ms),
            format!("{:.3}", rate.between_ms),
            percent(rate.ahead_share),
            percent(rate.overlap_share),
            yes(rate.same_bits),
        ]
    })
}

fn device_policies(rates: &[DevicePolicyRate]) -> Table {
    let columns = [
        "policy",
        "queries",
        "keys",
        "median, ms",
        "selection, ms",
        "dense, ms",
        "times as fast",
        "from main memory, ms",
        "of resident",
        "pairs read",
        "the same bits",
    ];
    Table::from_rows("Policies, selection included", &columns, rates, |rate| {
        vec![
            rate.policy.clone(),
            rate.rows.to_string(),
            tokens(rate.tokens as f64),
            format!("{:.2}", rate.median_ms),
            format!("{:.2}", rate.select_ms),
            format!("{:.2}", rate.dense_ms),
            format!("{:.1}", rate.speedup),
            format!("{:.2}", rate.offloaded_ms),
            percent(rate.offloaded_share),
            percent(rate.density),
            yes(rate.same_bits),
        ]
    })
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}
