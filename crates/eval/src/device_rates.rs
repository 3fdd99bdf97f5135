//! Rates of the device's attention kernels beside what the device could do, by events, measured in the same run.

use riffle_attention::{AttendOptions, KvView, PageView, Plane, QueryTile, Selection, reference};
use riffle_cuda::ops::{
    AttentionOptions, DeviceMatrix, Outputs, Pages, PlaneKind, Queries, Reads, TileReads, decode,
    decode_workspace_bytes, plane_to_device, prefill,
};
use riffle_cuda::{CudaError, DeviceBuffer, Gpu, PagePool, PagePoolOptions, PagedTile, Region, Stream};
use riffle_engine::EngineError;
use riffle_kv::KvCache;
use riffle_linear::WeightFormat;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

use crate::attention_rates::{TILE_ROWS, filled_cache, selection};
use crate::cells::{Cell, Journal, StepWatch, run_cells};
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
    /// ‖o − ô‖ / ‖o‖ of the last query against the f64 reference on the same cache.
    pub relative_error: f64,
}

/// A decode whose pages come from pinned main memory, by the wall clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OffloadRate {
    /// Keys.
    pub tokens: usize,
    /// Median milliseconds of a call that brings every page.
    pub median_ms: f64,
    /// Median milliseconds of the same call with every page on the device.
    pub resident_ms: f64,
    /// Pages that came, in GB/s.
    pub gigabytes_per_s: f64,
    /// Share of [`DeviceReport::upload_gigabytes_per_s`].
    pub upload_share: f64,
    /// Whether both gave the same bits.
    pub same_bits: bool,
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
    /// Decode with pages that come from main memory.
    pub offload: Option<OffloadRate>,
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
    /// Keys of the decode whose pages come from main memory; 0 for none.
    pub offload_tokens: usize,
}

impl Default for DeviceCeilings {
    fn default() -> Self {
        Self {
            matrix: 4096,
            copy_bytes: 1 << 30,
            repeats: 20,
            offload_tokens: 131_072,
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
    if sizes.offload_tokens > 0 && !cases.is_empty() {
        let case = AttentionCase {
            rows: 1,
            tokens: sizes.offload_tokens,
            density: 1.0,
            ..cases[0]
        };
        let rate = offload(&stream, &case, sizes.repeats, report.upload_gigabytes_per_s);
        report.offload = Some(rate?);
    }
    Ok(report)
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

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    // A clock too coarse for the work must not divide by zero.
    times[times.len() / 2].max(1e-6)
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
        offload: None,
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
        let per_head = cache.pages(0, 0).len();
        let mut planes = vec![0; 2 * case.kv_heads * per_head * stride];
        let mut places = planes.chunks_exact_mut(stride);
        for kv_head in 0..case.kv_heads {
            for page in cache.pages(0, kv_head) {
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
    let median_ms = time(stream, repeats, || match case.rows {
        1 => decode(stream, &outputs, workspace.all(), &queries, &pages, &reads, &options),
        _ => prefill(stream, &outputs, &queries, &pages, &reads, &options, None),
    })?;
    let pairs: usize = tiles
        .iter()
        .map(|tile| tile.selection.pair_count(tile.start, tile.rows) * group)
        .sum();
    let causal: usize = (first + 1..=case.tokens).sum::<usize>() * case.heads;
    let teraflops = (4 * pairs * case.head_dim) as f64 / median_ms / 1e9;
    let gigabytes_per_s = on_device.bytes as f64 / median_ms / 1e6;
    let last = Last {
        queries: &source[(case.rows - 1) * width..],
        output: gpu.download(last_row(&output, case.rows, width), stream)?,
    };
    Ok(DeviceRate {
        name: case.name(),
        median_ms,
        teraflops,
        matmul_share: teraflops / report.matmul_teraflops,
        gigabytes_per_s,
        copy_share: gigabytes_per_s / report.copy_gigabytes_per_s,
        density: pairs as f64 / causal as f64,
        relative_error: last.error(case, cache, selections.last(), options.scale),
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
        for kv_head in 0..case.kv_heads {
            let pages: Vec<PageView<'_>> = cache.pages(0, kv_head).collect();
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

/// Decodes with every page on the device and with every page in pinned main memory.
fn offload(
    stream: &Arc<Stream>,
    case: &AttentionCase,
    repeats: usize,
    upload_gigabytes_per_s: f64,
) -> Result<OffloadRate, EvalError> {
    let failed = |error: CudaError| EvalError::from(EngineError::from(error));
    let mut cache = filled_cache(case)?;
    let (group, width) = (case.heads / case.kv_heads, case.heads * case.head_dim);
    let everything = Selection::full(case.tokens);
    let source = stream.gpu().upload(&noise(width, 7)).map_err(failed)?;
    let queries = Queries {
        data: source.all(),
        rows: 1,
        row_stride: width,
    };
    let tile = |kv_head: usize| PagedTile {
        kv_head,
        first_row: 0,
        rows: 1,
        start: case.tokens - 1,
        selection: &everything,
    };
    let tiles: Vec<PagedTile<'_>> = (0..case.kv_heads).map(tile).collect();
    let options = AttendOptions::new(1.0 / (case.head_dim as f32).sqrt());
    let mut run = |budget: fn(&PagePoolOptions, usize) -> u64| -> Result<_, EvalError> {
        let mut made = PagePoolOptions {
            shape: *cache.shape(),
            heads: case.heads,
            budget_bytes: 0,
            slots: 64,
            estimate_bytes: 0,
        };
        made.budget_bytes = budget(&made, case.tokens);
        let mut pool = PagePool::new(stream, made).map_err(failed)?;
        let mut partials = Vec::new();
        let mut times_ms = Vec::new();
        for repeat in 0..=repeats {
            partials = tiles
                .iter()
                .map(|_| riffle_attention::Partial::new(1, group, case.head_dim))
                .collect();
            let start = Instant::now();
            let mut call = pool.begin(0, &tiles, queries, case.tokens, &options).map_err(failed)?;
            cache.stream::<EngineError>(0, None, None, &mut |pages| Ok(call.attend(pages)?))?;
            call.finish(&mut partials).map_err(failed)?;
            if repeat > 0 {
                times_ms.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok((
            median(times_ms),
            partials,
            pool.transferred().bytes as f64 / (repeats + 1) as f64,
        ))
    };
    let (resident_ms, resident, _) = run(PagePoolOptions::bytes_for)?;
    let (median_ms, far, bytes) = run(|options, _| options.least_bytes())?;
    let gigabytes_per_s = bytes / median_ms / 1e6;
    Ok(OffloadRate {
        tokens: case.tokens,
        median_ms,
        resident_ms,
        gigabytes_per_s,
        upload_share: gigabytes_per_s / upload_gigabytes_per_s,
        same_bits: resident == far,
    })
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use riffle_attention::Format;
    use riffle_cuda::{EmulatedOptions, KernelCache};

    use super::*;

    #[test]
    fn cases_on_an_emulated_device_are_right_whatever_their_time() {
        let gpu = Gpu::emulated(EmulatedOptions::default(), KernelCache::of_user()).expect("g++ compiles the kernels");
        let case = AttentionCase {
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            rows: 70,
            tokens: 700,
            format: Format::F16,
            density: 0.5,
        };
        let decode = AttentionCase {
            rows: 1,
            density: 1.0,
            ..case
        };
        let sizes = DeviceCeilings {
            matrix: 64,
            copy_bytes: 4096,
            repeats: 1,
            offload_tokens: 6000,
        };
        let report = measure_device(&gpu, &[case, decode], &sizes, &mut Journal::none(), &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        for rate in &report.rates {
            assert!(rate.relative_error < 2e-3, "{rate:?}");
        }
        assert!(report.offload.is_some_and(|offload| offload.same_bits));
    }
}
