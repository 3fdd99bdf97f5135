//! One layer in a room for pages on a device: what calls cost by where its pages lie, and under policies with their selection
//! included.

use std::sync::Arc;
use std::time::Instant;

use rayon::prelude::*;
use riffle_attention::{AttendOptions, PageView, Partial, QueryTile, Selection, Span};
use riffle_cuda::ops::Queries;
use riffle_cuda::{
    CallRows, CudaError, DeviceBuffer, DeviceRoom, LayerPages, PagedTile, PinnedMemory, RoomOptions, SequenceId,
    Stream, SummaryKind,
};
use riffle_engine::EngineError;
use riffle_kv::{CacheShape, KvCache, KvTiers, PageVersion};
use riffle_policy::{Estimate, Estimated, Phase, Policy, PolicySpec, SelectContext, build};
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

/// Dense calls on two layers in turn with other work of the device between them, every page in pinned main memory; by events around
/// all of them. What a layer will read first is copied while the work before it runs, or nothing is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AheadRate {
    /// Queries.
    pub rows: usize,
    /// Keys.
    pub tokens: usize,
    /// Median milliseconds of a call and the work behind it.
    pub median_ms: f64,
    /// The same with nothing read ahead.
    pub without_ms: f64,
    /// Milliseconds of the work behind a call alone.
    pub between_ms: f64,
    /// Of the pages that came those that came ahead.
    pub ahead_share: f64,
    /// Of the milliseconds that copying those takes by itself, the share by which calls are shorter: what passed behind kernels.
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

/// Layers that are read in turn, alike.
const LAYERS: usize = 2;

/// Pages that may be on their way at a time.
const SLOTS: usize = 64;

/// Everything that is known of layers.
struct Layer {
    stream: Arc<Stream>,
    case: AttentionCase,
    cache: KvCache,
    queries: Vec<f32>,
    rows: RowBuffers,
}

/// The rows of a call on the device.
struct RowBuffers {
    queries: DeviceBuffer,
    attended: DeviceBuffer,
    log_sum_exp: DeviceBuffer,
}

impl RowBuffers {
    fn call(&self, case: &AttentionCase) -> CallRows<'_> {
        CallRows {
            queries: Queries {
                data: self.queries.all(),
                rows: case.rows,
                row_stride: case.heads * case.head_dim,
            },
            attended: self.attended.all(),
            log_sum_exp: self.log_sum_exp.all(),
        }
    }
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
    let mut run = |budget: fn(&RoomOptions, usize) -> u64| -> Result<_, EvalError> {
        let mut room = layer.room(budget)?;
        let (start, end) = (event(&layer.stream)?, event(&layer.stream)?);
        let (mut times_ms, mut partials) = (Vec::new(), Vec::new());
        for repeat in 0..=repeats {
            layer.stream.record(&start).map_err(failed)?;
            partials = layer.attend(&mut room, 0, &everything)?;
            layer.stream.record(&end).map_err(failed)?;
            layer.stream.synchronize().map_err(failed)?;
            if repeat > 0 {
                times_ms.push(f64::from(end.elapsed_ms_since(&start).map_err(failed)?));
            }
        }
        let bytes = room.pages.transferred().bytes as f64 / (repeats + 1) as f64;
        Ok((median(times_ms), partials, bytes))
    };
    let (resident_ms, resident, _) = run(RoomOptions::bytes_for)?;
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

/// Dense calls on two layers in turn with pages in pinned main memory, with and without reading ahead.
pub(crate) fn ahead(
    stream: &Arc<Stream>,
    case: &AttentionCase,
    repeats: usize,
    copy_gigabytes_per_s: f64,
    upload_gigabytes_per_s: f64,
) -> Result<AheadRate, EvalError> {
    // Short enough that what comes ahead is a good part of what is read.
    let shape = case.cache_shape();
    let most = 4 * SLOTS.div_ceil(case.kv_heads) * shape.page_tokens;
    let tokens = case.tokens.min(most);
    let case = AttentionCase {
        rows: case.rows.min(tokens),
        tokens,
        ..*case
    };
    let mut layer = Layer::new(stream, &case)?;
    let everything = vec![Selection::full(case.tokens); layer.tiles().len()];
    // About as long as the copies that may pass behind it; a copy reads and writes.
    let page = shape.key_format.plane_bytes(shape.page_tokens, case.head_dim)
        + shape.value_format.plane_bytes(shape.page_tokens, case.head_dim);
    let bytes = ((SLOTS * page) as f64 * copy_gigabytes_per_s / upload_gigabytes_per_s / 2.0).clamp(1.0, 1e9) as usize;
    let buffer = || stream.gpu().allocate(bytes).map_err(failed);
    let (from, to) = (buffer()?, buffer()?);
    let work = || stream.copy_on_device(to.all(), from.all()).map_err(failed);
    let mut run = |is_ahead: bool| -> Result<_, EvalError> {
        let mut room = layer.room(|options, _| options.least_bytes())?;
        let (start, end) = (event(stream)?, event(stream)?);
        let (mut times_ms, mut partials) = (Vec::new(), Vec::new());
        for repeat in 0..=repeats {
            stream.record(&start).map_err(failed)?;
            for number in 0..LAYERS {
                layer.queue(&mut room, number, &everything)?;
                if is_ahead {
                    layer.read_ahead(&mut room, (number + 1) % LAYERS)?;
                }
                work()?;
            }
            stream.record(&end).map_err(failed)?;
            stream.synchronize().map_err(failed)?;
            if repeat > 0 {
                times_ms.push(f64::from(end.elapsed_ms_since(&start).map_err(failed)?) / LAYERS as f64);
            }
        }
        for number in 0..LAYERS {
            partials.push(layer.attend(&mut room, number, &everything)?);
        }
        Ok((median(times_ms), partials, room.pages.transferred()))
    };
    let (without_ms, expected, _) = run(false)?;
    let (median_ms, found, came) = run(true)?;
    let between_ms = {
        let (start, end) = (event(stream)?, event(stream)?);
        stream.record(&start).map_err(failed)?;
        work()?;
        stream.record(&end).map_err(failed)?;
        stream.synchronize().map_err(failed)?;
        f64::from(end.elapsed_ms_since(&start).map_err(failed)?)
    };
    let ahead_share = came.pages_ahead as f64 / came.pages as f64;
    let ahead_bytes = came.pages_ahead as f64 * page as f64 / (LAYERS * (repeats + 1)) as f64;
    let copy_ms = ahead_bytes / upload_gigabytes_per_s / 1e6;
    Ok(AheadRate {
        rows: case.rows,
        tokens: case.tokens,
        median_ms,
        without_ms,
        between_ms,
        ahead_share,
        overlap_share: ((without_ms - median_ms) / copy_ms).clamp(0.0, 1.0),
        same_bits: expected == found,
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
    let mut run = |budget: fn(&RoomOptions, usize) -> u64, is_sparse: bool| -> Result<_, EvalError> {
        let mut room = layer.room(budget)?;
        let policies = (0..case.kv_heads).map(|_| build(&spec, phase).map_err(EngineError::from));
        let mut policies = policies.collect::<Result<Vec<_>, _>>()?;
        let (mut times_ms, mut select_ms, mut last) = (Vec::new(), Vec::new(), None);
        for repeat in 0..=repeats {
            let start = Instant::now();
            let selections = match is_sparse {
                true => layer.select(&mut room, &mut policies, phase)?,
                false => everything.clone(),
            };
            let selected = start.elapsed();
            let partials = layer.attend(&mut room, 0, &selections)?;
            if repeat > 0 {
                times_ms.push(start.elapsed().as_secs_f64() * 1e3);
                select_ms.push(selected.as_secs_f64() * 1e3);
            }
            last = Some((selections, partials));
        }
        Ok((median(times_ms), median(select_ms), last))
    };
    let (dense_ms, _, _) = run(RoomOptions::bytes_for, false)?;
    let (median_ms, select_ms, resident) = run(RoomOptions::bytes_for, true)?;
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
        let shape = CacheShape {
            layers: LAYERS,
            ..case.cache_shape()
        };
        let mut cache = KvCache::with_tiers(shape, tiers).map_err(EngineError::from)?;
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
            for layer in 0..LAYERS {
                cache.append(layer, &keys, &values).map_err(EngineError::from)?;
            }
        }
        let mut queries = noise(case.rows * case.heads * case.head_dim, 7);
        queries.iter_mut().for_each(|x| *x += 1.0);
        Ok(Self {
            rows: RowBuffers {
                queries: stream.gpu().upload(&queries).map_err(failed)?,
                attended: stream.gpu().allocate(size_of_val(&queries[..])).map_err(failed)?,
                log_sum_exp: stream.gpu().allocate(4 * case.rows * case.heads).map_err(failed)?,
            },
            stream: Arc::clone(stream),
            case: *case,
            cache,
            queries,
        })
    }

    fn room(&self, budget: fn(&RoomOptions, usize) -> u64) -> Result<Room, EvalError> {
        let mut options = RoomOptions {
            shape: *self.cache.shape(),
            heads: self.case.heads,
            budget_bytes: 0,
            slots: SLOTS,
            estimate_bytes: 256 << 20,
            bound_bytes: (LAYERS as u64) * (64 << 20),
            mean_bytes: 0,
        };
        options.budget_bytes = budget(&options, self.case.tokens);
        let mut pages = DeviceRoom::new(&self.stream, options).map_err(failed)?;
        Ok(Room {
            sequence: pages.begin_sequence(),
            pages,
        })
    }

    fn start(&self) -> usize {
        self.case.tokens - self.case.rows
    }

    fn on_device(&self) -> Queries<'_> {
        self.rows.call(&self.case).queries
    }

    /// Rows of a KV head's queries.
    fn tile(&self, kv_head: usize, first: usize, rows: usize) -> QueryTile<'_> {
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
                    self.tile(kv_head, first, TILE_ROWS.min(self.case.rows - first)),
                )
            })
        };
        (0..self.case.kv_heads).flat_map(of_head).collect()
    }

    fn attend(&mut self, room: &mut Room, layer: usize, selections: &[Selection]) -> Result<Vec<Partial>, EvalError> {
        self.queue(room, layer, selections)?;
        let mut partials = Vec::new();
        for (_, queries) in self.tiles() {
            partials.push(Partial::new(queries.rows, queries.group, queries.head_dim));
        }
        let tiles = self.paged_tiles(selections);
        room.pages
            .bring_partials(&tiles, &self.rows.call(&self.case), &mut partials)
            .map_err(failed)?;
        Ok(partials)
    }

    /// The tiles with what each reads.
    fn paged_tiles<'s>(&self, selections: &'s [Selection]) -> Vec<PagedTile<'s>> {
        let tiles = self.tiles().into_iter().zip(selections);
        let tile = |((kv_head, queries), selection): ((usize, QueryTile<'_>), &'s Selection)| PagedTile {
            kv_head,
            first_row: queries.start - self.start(),
            rows: queries.rows,
            start: queries.start,
            selection,
        };
        tiles.map(tile).collect()
    }

    /// Attends; what is returned lies on the device when that has run.
    fn queue(&mut self, room: &mut Room, layer: usize, selections: &[Selection]) -> Result<(), EvalError> {
        let page_tokens = self.cache.shape().page_tokens;
        let mut wanted = vec![Vec::new(); self.case.kv_heads];
        for ((kv_head, queries), selection) in self.tiles().into_iter().zip(selections) {
            let read = selection.reads(queries.start, queries.rows);
            let pages = read
                .iter()
                .map(|span| Span::new(span.start / page_tokens, span.end.div_ceil(page_tokens)));
            wanted[kv_head].extend(pages);
        }
        for pages in &mut wanted {
            *pages = Selection::from_spans(pages.drain(..)).spans().to_vec();
        }
        let options = AttendOptions::new(self.scale());
        let tiles = self.paged_tiles(selections);
        let rows = self.rows.call(&self.case);
        let versions = self.cache.page_versions(layer);
        let of = room.layer(layer, &versions);
        let mut call = room
            .pages
            .begin(of, &tiles, rows, self.case.tokens, &options)
            .map_err(failed)?;
        self.cache
            .stream::<EngineError>(layer, Some(&wanted), None, &mut |pages| Ok(call.attend(pages)?))?;
        call.finish().map_err(failed)
    }

    /// Begins to copy what a layer is expected to read first.
    fn read_ahead(&self, room: &mut Room, layer: usize) -> Result<(), EvalError> {
        let reader = self.cache.read();
        let versions = reader.page_versions(layer);
        let of = room.layer(layer, &versions);
        let expected = room.pages.expected(of).into_iter();
        let shown = expected.filter_map(|(kv_head, page)| Some((kv_head, reader.near_page(layer, kv_head, page)?)));
        room.pages.read_ahead(of, &shown.collect::<Vec<_>>()).map_err(failed)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.case.head_dim as f32).sqrt()
    }

    /// As the engine selects: estimates where the keys lie, choices on the CPU.
    fn select(&self, room: &mut Room, policies: &mut [Policy], phase: Phase) -> Result<Vec<Selection>, EvalError> {
        let (case, start) = (&self.case, self.start());
        let reader = self.cache.read();
        let shown: Vec<Vec<PageView<'_>>> = (0..case.kv_heads).map(|head| reader.pages(0, head).collect()).collect();
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
        let chunk = |kv_head: usize| self.tile(kv_head, 0, case.rows);
        let versions = reader.page_versions(0);
        let estimated = self.estimate(room, &versions, &shown, policies[0].estimate(&chunk(0), &contexts[0]))?;
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
        room: &mut Room,
        versions: &[Vec<PageVersion>],
        shown: &[Vec<PageView<'_>>],
        asked: Option<Estimate>,
    ) -> Result<Vec<Option<Estimated>>, EvalError> {
        let (case, start, scale) = (&self.case, self.start(), self.scale());
        let of = room.layer(0, versions);
        let nothing = || Ok((0..case.kv_heads).map(|_| None).collect());
        match asked {
            None => nothing(),
            Some(Estimate::Bounds { block }) => {
                let known = room.pages.summaries_known(SummaryKind::Bounds, of, block, case.tokens);
                let Some(known) = known.map_err(failed)? else {
                    return nothing();
                };
                let lacking = shown.iter().zip(&known).map(|(pages, known)| {
                    let pages = pages.iter().filter(|page| page.start + page.tokens > *known);
                    pages.copied().collect()
                });
                room.pages
                    .extend_summaries(SummaryKind::Bounds, of, &lacking.collect::<Vec<_>>())
                    .map_err(failed)?;
                let tokens = vec![case.tokens; case.kv_heads];
                let scores = room.pages.bound_scores(of, self.on_device(), &tokens).map_err(failed)?;
                Ok(scores
                    .into_iter()
                    .map(|scores| Some(Estimated::Bounds(scores)))
                    .collect())
            }
            Some(asked) => {
                let Some(mut scan) = room.pages.scan_keys(of, shown, self.on_device()).map_err(failed)? else {
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

/// A room with one sequence in it.
struct Room {
    pages: DeviceRoom,
    sequence: SequenceId,
}

impl Room {
    fn layer<'a>(&self, layer: usize, versions: &'a [Vec<PageVersion>]) -> LayerPages<'a> {
        LayerPages {
            sequence: self.sequence,
            layer,
            versions,
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
