//! Rates of the device's attention kernels beside what the device could do, by events, measured in the same run.

use riffle_attention::{AttendOptions, Format, KvView, PageView, Plane, QueryTile, Selection, reference};
use riffle_cuda::ops::{
    AttentionOptions, DeviceMatrix, Outputs, Pages, PlaneKind, PrefillCall, PrefillChoice, PrefillInstructions,
    Queries, Reads, TileReads, decode, decode_workspace_bytes, plane_to_device,
};
use riffle_cuda::{CudaError, DeviceBuffer, Gpu, Region, Stream};
use riffle_engine::EngineError;
use riffle_kv::KvCache;
use riffle_linear::WeightFormat;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::attention_rates::{TILE_ROWS, filled_cache, selection};
use crate::cells::{Cell, StepWatch, run_cells};
use crate::device_layer::{AheadRate, DevicePolicyRate, OffloadRate, ahead, median, offload, policy};
use crate::journal::Journal;
use crate::noise::noise;
use crate::{AttentionCase, EvalError};

/// What a case took on the device, beside the ceilings of the same run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceRate {
    /// The case: `prefill f16 512x4096 d128`.
    pub name: String,
    /// Median milliseconds of the kernels, by events.
    pub median_ms: f64,
    /// Useful arithmetic: four operations a pair and dimension, in TFLOP/s.
    pub teraflops: f64,
    /// Share of the rate of [`DeviceReport::matmul_teraflops`].
    pub matmul_share: f64,
    /// K and V read once, in GB/s.
    pub gigabytes_per_s: f64,
    /// Share of [`DeviceReport::copy_gigabytes_per_s`].
    pub copy_share: f64,
    /// Share of causal pairs that the selection reads.
    pub density: f64,
    /// Of a sparse case, its time beside its density's share of the dense case's of the same shape, where that was measured.
    pub over_density: Option<f64>,
    /// ‖o − ô‖ / ‖o‖ of the last query against the f64 reference on the same cache.
    pub relative_error: f64,
    /// Of a prefill, a row for all the matrix instructions that there are; the figures above are those of the chosen ones.
    #[serde(default)]
    pub instructions: Vec<InstructionRate>,
}

/// What a prefill took by one kind of matrix instructions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstructionRate {
    /// `mma` or `wgmma`.
    pub name: String,
    /// Whether the device takes them.
    pub is_chosen: bool,
    /// Median milliseconds, by events.
    pub median_ms: f64,
    /// Share of the rate of [`DeviceReport::matmul_teraflops`].
    pub matmul_share: f64,
    /// As [`DeviceRate::relative_error`].
    pub relative_error: f64,
}

/// Ceilings and rates of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// The device.
    pub device: String,
    /// Rate of this program's own bf16 product of matrices of 4096; a library's belongs beside it (`crates/cuda/scripts/gpu`).
    pub matmul_teraflops: f64,
    /// Rate of a copy on the device, bytes read and written, in GB/s.
    pub copy_gigabytes_per_s: f64,
    /// Rate of a copy from pinned main memory to the device, in GB/s.
    pub upload_gigabytes_per_s: f64,
    /// A row for each case.
    pub rates: Vec<DeviceRate>,
    /// Dense calls with pages that come from main memory: a decode, and a chunk of a prompt.
    pub offload: Vec<OffloadRate>,
    /// Dense calls on two layers in turn, the first pages of each read ahead: a decode, and a chunk of a prompt.
    pub ahead: Vec<AheadRate>,
    /// Calls under policies, selection included.
    pub policies: Vec<DevicePolicyRate>,
}

/// Sizes of what is measured beside the cases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceCeilings {
    /// Rows, inputs and outputs of the product.
    pub matrix: usize,
    /// Bytes of copies.
    pub copy_bytes: usize,
    /// Repetitions of each measurement; the median counts.
    pub repeats: usize,
    /// Keys of calls whose pages come from main memory, and of those under policies; 0 for none.
    pub offload_tokens: usize,
    /// Queries of those that are chunks of a prompt.
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
    let failed = |error: CudaError| EvalError::from(EngineError::from(error));
    let stream = Arc::new(gpu.stream().map_err(failed)?);
    let mut report = ceilings(gpu, &stream, sizes).map_err(failed)?;
    let cells: Vec<Cell<AttentionCase>> = cases
        .iter()
        .map(|case| Cell {
            name: case.name(),
            tokens: case.tokens,
            task: *case,
        })
        .collect();
    report.rates = run_cells(&cells, journal, watch, &mut |case, _| {
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

/// Policies that are measured with their selection included, and the queries of the call: one, or a chunk of a prompt.
const POLICIES: &[(&str, usize)] = &[
    ("vertical-slash:from=0,budget=0", 0),
    ("xattention:from=0", 0),
    ("quest:from=0,dense_layers=0,threshold=0", 1),
];

/// Sets each sparse rate beside that of the dense case of its shape.
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

/// Median milliseconds of what `queue` queues, by events.
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

/// The pages of a cache on a device, and the tables kernels find them by.
struct DevicePages {
    _planes: DeviceBuffer,
    keys: DeviceBuffer,
    values: DeviceBuffer,
    per_head: usize,
    bytes: usize,
}

impl DevicePages {
    fn new(gpu: &Gpu, case: &AttentionCase, cache: &KvCache) -> Result<Self, CudaError> {
        let plane = case.format.plane_bytes(cache.shape().page_tokens, case.head_dim);
        let stride = plane.next_multiple_of(256);
        let reader = cache.read();
        let per_head = reader.pages(0, 0).len();
        let mut planes = vec![0; 2 * case.kv_heads * per_head * stride];
        let mut places = planes.chunks_exact_mut(stride);
        for kv_head in 0..case.kv_heads {
            for page in reader.pages(0, kv_head) {
                for (kind, from) in [(PlaneKind::Keys, &page.keys), (PlaneKind::Values, &page.values)] {
                    let to = places.next().expect("room for every plane");
                    plane_to_device(kind, case.format, case.head_dim, plane_bytes(from), &mut to[..plane])?;
                }
            }
        }
        let planes = gpu.upload(&planes)?;
        let table = |which: usize| -> Vec<u64> {
            let numbers = 0..case.kv_heads * per_head;
            let address = |number: usize| planes.all().address() + ((2 * number + which) * stride) as u64;
            numbers.map(address).collect()
        };
        Ok(Self {
            keys: gpu.upload(&table(0))?,
            values: gpu.upload(&table(1))?,
            per_head,
            bytes: 2 * case.kv_heads * per_head * plane,
            _planes: planes,
        })
    }

    fn pages(&self, case: &AttentionCase, page_tokens: usize) -> Pages<'_> {
        Pages {
            keys: self.keys.all(),
            values: self.values.all(),
            kv_heads: case.kv_heads,
            pages_per_head: self.per_head,
            page_tokens,
            head_dim: case.head_dim,
            key_format: case.format,
            value_format: case.format,
        }
    }
}

fn plane_bytes<'a>(plane: &Plane<'a>) -> &'a [u8] {
    match plane {
        Plane::F32(values) => bytemuck::cast_slice(values),
        Plane::F16(values) | Plane::Bf16(values) => bytemuck::cast_slice(values),
        Plane::Q8_0(bytes) | Plane::Q4_0(bytes) => bytes,
    }
}

fn measure(
    gpu: &Gpu,
    stream: &Stream,
    case: &AttentionCase,
    cache: &KvCache,
    repeats: usize,
    report: &DeviceReport,
) -> Result<DeviceRate, CudaError> {
    let (group, width) = (case.heads / case.kv_heads, case.heads * case.head_dim);
    let first = case.tokens - case.rows;
    let starts: Vec<usize> = (0..case.rows).step_by(TILE_ROWS).collect();
    let selections: Vec<Selection> = starts.iter().map(|row| selection(case, first + row)).collect();
    let tiles: Vec<TileReads<'_>> = (0..case.kv_heads)
        .flat_map(|kv_head| {
            starts
                .iter()
                .zip(&selections)
                .map(move |(row, selection)| (kv_head, *row, selection))
        })
        .map(|(kv_head, row, selection)| TileReads {
            kv_head,
            start: first + row,
            row,
            rows: TILE_ROWS.min(case.rows - row),
            selection,
        })
        .collect();
    let on_device = DevicePages::new(gpu, case, cache)?;
    let pages = on_device.pages(case, cache.shape().page_tokens);
    let source = noise(case.rows * width, 7);
    let (input, output) = (gpu.upload(&source)?, gpu.allocate(4 * case.rows * width)?);
    let mut reads = Reads::new(gpu, case.head_dim, group)?;
    reads.set(stream, &tiles, None)?;
    let queries = Queries {
        data: input.all(),
        rows: case.rows,
        row_stride: width,
    };
    let outputs = Outputs {
        data: output.all(),
        row_stride: width,
        log_sum_exp: None,
    };
    let options = AttentionOptions {
        scale: 1.0 / (case.head_dim as f32).sqrt(),
        soft_cap: None,
        sinks: None,
    };
    let workspace = gpu.allocate(if case.rows == 1 {
        decode_workspace_bytes(&reads)
    } else {
        0
    })?;
    let pairs: usize = tiles
        .iter()
        .map(|tile| tile.selection.pair_count(tile.start, tile.rows) * group)
        .sum();
    let causal: usize = (first + 1..=case.tokens).sum::<usize>() * case.heads;
    let teraflops = |median_ms: f64| (4 * pairs * case.head_dim) as f64 / median_ms / 1e9;
    let error = || -> Result<f64, CudaError> {
        let last = Last {
            queries: &source[(case.rows - 1) * width..],
            output: gpu.download(last_row(&output, case.rows, width), stream)?,
        };
        Ok(last.error(case, cache, selections.last(), options.scale))
    };
    let mut instructions = Vec::new();
    let (median_ms, relative_error) = if case.rows == 1 {
        let median_ms = time(stream, repeats, || {
            decode(stream, &outputs, workspace.all(), &queries, &pages, &reads, &options)
        })?;
        (median_ms, error()?)
    } else {
        let call = PrefillCall {
            outputs: &outputs,
            queries: &queries,
            pages: &pages,
            reads: &reads,
            options: &options,
            state: None,
        };
        let chosen = PrefillChoice::of(gpu, case.head_dim, case.format, case.format)?.instructions;
        let mut of_chosen = (f64::NAN, f64::NAN);
        for each in PrefillInstructions::ALL {
            if !each.are_on(gpu, case.head_dim) {
                continue;
            }
            let median_ms = time(stream, repeats, || call.queue(stream, each))?;
            let relative_error = error()?;
            if each == chosen {
                of_chosen = (median_ms, relative_error);
            }
            instructions.push(InstructionRate {
                name: each.to_string(),
                is_chosen: each == chosen,
                median_ms,
                matmul_share: teraflops(median_ms) / report.matmul_teraflops,
                relative_error,
            });
        }
        of_chosen
    };
    let gigabytes_per_s = on_device.bytes as f64 / median_ms / 1e6;
    Ok(DeviceRate {
        name: case.name(),
        median_ms,
        teraflops: teraflops(median_ms),
        matmul_share: teraflops(median_ms) / report.matmul_teraflops,
        gigabytes_per_s,
        copy_share: gigabytes_per_s / report.copy_gigabytes_per_s,
        density: pairs as f64 / causal as f64,
        over_density: None,
        relative_error,
        instructions,
    })
}

fn last_row(output: &DeviceBuffer, rows: usize, width: usize) -> Region<'_> {
    output.region(4 * (rows - 1) * width..4 * rows * width)
}

/// The last query of all heads and what the device made of it.
struct Last<'a> {
    queries: &'a [f32],
    output: Vec<f32>,
}

impl Last<'_> {
    fn error(&self, case: &AttentionCase, cache: &KvCache, selection: Option<&Selection>, scale: f32) -> f64 {
        let (group, width) = (case.heads / case.kv_heads, case.heads / case.kv_heads * case.head_dim);
        let everything = Selection::full(case.tokens);
        let (mut difference, mut norm) = (0.0, 0.0);
        let reader = cache.read();
        for kv_head in 0..case.kv_heads {
            let pages: Vec<PageView<'_>> = reader.pages(0, kv_head).collect();
            let query = QueryTile {
                data: &self.queries[kv_head * width..],
                rows: 1,
                row_stride: width,
                group,
                head_dim: case.head_dim,
                start: case.tokens - 1,
            };
            let kv = KvView {
                head_dim: case.head_dim,
                pages: &pages,
            };
            let options = AttendOptions::new(scale);
            let expected = reference::attend(&query, &kv, selection.unwrap_or(&everything), &options, None);
            let Ok(expected) = expected else { return f64::NAN };
            for (found, expected) in self.output[kv_head * width..].iter().zip(&expected.output) {
                difference += (f64::from(*found) - expected).powi(2);
                norm += expected.powi(2);
            }
        }
        (difference / norm).sqrt()
    }
}
