//! Rates of the device's attention kernels and the device's ceilings, timed by events in one run.

mod case;

use std::sync::Arc;

use riffle_attention::Format;
use riffle_cuda::ops::{DeviceMatrix, PrefillChoice, PrefillInstructions};
use riffle_cuda::{CudaError, Gpu, Stream};
use riffle_eval::measuring::{cells_of, filled_cache, run_cells};
use riffle_eval::{AttentionCase, DeviceRate, DeviceReport, EvalError, InstructionRate, Journal, StepWatch};
use riffle_kv::KvCache;
use riffle_linear::WeightFormat;

use crate::layer::{ahead, failed, median, offload, policy};
use case::{DeviceCase, Found};

/// Sizes of the ceilings' measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceCeilings {
    /// Rows, inputs and outputs of the product.
    pub matrix: usize,
    /// Bytes of copies.
    pub copy_bytes: usize,
    /// Repetitions of each measurement; the median counts.
    pub repeats: usize,
    /// Keys of calls with pages in main memory, and of calls under policies; 0 for none.
    pub offload_tokens: usize,
    /// Queries of prompt chunks among these calls.
    pub chunk_rows: usize,
}

impl Default for DeviceCeilings {
    fn default() -> Self {
        Self {
            matrix: 4096,
            copy_bytes: 1 << 30,
            repeats: 20,
            offload_tokens: 131_072,
            chunk_rows: 4096,
        }
    }
}

/// Measures ceilings and every case. Finished cases come from the journal and go there.
///
/// # Errors
/// A device that fails, a case no kernel computes; [`EvalError::Interrupted`].
pub fn measure_device(
    gpu: &Gpu,
    cases: &[AttentionCase],
    sizes: &DeviceCeilings,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<DeviceReport, EvalError> {
    let stream = Arc::new(gpu.stream().map_err(failed)?);
    let mut report = ceilings(gpu, &stream, sizes).map_err(failed)?;
    report.rates = run_cells(&cells_of(cases), journal, watch, &mut |case, _| {
        let cache = filled_cache(case)?;
        measure(gpu, &stream, case, &cache, sizes.repeats, &report).map_err(failed)
    })?;
    compare_with_dense(&mut report.rates, cases);
    if sizes.offload_tokens > 0 && !cases.is_empty() {
        let layer = |rows: usize| AttentionCase {
            rows,
            tokens: sizes.offload_tokens,
            format: Format::F16,
            density: 1.0,
            ..cases[0]
        };
        for rows in [1, sizes.chunk_rows] {
            let rate = offload(&stream, &layer(rows), sizes.repeats, report.upload_gigabytes_per_s);
            report.offload.push(rate?);
            report.ahead.push(ahead(
                &stream,
                &layer(rows),
                sizes.repeats,
                report.copy_gigabytes_per_s,
                report.upload_gigabytes_per_s,
            )?);
        }
        for (name, rows) in POLICIES {
            let rows = if *rows == 1 { 1 } else { sizes.chunk_rows };
            report
                .policies
                .push(policy(&stream, &layer(rows), name, sizes.repeats)?);
        }
    }
    Ok(report)
}

/// Policies measured with their selection, each with the queries of the call: one, or a chunk of a prompt.
const POLICIES: &[(&str, usize)] = &[
    ("vertical-slash:from=0,budget=0", 0),
    ("xattention:from=0", 0),
    ("quest:from=0,dense_layers=0,threshold=0", 1),
];

/// Relates each sparse rate to the dense case of the same shape.
fn compare_with_dense(rates: &mut [DeviceRate], cases: &[AttentionCase]) {
    let dense: Vec<Option<f64>> = cases
        .iter()
        .map(|case| {
            let dense = AttentionCase { density: 1.0, ..*case };
            let same = cases.iter().position(|other| *other == dense)?;
            Some(rates.get(same)?.median_ms).filter(|_| case.density < 1.0)
        })
        .collect();
    for (rate, dense_ms) in rates.iter_mut().zip(dense) {
        rate.over_density = dense_ms.map(|dense_ms| rate.median_ms / (rate.density * dense_ms));
    }
}

/// Median milliseconds of the work that `queue` queues, by events.
fn time(stream: &Stream, repeats: usize, mut queue: impl FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    let (start, end) = (stream.gpu().event()?, stream.gpu().event()?);
    queue()?;
    let mut times_ms = Vec::with_capacity(repeats);
    for _ in 0..repeats.max(1) {
        stream.record(&start)?;
        queue()?;
        stream.record(&end)?;
        stream.synchronize()?;
        times_ms.push(f64::from(end.elapsed_ms_since(&start)?));
    }
    Ok(median(times_ms))
}

fn ceilings(gpu: &Gpu, stream: &Stream, sizes: &DeviceCeilings) -> Result<DeviceReport, CudaError> {
    let n = sizes.matrix;
    let weights: Vec<u8> = (0..2 * n * n).map(|i| [0x80, 0x3c][i % 2]).collect();
    let matrix = DeviceMatrix::upload(gpu, WeightFormat::Bf16, n, n, &weights)?;
    let (input, output) = (gpu.allocate(4 * n * n)?, gpu.allocate(4 * n * n)?);
    stream.fill(input.all(), 0)?;
    let scratch = gpu.allocate(matrix.scratch_bytes(n))?;
    let matmul_ms = time(stream, sizes.repeats, || {
        matrix.multiply(stream, output.all(), input.all(), n, scratch.all())
    })?;
    let (from, to) = (gpu.allocate(sizes.copy_bytes)?, gpu.allocate(sizes.copy_bytes)?);
    let copy_ms = time(stream, sizes.repeats, || stream.copy_on_device(to.all(), from.all()))?;
    let host = gpu.allocate_host(sizes.copy_bytes)?;
    let upload_ms = time(stream, sizes.repeats, || stream.to_device(to.all(), &host, 0))?;
    let gigabytes = sizes.copy_bytes as f64 / 1e6;
    Ok(DeviceReport {
        device: gpu.info().name.clone(),
        matmul_teraflops: 2.0 * (n as f64).powi(3) / matmul_ms / 1e9,
        copy_gigabytes_per_s: 2.0 * gigabytes / copy_ms,
        upload_gigabytes_per_s: gigabytes / upload_ms,
        rates: Vec::new(),
        offload: Vec::new(),
        ahead: Vec::new(),
        policies: Vec::new(),
    })
}

fn measure(
    gpu: &Gpu,
    stream: &Stream,
    case: &AttentionCase,
    cache: &KvCache,
    repeats: usize,
    report: &DeviceReport,
) -> Result<DeviceRate, CudaError> {
    let on_device = DeviceCase::new(gpu, stream, case, cache)?;
    let flops = (4 * on_device.tiles.pairs() * case.head_dim) as f64;
    let teraflops = |median_ms: f64| flops / median_ms / 1e9;
    let mut instructions = Vec::new();
    let found = match case.rows {
        1 => on_device.decode(gpu, repeats)?,
        _ => {
            let chosen = PrefillChoice::choose(gpu, case.head_dim, case.format, case.format)?.instructions;
            let mut of_chosen = None;
            for each in PrefillInstructions::ALL {
                if !each.are_on(gpu, case.head_dim) {
                    continue;
                }
                let found = on_device.prefill(each, repeats)?;
                of_chosen = of_chosen.or((each == chosen).then_some(found));
                instructions.push(InstructionRate {
                    name: each.to_string(),
                    is_chosen: each == chosen,
                    median_ms: found.median_ms,
                    matmul_share: teraflops(found.median_ms) / report.matmul_teraflops,
                    relative_error: found.relative_error,
                });
            }
            of_chosen.unwrap_or(Found {
                median_ms: f64::NAN,
                relative_error: f64::NAN,
            })
        }
    };
    let median_ms = found.median_ms;
    let gigabytes_per_s = on_device.page_bytes() as f64 / median_ms / 1e6;
    Ok(DeviceRate {
        name: case.name(),
        median_ms,
        teraflops: teraflops(median_ms),
        matmul_share: teraflops(median_ms) / report.matmul_teraflops,
        gigabytes_per_s,
        copy_share: gigabytes_per_s / report.copy_gigabytes_per_s,
        density: on_device.tiles.density(),
        over_density: None,
        relative_error: found.relative_error,
        instructions,
    })
}
