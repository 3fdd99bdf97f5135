//! One layer in a pool of pages on a device: what calls cost by where its pages lie, and under policies with their selection
//! included.

use std::sync::Arc;
use std::time::Instant;

use rayon::prelude::*;
use riffle_attention::{AttendOptions, PageView, Partial, QueryTile, Selection, Span};
use riffle_cuda::ops::Queries;
use riffle_cuda::{
    CallRows, CudaError, DeviceBuffer, PagePool, PagePoolOptions, PagedTile, PinnedMemory, Stream, SummaryKind,
};
use riffle_engine::EngineError;
use riffle_kv::{KvCache, KvTiers};
use riffle_policy::{Estimate, Estimated, Phase, PolicySpec, SelectContext, SparsePolicy, build};
use serde::{Deserialize, Serialize};

use crate::attention_rates::TILE_ROWS;
use crate::noise::noise;
use crate::{AttentionCase, EvalError};

/// A dense call whose pages come from pinned main memory, beside one whose pages lie on the device; by events around the call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OffloadRate {
    /// Queries.
    pub rows: usize,
    /// Keys.
    pub tokens: usize,
    /// Median milliseconds of a call that brings every page.
    pub median_ms: f64,
    /// Median milliseconds of the same call with every page on the device.
    pub resident_ms: f64,
    /// Pages that came, in GB/s.
    pub gigabytes_per_s: f64,
    /// Share of [`DeviceReport::upload_gigabytes_per_s`](crate::DeviceReport).
    pub upload_share: f64,
    /// Of the shorter of copying and computing, measured apart, the share that passed behind the other.
    pub overlap_share: f64,
    /// Whether both gave the same bits.
    pub same_bits: bool,
}

/// A call under a policy, its selection included, by the wall clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DevicePolicyRate {
    /// The policy with its parameters.
    pub policy: String,
    /// Queries.
    pub rows: usize,
    /// Keys.
    pub tokens: usize,
    /// Median milliseconds with every page on the device.
    pub median_ms: f64,
    /// Of these, milliseconds of the selection.
    pub select_ms: f64,
    /// Median milliseconds of the dense call, every page on the device.
    pub dense_ms: f64,
    /// `dense_ms / median_ms`.
    pub speedup: f64,
    /// Median milliseconds with pages in main memory.
    pub offloaded_ms: f64,
    /// `median_ms / offloaded_ms`.
    pub offloaded_share: f64,
    /// Share of causal pairs that the selection reads.
    pub density: f64,
    /// Whether what was chosen and what came of it are the same to the bit, wherever pages lie.
    pub same_bits: bool,
}

/// Everything that is known of a layer.
struct Layer {
    stream: Arc<Stream>,
    case: AttentionCase,
    cache: KvCache,
    queries: Vec<f32>,
    on_device: DeviceBuffer,
    attended: DeviceBuffer,
    log_sum_exp: DeviceBuffer,
}

fn failed(error: CudaError) -> EvalError {
    EngineError::from(error).into()
}

/// Dense calls with every page on the device and with every page in pinned main memory.
pub(crate) fn offload(
    stream: &Arc<Stream>,
    case: &AttentionCase,
    repeats: usize,
    upload_gigabytes_per_s: f64,
) -> Result<OffloadRate, EvalError> {
    let mut layer = Layer::new(stream, case)?;
    let everything = vec![Selection::full(case.tokens); layer.tiles().len()];
    let mut run = |budget: fn(&PagePoolOptions, usize) -> u64| -> Result<_, EvalError> {
        let mut pool = layer.pool(budget)?;
        let (start, end) = (event(&layer.stream)?, event(&layer.stream)?);
        let (mut times_ms, mut partials) = (Vec::new(), Vec::new());
        for repeat in 0..=repeats {
            layer.stream.record(&start).map_err(failed)?;
            partials = layer.attend(&mut pool, &everything)?;
            layer.stream.record(&end).map_err(failed)?;
            layer.stream.synchronize().map_err(failed)?;
            if repeat > 0 {
                times_ms.push(f64::from(end.elapsed_ms_since(&start).map_err(failed)?));
            }
        }
        let bytes = pool.transferred().bytes as f64 / (repeats + 1) as f64;
        Ok((median(times_ms), partials, bytes))
    };
    let (resident_ms, resident, _) = run(PagePoolOptions::bytes_for)?;
    let (median_ms, far, bytes) = run(|options, _| options.least_bytes())?;
    let gigabytes_per_s = bytes / median_ms / 1e6;
    let copy_ms = bytes / upload_gigabytes_per_s / 1e6;
    Ok(OffloadRate {
        rows: case.rows,
        tokens: case.tokens,
        median_ms,
        resident_ms,
        gigabytes_per_s,
        upload_share: gigabytes_per_s / upload_gigabytes_per_s,
        overlap_share: ((copy_ms + resident_ms - median_ms) / copy_ms.min(resident_ms)).clamp(0.0, 1.0),
        same_bits: resident == far,
    })
}

/// A policy on the last `case.rows` queries, beside dense attention.
pub(crate) fn policy(
    stream: &Arc<Stream>,
    case: &AttentionCase,
    name: &str,
    repeats: usize,
) -> Result<DevicePolicyRate, EvalError> {
    let spec: PolicySpec = name.parse().map_err(EngineError::from)?;
    let phase = if case.rows == 1 { Phase::Decode } else { Phase::Prefill };
    let mut layer = Layer::new(stream, case)?;
    let everything = vec![Selection::full(case.tokens); layer.tiles().len()];
    let mut run = |budget: fn(&PagePoolOptions, usize) -> u64, is_sparse: bool| -> Result<_, EvalError> {
        let mut pool = layer.pool(budget)?;
        let policies = (0..case.kv_heads).map(|_| build(&spec, phase).map_err(EngineError::from));
        let mut policies = policies.collect::<Result<Vec<_>, _>>()?;
        let (mut times_ms, mut select_ms, mut last) = (Vec::new(), Vec::new(), None);
        for repeat in 0..=repeats {
            let start = Instant::now();
            let selections = match is_sparse {
                true => layer.select(&mut pool, &mut policies, phase)?,
                false => everything.clone(),
            };
            let selected = start.elapsed();
            let partials = layer.attend(&mut pool, &selections)?;
            if repeat > 0 {
                times_ms.push(start.elapsed().as_secs_f64() * 1e3);
                select_ms.push(selected.as_secs_f64() * 1e3);
            }
            last = Some((selections, partials));
        }
        Ok((median(times_ms), median(select_ms), last))
    };
    let (dense_ms, _, _) = run(PagePoolOptions::bytes_for, false)?;
    let (median_ms, select_ms, resident) = run(PagePoolOptions::bytes_for, true)?;
    let (offloaded_ms, _, far) = run(|options, _| options.least_bytes(), true)?;
    let tiles = layer.tiles();
    let pairs = |selections: &[Selection]| -> usize {
        let tiles = tiles.iter().zip(selections);
        tiles
            .map(|(tile, selection)| selection.pair_count(tile.1.start, tile.1.rows))
            .sum()
    };
    let read = resident.as_ref().map_or(0, |(selections, _)| pairs(selections));
    Ok(DevicePolicyRate {
        policy: spec.to_string(),
        rows: case.rows,
        tokens: case.tokens,
        median_ms,
        select_ms,
        dense_ms,
        speedup: dense_ms / median_ms,
        offloaded_ms,
        offloaded_share: median_ms / offloaded_ms,
        density: read as f64 / pairs(&everything) as f64,
        same_bits: resident == far,
    })
}

impl Layer {
    /// Keys of every twentieth block or so stand out to all queries, by logits of about six: few blocks hold nearly all mass.
    fn new(stream: &Arc<Stream>, case: &AttentionCase) -> Result<Self, EvalError> {
        const CHUNK: usize = 4096;
        const BLOCK: usize = 128;
        // Memory that the device copies from by itself, as in an engine.
        let tiers = KvTiers {
            device: Arc::new(PinnedMemory::new(stream.gpu())),
            ..KvTiers::memory(None)
        };
        let mut cache = KvCache::with_tiers(case.cache_shape(), tiers).map_err(EngineError::from)?;
        let width = case.kv_heads * case.head_dim;
        let more = 6.0 / (case.head_dim as f32).sqrt();
        for start in (0..case.tokens).step_by(CHUNK) {
            let tokens = CHUNK.min(case.tokens - start);
            let mut keys = noise(tokens * width, start as u64 + 1);
            for (token, key) in keys.chunks_exact_mut(width).enumerate() {
                // Multiples of the golden ratio modulo 1 spread evenly.
                let place = ((start + token) / BLOCK) as f64 * 0.618_033_988_749_895;
                if place.fract() < 0.05 {
                    key.iter_mut().for_each(|x| *x += more);
                }
            }
            let values = noise(tokens * width, start as u64 + 2);
            cache.append(0, &keys, &values).map_err(EngineError::from)?;
        }
        let mut queries = noise(case.rows * case.heads * case.head_dim, 7);
        queries.iter_mut().for_each(|x| *x += 1.0);
        Ok(Self {
            on_device: stream.gpu().upload(&queries).map_err(failed)?,
            attended: stream.gpu().allocate(size_of_val(&queries[..])).map_err(failed)?,
            log_sum_exp: stream.gpu().allocate(4 * case.rows * case.heads).map_err(failed)?,
            stream: Arc::clone(stream),
            case: *case,
            cache,
            queries,
        })
    }

    fn pool(&self, budget: fn(&PagePoolOptions, usize) -> u64) -> Result<PagePool, EvalError> {
        let mut options = PagePoolOptions {
            shape: *self.cache.shape(),
            heads: self.case.heads,
            budget_bytes: 0,
            slots: 64,
            estimate_bytes: 256 << 20,
            bound_bytes: 64 << 20,
            mean_bytes: 0,
        };
        options.budget_bytes = budget(&options, self.case.tokens);
        PagePool::new(&self.stream, options).map_err(failed)
    }

    fn start(&self) -> usize {
        self.case.tokens - self.case.rows
    }

    fn on_device(&self) -> Queries<'_> {
        Queries {
            data: self.on_device.all(),
            rows: self.case.rows,
            row_stride: self.case.heads * self.case.head_dim,
        }
    }

    /// Rows of a KV head's queries.
    fn rows(&self, kv_head: usize, first: usize, rows: usize) -> QueryTile<'_> {
        let (group, width) = (
            self.case.heads / self.case.kv_heads,
            self.case.heads * self.case.head_dim,
        );
        QueryTile {
            data: &self.queries[first * width + kv_head * group * self.case.head_dim..],
            rows,
            row_stride: width,
            group,
            head_dim: self.case.head_dim,
            start: self.start() + first,
        }
    }

    /// KV head by KV head, with the first row of each.
    fn tiles(&self) -> Vec<(usize, QueryTile<'_>)> {
        let firsts = (0..self.case.rows).step_by(TILE_ROWS);
        let of_head = |kv_head: usize| {
            let firsts = firsts.clone();
            firsts.map(move |first| {
                (
                    kv_head,
                    self.rows(kv_head, first, TILE_ROWS.min(self.case.rows - first)),
                )
            })
        };
        (0..self.case.kv_heads).flat_map(of_head).collect()
    }

    fn attend(&mut self, pool: &mut PagePool, selections: &[Selection]) -> Result<Vec<Partial>, EvalError> {
        let (start, page_tokens) = (self.start(), self.cache.shape().page_tokens);
        let mut wanted = vec![Vec::new(); self.case.kv_heads];
        let (mut tiles, mut partials) = (Vec::new(), Vec::new());
        for ((kv_head, queries), selection) in self.tiles().into_iter().zip(selections) {
            let read = selection.reads(queries.start, queries.rows);
            let pages = read
                .iter()
                .map(|span| Span::new(span.start / page_tokens, span.end.div_ceil(page_tokens)));
            wanted[kv_head].extend(pages);
            tiles.push(PagedTile {
                kv_head,
                first_row: queries.start - start,
                rows: queries.rows,
                start: queries.start,
                selection,
            });
            partials.push(Partial::new(queries.rows, queries.group, queries.head_dim));
        }
        for pages in &mut wanted {
            *pages = Selection::from_spans(pages.drain(..)).spans().to_vec();
        }
        let options = AttendOptions::new(self.scale());
        let rows = CallRows {
            queries: Queries {
                data: self.on_device.all(),
                rows: self.case.rows,
                row_stride: self.case.heads * self.case.head_dim,
            },
            attended: self.attended.all(),
            log_sum_exp: self.log_sum_exp.all(),
        };
        let mut call = pool
            .begin(0, &tiles, rows, self.case.tokens, &options)
            .map_err(failed)?;
        self.cache
            .stream::<EngineError>(0, Some(&wanted), None, &mut |pages| Ok(call.attend(pages)?))?;
        call.finish().map_err(failed)?;
        pool.bring_partials(&tiles, &rows, &mut partials).map_err(failed)?;
        Ok(partials)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.case.head_dim as f32).sqrt()
    }

    /// As the engine selects: estimates where the keys lie, choices on the CPU.
    fn select(
        &self,
        pool: &mut PagePool,
        policies: &mut [Box<dyn SparsePolicy>],
        phase: Phase,
    ) -> Result<Vec<Selection>, EvalError> {
        let (case, start) = (&self.case, self.start());
        let shown: Vec<Vec<PageView<'_>>> = (0..case.kv_heads)
            .map(|head| self.cache.pages(0, head).collect())
            .collect();
        let context = |kv_head: usize| SelectContext {
            phase,
            // Some policies read the first layers densely.
            layer: 9,
            layers: 36,
            kv_head,
            chunk_start: start,
            tokens: case.tokens,
            total_tokens: case.tokens,
            page_tokens: self.cache.shape().page_tokens,
            scale: self.scale(),
            soft_cap: None,
            pages: &shown[kv_head],
        };
        let contexts: Vec<SelectContext<'_>> = (0..case.kv_heads).map(context).collect();
        let chunk = |kv_head: usize| self.rows(kv_head, 0, case.rows);
        let estimated = self.estimate(pool, &shown, policies[0].estimate(&chunk(0), &contexts[0]))?;
        let prepared = policies.par_iter_mut().zip(estimated).zip(&contexts);
        prepared.for_each(|((policy, estimated), context)| {
            let chunk = chunk(context.kv_head);
            match estimated {
                Some(estimated) => policy.prepare_from(&chunk, context, estimated),
                None => policy.prepare(&chunk, context),
            }
        });
        let tiles = self.tiles();
        let selected = tiles
            .par_iter()
            .map(|(kv_head, tile)| policies[*kv_head].select(tile, &contexts[*kv_head]));
        Ok(selected.collect())
    }

    fn estimate(
        &self,
        pool: &mut PagePool,
        shown: &[Vec<PageView<'_>>],
        asked: Option<Estimate>,
    ) -> Result<Vec<Option<Estimated>>, EvalError> {
        let (case, start, scale) = (&self.case, self.start(), self.scale());
        let nothing = || Ok((0..case.kv_heads).map(|_| None).collect());
        match asked {
            None => nothing(),
            Some(Estimate::Bounds { block }) => {
                let Some(known) = pool.summaries_known(SummaryKind::Bounds, 0, block, case.tokens) else {
                    return nothing();
                };
                let lacking = shown.iter().zip(&known).map(|(pages, known)| {
                    let pages = pages.iter().filter(|page| page.start + page.tokens > *known);
                    pages.copied().collect()
                });
                pool.extend_summaries(SummaryKind::Bounds, 0, &lacking.collect::<Vec<_>>())
                    .map_err(failed)?;
                let tokens = vec![case.tokens; case.kv_heads];
                let scores = pool.bound_scores(0, self.on_device(), &tokens).map_err(failed)?;
                Ok(scores
                    .into_iter()
                    .map(|scores| Some(Estimated::Bounds(scores)))
                    .collect())
            }
            Some(asked) => {
                let Some(mut scan) = pool.scan_keys(0, shown, self.on_device()).map_err(failed)? else {
                    return nothing();
                };
                let of_head = |kv_head: usize| {
                    Ok(match asked {
                        Estimate::Blocks { stride, block } => scan
                            .blocks(kv_head, start, case.tokens, scale, stride, block)?
                            .map(Estimated::Blocks),
                        Estimate::Lines { queries } => scan
                            .lines(kv_head, start, case.tokens, scale, queries)?
                            .map(|[columns, distances]| Estimated::Lines { columns, distances }),
                        Estimate::Bounds { .. } => None,
                    })
                };
                let found: Result<Vec<_>, CudaError> = (0..case.kv_heads).map(of_head).collect();
                found.map_err(failed)
            }
        }
    }
}

fn event(stream: &Stream) -> Result<riffle_cuda::Event, EvalError> {
    stream.gpu().event().map_err(failed)
}

/// The middle of some times.
pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    // A clock too coarse for the work must not divide by zero.
    times[times.len() / 2].max(1e-6)
}
