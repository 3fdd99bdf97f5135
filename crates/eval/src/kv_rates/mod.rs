//! Measures the bytes of the KV cache and the speed of its tiers. Compares them with the machine's speed in the same
//! run.

mod streams;

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use riffle_attention::{
    Arithmetic, AttendJob, AttendOptions, BatchStream, Format, KvView, PageView, Partial, QueryTile, Selection,
};
use riffle_engine::EngineError;
use riffle_kv::{CacheShape, CpuDevice, DiskTier, KvCache, KvTiers, LayerShape, LayerShapes, Outlook};
use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::noise::noise;
use crate::room::check_memory;

/// Options of the KV cache measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvRateOptions {
    /// Folder for the files of the disk tier.
    pub folder: PathBuf,
    /// Tokens of a sequence.
    pub tokens: usize,
    /// The latest tokens. They stay in the device tier while decode is measured.
    pub hot_tokens: usize,
    /// Tokens in a page.
    pub page_tokens: usize,
    /// Element format of keys and values.
    pub format: Format,
}

/// Bytes of a cache in one tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KvBytes {
    /// `device`, `ram` or `disk`.
    pub tier: String,
    /// Element format of keys and values.
    pub format: String,
    /// Tokens in a page.
    pub page_tokens: usize,
    /// Bytes of a token, computed from format and shape.
    pub formula_bytes_per_token: f64,
    /// Bytes of pages and bookkeeping, or of files, for each token.
    pub bytes_per_token: f64,
    /// Bytes of tables, free lists and checksums, as a share of the pages.
    pub bookkeeping_share: f64,
}

/// Rate at which pages stream from one tier to a faster one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StreamRate {
    /// `ram to device`, `disk to ram` from the system's cache of files, or `disk to ram, cold` from the disk itself.
    pub path: String,
    /// Threads that load pages, and that copy or read without the cache.
    pub threads: usize,
    /// Pages streamed, in GB/s.
    pub gigabytes_per_s: f64,
    /// Rate of copies or reads of the same size without the cache, in GB/s.
    pub plain_gigabytes_per_s: f64,
    /// The streaming rate divided by the plain rate.
    pub share: f64,
}

/// A decode step with all but the latest tokens in another tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DecodeRate {
    /// Tier of the older pages.
    pub older_pages: String,
    /// Milliseconds of a step through all layers.
    pub median_ms: f64,
    /// Time relative to a step with all pages in the device tier.
    pub ratio: f64,
}

/// `riffle bench kv`: bytes, streams and decode steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KvRates {
    /// Threads.
    pub threads: usize,
    /// Tokens of the sequences.
    pub tokens: usize,
    /// Rows by tier, format and page size.
    pub bytes: Vec<KvBytes>,
    /// Rows by path.
    pub streams: Vec<StreamRate>,
    /// Rows by tier; the first row has all pages in the device tier.
    pub decode: Vec<DecodeRate>,
}

impl KvRates {
    /// Every row, each with the name of its kind.
    pub fn rows(&self) -> impl Iterator<Item = KvRow> {
        let bytes = self.bytes.iter().cloned().map(KvRow::Bytes);
        let streams = self.streams.iter().cloned().map(KvRow::Stream);
        bytes
            .chain(streams)
            .chain(self.decode.iter().cloned().map(KvRow::Decode))
    }
}

/// A measured row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "row", rename_all = "snake_case")]
pub enum KvRow {
    /// Bytes of a tier.
    Bytes(KvBytes),
    /// Rate of a path.
    Stream(StreamRate),
    /// Time of a decode step.
    Decode(DecodeRate),
}

/// One measurement of the cache.
#[derive(Clone, Copy)]
enum CachePart {
    Bytes(&'static str, Format),
    Stream(streams::Path),
    Decode(CachePlace),
}

/// Tier of a decode step's older pages. The first tier is the reference for the others.
#[derive(Clone, Copy)]
enum CachePlace {
    Device,
    ReadFromRam,
    CopiedFromRam,
    Disk,
}

const LAYERS: usize = 4;
const KV_HEADS: usize = 8;
const GROUP: usize = 4;
const HEAD_DIM: usize = 128;
/// Tokens appended at a time.
const CHUNK: usize = 512;

/// Measures the cache and its tiers. The journal keeps finished rows.
///
/// # Errors
/// [`EvalError::Option`] for too few tokens; errors of the cache and its folder; [`EvalError::Interrupted`].
pub fn measure_kv(
    options: &KvRateOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<KvRates, EvalError> {
    options.check()?;
    let cells: Vec<Cell<CachePart>> = CachePart::all()
        .into_iter()
        .map(|part| Cell {
            name: part.name(),
            tokens: options.tokens,
            task: part,
        })
        .collect();
    let rows = run_cells(&cells, journal, watch, &mut |part, _| measure(options, *part))?;
    let mut rates = KvRates {
        threads: rayon::current_num_threads(),
        tokens: options.tokens,
        bytes: Vec::new(),
        streams: Vec::new(),
        decode: Vec::new(),
    };
    for row in rows {
        match row {
            KvRow::Bytes(row) => rates.bytes.push(row),
            KvRow::Stream(row) => rates.streams.push(row),
            KvRow::Decode(row) => {
                let resident = rates.decode.first().map_or(row.median_ms, |first| first.median_ms);
                let ratio = row.median_ms / resident;
                rates.decode.push(DecodeRate { ratio, ..row });
            }
        }
    }
    Ok(rates)
}

impl KvRateOptions {
    /// Refuses too few tokens, too many tokens for the memory, and a missing folder.
    fn check(&self) -> Result<(), EvalError> {
        if self.hot_tokens < CHUNK || self.tokens < self.hot_tokens.saturating_mul(2) {
            return Err(EvalError::Option(format!(
                "--tokens must be at least twice --hot-tokens, and those at least {CHUNK}"
            )));
        }
        if !self.folder.is_dir() {
            return Err(EvalError::File {
                path: self.folder.clone(),
                reason: "no such folder: create it, or give --kv-disk another".to_owned(),
            });
        }
        let shape = shape(self, self.format);
        shape.validate().map_err(EngineError::from)?;
        // Streaming from RAM is compared with copies of the same size, which need as much memory again.
        let needed = shape.bytes_for(self.tokens).saturating_mul(2);
        let what = format!("a cache of {} tokens, twice,", self.tokens);
        check_memory(&what, needed, "use fewer --tokens")
    }
}

impl CachePart {
    /// All measurements, in order.
    fn all() -> Vec<Self> {
        let bytes = ["ram", "disk"]
            .into_iter()
            .flat_map(|tier| Format::ALL.map(|format| Self::Bytes(tier, format)));
        let places = [
            CachePlace::Device,
            CachePlace::ReadFromRam,
            CachePlace::CopiedFromRam,
            CachePlace::Disk,
        ];
        bytes
            .chain(streams::PATHS.map(Self::Stream))
            .chain(places.map(Self::Decode))
            .collect()
    }

    /// Name of this measurement in journals.
    fn name(self) -> String {
        match self {
            Self::Bytes(tier, format) => format!("bytes of {} in {tier}", format.name()),
            Self::Stream(path) => path.name().to_owned(),
            Self::Decode(place) => format!("decode, older pages in {}", place.name()),
        }
    }
}

fn measure(options: &KvRateOptions, part: CachePart) -> Result<KvRow, EvalError> {
    let place = match part {
        CachePart::Bytes(tier, format) => return Ok(KvRow::Bytes(bytes(options, tier, format)?)),
        CachePart::Stream(path) => return Ok(KvRow::Stream(streams::measure(options, path)?)),
        CachePart::Decode(place) => place,
    };
    let shape = shape(options, options.format);
    Ok(KvRow::Decode(DecodeRate {
        older_pages: place.name().to_owned(),
        median_ms: decode_ms(options, &shape, place.tiers(options, &shape))?,
        ratio: 1.0,
    }))
}

impl CachePlace {
    fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::ReadFromRam => "ram, read in place",
            Self::CopiedFromRam => "ram, copied to the device",
            Self::Disk => "disk",
        }
    }

    fn tiers(self, options: &KvRateOptions, shape: &CacheShape) -> KvTiers {
        let hot = shape.bytes_for(options.hot_tokens);
        match self {
            Self::Device => KvTiers::memory(None),
            Self::ReadFromRam => KvTiers {
                device_budget_bytes: hot,
                ..KvTiers::memory(None)
            },
            Self::CopiedFromRam => KvTiers {
                device: Arc::new(CpuDevice::apart()),
                ..far(options, shape, None, hot)
            },
            Self::Disk => far(options, shape, Some(options.folder.clone()), hot),
        }
    }
}

fn shape(options: &KvRateOptions, format: Format) -> CacheShape {
    CacheShape {
        layers: LayerShapes::alike(LAYERS, LayerShape::new(KV_HEADS, HEAD_DIM)),
        page_tokens: options.page_tokens,
        key_format: format,
        value_format: format,
    }
}

/// Tiers with space for `near_bytes` of pages in the fast tier, besides pages in transit. The other pages are in
/// `folder`, or in RAM.
fn far(options: &KvRateOptions, shape: &CacheShape, folder: Option<PathBuf>, near_bytes: u64) -> KvTiers {
    let mut tiers = KvTiers {
        disk: folder.map(|folder| DiskTier {
            folder,
            budget_bytes: None,
        }),
        outlook: Outlook {
            context_tokens: options.tokens,
            append_tokens: CHUNK,
            scans_keys: false,
            ..Outlook::default()
        },
        ..KvTiers::memory(None)
    };
    let apart = tiers.disk.is_none();
    if apart {
        tiers.device = Arc::new(CpuDevice::apart());
    }
    let near = tiers.least_near_bytes(shape).max(near_bytes);
    if apart {
        tiers.device_budget_bytes = near
    } else {
        tiers.ram_budget_bytes = Some(near)
    }
    tiers
}

fn bytes(options: &KvRateOptions, tier: &'static str, format: Format) -> Result<KvBytes, EvalError> {
    let shape = shape(options, format);
    let tokens = options.tokens.min(8192);
    let tiers = match tier {
        "disk" => far(options, &shape, Some(options.folder.clone()), 0),
        _ => KvTiers::memory(None),
    };
    let cache = filled(&shape, tiers, tokens)?;
    let usage = cache.usage();
    let bytes = match tier {
        "disk" => cache.file_bytes() as f64 / (usage.bytes_by_tier.disk as f64 / shape.bytes_per_token() as f64),
        _ => (usage.bytes_by_tier.total() + usage.bookkeeping_bytes) as f64 / tokens as f64,
    };
    Ok(KvBytes {
        tier: tier.to_owned(),
        format: format.name().to_owned(),
        page_tokens: shape.page_tokens,
        formula_bytes_per_token: shape.bytes_per_token() as f64,
        bytes_per_token: bytes,
        bookkeeping_share: usage.bookkeeping_bytes as f64 / usage.bytes_by_tier.total() as f64,
    })
}

/// A cache of noise.
fn filled(shape: &CacheShape, tiers: KvTiers, tokens: usize) -> Result<KvCache, EvalError> {
    let mut cache = KvCache::with_tiers(*shape, tiers).map_err(EngineError::from)?;
    let width = KV_HEADS * HEAD_DIM;
    let (keys, values) = (noise(CHUNK * width, 1), noise(CHUNK * width, 2));
    for start in (0..tokens).step_by(CHUNK) {
        let count = CHUNK.min(tokens - start);
        for layer in 0..shape.layers.count() {
            let appended = cache.append(layer, &keys[..count * width], &values[..count * width]);
            appended.map_err(EngineError::from)?;
        }
    }
    Ok(cache)
}

/// Milliseconds of attention of one token through all layers: the median of several.
fn decode_ms(options: &KvRateOptions, shape: &CacheShape, tiers: KvTiers) -> Result<f64, EvalError> {
    let mut cache = filled(shape, tiers, options.tokens)?;
    let queries = noise(KV_HEADS * GROUP * HEAD_DIM, 3);
    let selection = Selection::full(options.tokens);
    let attend = AttendOptions::for_head_dim(HEAD_DIM).with_arithmetic(Arithmetic::Fused);
    let tiles: Vec<QueryTile<'_>> = (0..KV_HEADS)
        .map(|kv_head| QueryTile {
            data: &queries[kv_head * GROUP * HEAD_DIM..],
            rows: 1,
            row_stride: KV_HEADS * GROUP * HEAD_DIM,
            group: GROUP,
            head_dim: HEAD_DIM,
            start: options.tokens - 1,
        })
        .collect();
    let mut partials = vec![Partial::new(1, GROUP, HEAD_DIM); KV_HEADS];
    let mut step = || -> Result<(), EngineError> {
        for layer in 0..LAYERS {
            for partial in &mut partials {
                partial.reset(1, GROUP, HEAD_DIM);
            }
            let mut stream = BatchStream::new(&tiles, &attend);
            let mut each = |pages: &[Vec<PageView<'_>>]| -> Result<(), EngineError> {
                let jobs: Vec<AttendJob<'_>> = tiles
                    .iter()
                    .zip(pages)
                    .map(|(tile, pages)| AttendJob {
                        queries: *tile,
                        kv: KvView {
                            head_dim: HEAD_DIM,
                            pages,
                        },
                        selection: &selection,
                    })
                    .collect();
                Ok(stream.attend(&jobs, &attend, &mut partials)?)
            };
            cache.stream(layer, None, Some((layer + 1) % LAYERS), &mut each)?;
            stream.finish(&mut partials)?;
            black_box(&partials);
        }
        Ok(())
    };
    step()?;
    let mut times_ms = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        step()?;
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times_ms.sort_by(f64::total_cmp);
    Ok(times_ms[times_ms.len() / 2])
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;

    #[test]
    fn bytes_per_token_equal_the_formula_and_every_path_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let options = KvRateOptions {
            folder: folder.path().to_owned(),
            tokens: 4096,
            hot_tokens: 1024,
            page_tokens: 256,
            format: Format::F16,
        };
        let rates = measure_kv(&options, &mut Journal::none(), &mut |_| ControlFlow::Continue(())).unwrap();
        for row in &rates.bytes {
            let share = row.bytes_per_token / row.formula_bytes_per_token;
            assert!((1.0..1.03).contains(&share), "{row:?}");
            assert!(row.bookkeeping_share < 0.03, "{row:?}");
        }
        assert_eq!((rates.bytes.len(), rates.streams.len(), rates.decode.len()), (10, 3, 4));
        assert!(rates.streams.iter().all(|row| row.gigabytes_per_s > 0.0));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
