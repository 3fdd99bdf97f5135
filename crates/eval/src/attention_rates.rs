//! Compares the rates of the attention kernels with the limits of the machine, measured in the same run.

use std::hint::black_box;
use std::time::Instant;

use riffle_attention::ceiling::{instructions, multiply_add_gflops};
use riffle_attention::{
    AttendJob, AttendOptions, Format, KvView, PageView, Partial, QueryTile, Selection, Span, attend_batch, reference,
};
use riffle_engine::{AttentionPrecision, DEVICE_FORMATS, EngineError};
use riffle_kv::{CacheShape, KvCache, LayerShape, LayerShapes};
use riffle_policy::Phase;
use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::noise::noise;
use crate::read_ceiling::ReadCeiling;
use crate::room::check_memory;

/// One measurement: `rows` last queries of a text of `tokens` tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionCase {
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Queries of each head.
    pub rows: usize,
    /// Keys.
    pub tokens: usize,
    /// Element format of K and V.
    pub format: Format,
    /// Share of the 128-token blocks that the kernel reads; 1 is dense.
    pub density: f64,
    /// Arithmetic of prefill attention: the precision of its multiplications.
    pub precision: AttentionPrecision,
}

/// Times of a case, and the machine's limits measured in the same run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttentionRate {
    /// The case: `prefill f16 512x4096 d128`.
    pub name: String,
    /// Median milliseconds.
    pub median_ms: f64,
    /// Useful arithmetic, four operations per pair and dimension, in GFLOP/s.
    pub gflops: f64,
    /// Share of the multiply-add peak of the working threads.
    pub peak_share: f64,
    /// Rate at which the keys and values are read once, in GB/s.
    pub gigabytes_per_s: f64,
    /// Share of the rate at which these threads read memory.
    pub read_share: f64,
    /// Share of causal pairs in the selection.
    pub density: f64,
    /// ‖o − ô‖ / ‖o‖ of the last query against the f64 reference on the same cache.
    pub relative_error: f64,
}

/// `riffle bench attention`: ceilings and rates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttentionReport {
    /// Instructions the kernels use.
    pub instructions: String,
    /// Threads.
    pub threads: usize,
    /// Multiply-add peak of all threads together, f32, in GFLOP/s.
    pub peak_gflops: f64,
    /// Rate at which all threads together read memory, in GB/s.
    pub read_gigabytes_per_s: f64,
    /// A row for each case.
    pub rates: Vec<AttentionRate>,
}

/// The cases in the project's records: dense prefill, sparse prefill and decode with 32 query and 8 KV heads.
pub fn attention_cases() -> Vec<AttentionCase> {
    let case = |head_dim, rows, tokens, format, density| AttentionCase {
        heads: 32,
        kv_heads: 8,
        head_dim,
        rows,
        tokens,
        format,
        density,
        precision: AttentionPrecision::Exact,
    };
    let mut cases = Vec::new();
    for head_dim in [128, 64] {
        for (rows, tokens) in [(512, 4096), (4096, 4096)] {
            cases.extend(Format::ALL.map(|format| case(head_dim, rows, tokens, format, 1.0)));
        }
    }
    cases.extend([0.05, 0.1, 0.25, 0.5].map(|density| case(128, 1024, 8192, Format::F16, density)));
    cases.push(case(128, 1024, 8192, Format::F16, 1.0));
    for head_dim in [128, 64] {
        for (tokens, format) in [(8192, Format::F16), (32_768, Format::F16), (8192, Format::Q8_0)] {
            let exact = case(head_dim, 512, tokens, format, 1.0);
            let precision = AttentionPrecision::Rounded;
            cases.extend([exact, AttentionCase { precision, ..exact }]);
        }
    }
    for tokens in [16_384, 131_072] {
        cases.extend(Format::ALL.map(|format| case(128, 1, tokens, format, 1.0)));
    }
    cases
}

/// The cases for a device: the supported ones of [`attention_cases`], whole long prompts, and sparse prompts.
pub fn device_cases() -> Vec<AttentionCase> {
    let case = |rows, tokens, format, density| AttentionCase {
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        rows,
        tokens,
        format,
        density,
        precision: AttentionPrecision::Exact,
    };
    let mut cases = attention_cases();
    cases.retain(|case| DEVICE_FORMATS.contains(&case.format) && case.precision == AttentionPrecision::Exact);
    cases.push(case(32_768, 32_768, Format::Bf16, 1.0));
    cases.extend([1.0, 0.5, 0.25, 0.1, 0.05].map(|density| case(4096, 131_072, Format::F16, density)));
    cases
}

impl AttentionCase {
    /// The case's name: phase, format, rows × tokens, head width, density below 1, and precision.
    pub fn name(&self) -> String {
        let phase = if self.rows == 1 { "decode" } else { "prefill" };
        let (format, rows, tokens, head_dim) = (self.format.name(), self.rows, self.tokens, self.head_dim);
        let density = if self.density < 1.0 {
            format!(" {:.0}%", self.density * 100.0)
        } else {
            String::new()
        };
        let precision = match self.precision {
            AttentionPrecision::Exact => String::new(),
            rounded => format!(" {rounded}"),
        };
        format!("{phase} {format} {rows}x{tokens} d{head_dim}{density}{precision}")
    }

    /// The case's one layer.
    pub fn cache_shape(&self) -> CacheShape {
        CacheShape {
            layers: LayerShapes::alike(1, LayerShape::new(self.kv_heads, self.head_dim)),
            page_tokens: riffle_kv::DEFAULT_PAGE_TOKENS,
            key_format: self.format,
            value_format: self.format,
        }
    }
}

/// A rate and its peak.
#[derive(Serialize, Deserialize)]
struct Measured {
    rate: AttentionRate,
    peak_gflops: f64,
    read_gigabytes_per_s: f64,
}

/// Measures every case on the current threads. The journal keeps finished cases.
///
/// # Errors
/// The cache refuses a shape; [`EvalError::Interrupted`].
pub fn measure_attention(
    cases: &[AttentionCase],
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<AttentionReport, EvalError> {
    let mut peak_gflops = peak();
    let read_gigabytes_per_s = ReadCeiling::new().gigabytes_per_s();
    let found = run_cells(&cells_of(cases), journal, watch, &mut |case, _| {
        Ok(Measured {
            rate: measure(case, &mut peak_gflops, read_gigabytes_per_s)?,
            peak_gflops,
            read_gigabytes_per_s,
        })
    })?;
    let highest = |of: fn(&Measured) -> f64| found.iter().map(of).fold(0.0, f64::max);
    Ok(AttentionReport {
        instructions: instructions().to_owned(),
        threads: rayon::current_num_threads(),
        peak_gflops: highest(|measured| measured.peak_gflops),
        read_gigabytes_per_s: highest(|measured| measured.read_gigabytes_per_s),
        rates: found.into_iter().map(|measured| measured.rate).collect(),
    })
}

/// A cell for each case, under the case's name.
pub fn cells_of(cases: &[AttentionCase]) -> Vec<Cell<AttentionCase>> {
    let cells = cases.iter().map(|case| Cell {
        name: case.name(),
        tokens: case.tokens,
        task: *case,
    });
    cells.collect()
}

/// Multiply-adds of all threads together, in GFLOP/s.
fn peak() -> f64 {
    rayon::broadcast(|_| multiply_add_gflops()).into_iter().sum()
}

/// Query rows in a tile.
const TILE_ROWS: usize = 64;

/// Tokens in a block of a sparse selection.
const BLOCK: usize = 128;

/// Selections of a case, tile by tile. All KV heads share them.
pub struct CaseTiles<'a> {
    case: &'a AttentionCase,
    /// The first row and the selection of each tile.
    tiles: Vec<(usize, Selection)>,
}

/// Rows of one KV head's queries.
pub struct CaseTile<'a> {
    /// The KV head.
    pub kv_head: usize,
    /// Index in the case of the tile's first row.
    pub first_row: usize,
    /// Rows in the tile.
    pub rows: usize,
    /// Position of the first row.
    pub start: usize,
    /// Keys that these rows read.
    pub selection: &'a Selection,
}

impl<'a> CaseTiles<'a> {
    /// Cuts the queries of a case into tiles and selects the keys of each.
    pub fn new(case: &'a AttentionCase) -> Self {
        let first = case.tokens - case.rows;
        let rows = (0..case.rows).step_by(TILE_ROWS);
        Self {
            case,
            tiles: rows.map(|row| (row, selection(case, first + row))).collect(),
        }
    }

    /// KV head by KV head.
    pub fn iter(&self) -> impl Iterator<Item = CaseTile<'_>> {
        let case = self.case;
        let tile = move |kv_head: usize, first_row: usize, selection| CaseTile {
            kv_head,
            first_row,
            rows: TILE_ROWS.min(case.rows - first_row),
            start: case.tokens - case.rows + first_row,
            selection,
        };
        let of_head = move |kv_head| {
            let tiles = self.tiles.iter();
            tiles.map(move |(row, selection)| tile(kv_head, *row, selection))
        };
        (0..case.kv_heads).flat_map(of_head)
    }

    /// Selection of the last tile of a KV head.
    pub fn last_selection(&self) -> Option<&Selection> {
        self.tiles.last().map(|(_, selection)| selection)
    }

    /// Pairs of query and key that all query heads read.
    pub fn pairs(&self) -> usize {
        let pairs = self.iter().map(|tile| tile.selection.pair_count(tile.start, tile.rows));
        pairs.sum::<usize>() * (self.case.heads / self.case.kv_heads)
    }

    /// Share of the causal pairs that are read.
    pub fn density(&self) -> f64 {
        let case = self.case;
        let causal: usize = (case.tokens - case.rows + 1..=case.tokens).sum::<usize>() * case.heads;
        self.pairs() as f64 / causal as f64
    }

    /// Work on `queries`, `[rows, heads, head_dim]`, and the pages of each KV head.
    fn jobs<'j>(&'j self, queries: &'j [f32], pages: &'j [Vec<PageView<'j>>]) -> Vec<AttendJob<'j>> {
        let case = self.case;
        let (group, width) = (case.heads / case.kv_heads, case.heads * case.head_dim);
        let job = |tile: CaseTile<'j>| AttendJob {
            queries: QueryTile {
                data: &queries[tile.first_row * width + tile.kv_head * group * case.head_dim..],
                rows: tile.rows,
                row_stride: width,
                group,
                head_dim: case.head_dim,
                start: tile.start,
            },
            kv: KvView {
                head_dim: case.head_dim,
                pages: &pages[tile.kv_head],
            },
            selection: tile.selection,
        };
        self.iter().map(job).collect()
    }
}

fn measure(case: &AttentionCase, peak_gflops: &mut f64, read_gigabytes_per_s: f64) -> Result<AttentionRate, EvalError> {
    let cache = filled_cache(case)?;
    let queries = noise(case.rows * case.heads * case.head_dim, 7);
    let reader = cache.read();
    let pages: Vec<Vec<PageView<'_>>> = (0..case.kv_heads)
        .map(|kv_head| reader.pages(0, kv_head).collect())
        .collect();
    let tiles = CaseTiles::new(case);
    let jobs = tiles.jobs(&queries, &pages);
    let phase = if case.rows == 1 { Phase::Decode } else { Phase::Prefill };
    let options = AttendOptions::for_head_dim(case.head_dim).with_arithmetic(case.precision.arithmetic(phase));
    let mut partials: Vec<Partial> = jobs.iter().map(|_| Partial::new(0, 0, 0)).collect();
    let median_ms = median_ms(|| {
        for (partial, job) in partials.iter_mut().zip(&jobs) {
            partial.reset(job.queries.rows, job.queries.group, case.head_dim);
        }
        Ok(attend_batch(&jobs, &options, black_box(&mut partials)).map_err(EngineError::from)?)
    })?;
    // The clock of a shared machine drifts, so the peak is the best value measured so far.
    *peak_gflops = peak_gflops.max(peak());
    let gflops = (4 * tiles.pairs() * case.head_dim) as f64 / median_ms / 1e6;
    let gigabytes_per_s = cache.usage().bytes_by_tier.ram as f64 / median_ms / 1e6;
    let last = jobs.len() - 1;
    Ok(AttentionRate {
        name: case.name(),
        median_ms,
        gflops,
        peak_share: gflops / *peak_gflops,
        gigabytes_per_s,
        read_share: gigabytes_per_s / read_gigabytes_per_s,
        density: tiles.density(),
        relative_error: error_of_last_row(&jobs[last], &partials[last], &options)?,
    })
}

/// Median of the runs of half a second, after one warm-up run.
fn median_ms(mut run: impl FnMut() -> Result<(), EvalError>) -> Result<f64, EvalError> {
    run()?;
    let start = Instant::now();
    run()?;
    let tries = ((0.5 / start.elapsed().as_secs_f64()) as usize).clamp(3, 200);
    let mut times_ms = Vec::with_capacity(tries);
    for _ in 0..tries {
        let start = Instant::now();
        run()?;
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times_ms.sort_by(f64::total_cmp);
    Ok(times_ms[tries / 2])
}

/// A cache of one layer, filled with noise.
///
/// # Errors
/// The cache does not fit in memory.
pub fn filled_cache(case: &AttentionCase) -> Result<KvCache, EvalError> {
    const CHUNK: usize = 4096;
    let shape = case.cache_shape();
    let needed = shape.bytes_for(case.tokens);
    check_memory(&case.name(), needed, "leave it out with --only")?;
    let mut cache = KvCache::new(shape, None).map_err(EngineError::from)?;
    let width = case.kv_heads * case.head_dim;
    for start in (0..case.tokens).step_by(CHUNK) {
        let tokens = CHUNK.min(case.tokens - start);
        let (keys, values) = (
            noise(tokens * width, start as u64 + 1),
            noise(tokens * width, start as u64 + 2),
        );
        cache.append(0, &keys, &values).map_err(EngineError::from)?;
    }
    Ok(cache)
}

/// Everything, or a scattered share of the blocks and the tile's own block.
fn selection(case: &AttentionCase, first: usize) -> Selection {
    if case.density >= 1.0 {
        return Selection::full(case.tokens);
    }
    let own = first / BLOCK;
    // Multiples of the golden ratio modulo 1 are evenly spread.
    let chosen = (0..=own)
        .filter(|block| *block == own || ((block + own) as f64 * 0.618_033_988_749_895).fract() < case.density);
    Selection::from_spans(chosen.map(|block| Span::new(block * BLOCK, (block + 1) * BLOCK)))
}

fn error_of_last_row(job: &AttendJob<'_>, partial: &Partial, options: &AttendOptions<'_>) -> Result<f64, EvalError> {
    let failed = EngineError::from;
    let (row, width) = (job.queries.rows - 1, job.queries.group * job.queries.head_dim);
    let query = QueryTile {
        data: &job.queries.data[row * job.queries.row_stride..],
        rows: 1,
        start: job.queries.start + row,
        ..job.queries
    };
    let expected = reference::attend(&query, &job.kv, job.selection, options, None)
        .map_err(failed)?
        .output;
    let mut output = vec![0.0; job.queries.rows * width];
    partial.finish_into(&mut output, width, None).map_err(failed)?;
    let (mut difference, mut norm) = (0.0, 0.0);
    for (found, expected) in output[row * width..].iter().zip(&expected) {
        difference += (f64::from(*found) - expected).powi(2);
        norm += expected.powi(2);
    }
    Ok((difference / norm).sqrt())
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;

    #[test]
    fn a_case_reports_its_density_and_a_small_error() {
        let case = AttentionCase {
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            rows: 200,
            tokens: 2048,
            format: Format::F32,
            density: 0.25,
            precision: AttentionPrecision::Exact,
        };
        let decode = AttentionCase {
            rows: 1,
            density: 1.0,
            ..case
        };
        let rounded = AttentionCase {
            precision: AttentionPrecision::Rounded,
            ..case
        };
        let report = measure_attention(&[case, decode, rounded], &mut Journal::none(), &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!((report.rates[0].density - 0.25).abs() < 0.08, "{report:?}");
        assert_eq!(report.rates[1].density, 1.0);
        for rate in &report.rates[..2] {
            assert!(rate.relative_error < 1e-5, "{rate:?}");
        }
        let rounded = &report.rates[2];
        assert!(
            rounded.relative_error > 1e-5 && rounded.relative_error < 2e-3,
            "{rounded:?}"
        );
        assert_eq!(rounded.name, "prefill f32 200x2048 d32 25% rounded");
        assert_eq!(report.rates[0].name, "prefill f32 200x2048 d32 25%");
    }
}
