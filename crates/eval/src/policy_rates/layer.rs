//! One layer under a policy: its tiles are selected for and attended to, and timed.

use std::time::Instant;

use rayon::prelude::*;
use riffle_attention::{
    AttendJob, AttendOptions, KvView, PageView, Partial, QueryTile, Selection, attend_batch, attend_scanned,
};
use riffle_engine::EngineError;
use riffle_kv::KvCache;
use riffle_policy::{LentScan, Phase, Policy, PolicySpec, SelectContext, build};

use super::PolicyRateOptions;
use crate::EvalError;

/// Query heads and rows in a tile, as the engine cuts them.
const TILE_HEAD_ROWS: usize = 128;

/// One layer at its last chunk.
pub(super) struct Layer<'a> {
    options: &'a PolicyRateOptions,
    phase: Phase,
    rows: usize,
    /// `[rows, heads, head_dim]`
    queries: &'a [f32],
    cache: &'a KvCache,
}

pub(super) struct Timed {
    pub(super) select_ms: f64,
    pub(super) attend_ms: f64,
    pub(super) density: f64,
    pub(super) dense_layers: usize,
}

impl<'a> Layer<'a> {
    pub(super) fn new(
        options: &'a PolicyRateOptions,
        cache: &'a KvCache,
        queries: &'a [f32],
        rows: usize,
        phase: Phase,
    ) -> Self {
        Self {
            options,
            phase,
            rows,
            queries,
            cache,
        }
    }

    /// Medians of several runs.
    pub(super) fn time(&self, spec: &PolicySpec) -> Result<Timed, EvalError> {
        let mut policies: Vec<Policy> = (0..self.options.kv_heads)
            .map(|_| build(spec, self.phase))
            .collect::<Result<_, _>>()
            .map_err(EngineError::from)?;
        let tiles = self.tiles();
        let mut partials: Vec<Partial> = tiles.iter().map(|_| Partial::new(0, 0, 0)).collect();
        let (mut select_ms, mut attend_ms) = (Vec::new(), Vec::new());
        let mut selections = Vec::new();
        let began = Instant::now();
        // The first run makes summaries of what came before.
        while select_ms.len() < 4 || (began.elapsed().as_secs_f64() < 1.0 && select_ms.len() < 200) {
            let start = Instant::now();
            selections = self.select(&mut policies, &tiles);
            select_ms.push(start.elapsed().as_secs_f64() * 1e3);
            let start = Instant::now();
            self.attend(&mut policies, &tiles, &selections, &mut partials)?;
            attend_ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(Timed {
            select_ms: median(&mut select_ms[1..]),
            attend_ms: median(&mut attend_ms[1..]),
            density: self.density(&tiles, &selections),
            dense_layers: self.dense_layers(&policies, &tiles),
        })
    }

    /// Prepares the policy of each KV head and selects for each tile.
    fn select(&self, policies: &mut [Policy], tiles: &[(usize, QueryTile<'_>)]) -> Vec<Selection> {
        let reader = self.cache.read();
        let pages = policies.iter_mut().enumerate().map(|(head, policy)| {
            let from = policy.keys_from(&self.context(head, &[]));
            reader.pages_from(0, head, from).collect()
        });
        let pages: Vec<Vec<PageView<'_>>> = pages.collect();
        let contexts = pages.iter().enumerate().map(|(head, pages)| self.context(head, pages));
        let contexts: Vec<SelectContext<'_>> = contexts.collect();
        policies.par_iter_mut().zip(&contexts).for_each(|(policy, context)| {
            policy.prepare(&self.tile(context.kv_head, 0, self.rows), context);
        });
        let policies = &*policies;
        tiles
            .par_iter()
            .map(|(head, tile)| policies[*head].select(tile, &contexts[*head]))
            .collect()
    }

    /// Attends each tile to what it selected.
    fn attend(
        &self,
        policies: &mut [Policy],
        tiles: &[(usize, QueryTile<'_>)],
        selections: &[Selection],
        partials: &mut [Partial],
    ) -> Result<(), EvalError> {
        let heads = 0..self.options.kv_heads;
        let reader = self.cache.read();
        let pages: Vec<Vec<PageView<'_>>> = heads.map(|head| reader.pages(0, head).collect()).collect();
        let kv = |head: usize| KvView {
            head_dim: self.options.head_dim,
            pages: &pages[head],
        };
        let scans: Vec<Option<LentScan>> = policies.iter_mut().map(Policy::take_scan).collect();
        let scan = |head: usize, tile: &QueryTile<'_>| {
            let scan = scans[head].as_deref();
            scan.filter(|scan| scan.covers(tile))
        };
        let nothing = Selection::none();
        let jobs: Vec<AttendJob<'_>> = tiles
            .iter()
            .zip(selections)
            .map(|((head, tile), selection)| AttendJob {
                queries: *tile,
                kv: kv(*head),
                selection: match scan(*head, tile) {
                    Some(_) => &nothing,
                    None => selection,
                },
            })
            .collect();
        for (partial, (_, tile)) in partials.iter_mut().zip(tiles) {
            partial.reset(tile.rows, tile.group, tile.head_dim);
        }
        let options = AttendOptions::new(self.scale()).with_arithmetic(self.phase.arithmetic());
        attend_batch(&jobs, &options, partials).map_err(EngineError::from)?;
        let scanned = partials.par_iter_mut().zip(tiles).zip(selections);
        scanned
            .try_for_each(|((partial, (head, tile)), selection)| match scan(*head, tile) {
                Some(scan) => attend_scanned(scan, selection, &kv(*head), partial),
                None => Ok(()),
            })
            .map_err(EngineError::from)?;
        Ok(())
    }

    /// Share of the causal pairs that is read.
    fn density(&self, tiles: &[(usize, QueryTile<'_>)], selections: &[Selection]) -> f64 {
        let everything = Selection::full(self.options.tokens);
        let pairs = tiles.iter().zip(selections).map(|((_, tile), selection)| {
            (
                selection.pair_count(tile.start, tile.rows),
                everything.pair_count(tile.start, tile.rows),
            )
        });
        let (read, causal) = pairs.fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        read as f64 / causal as f64
    }

    /// Layers of the model in which the policy reads everything.
    fn dense_layers(&self, policies: &[Policy], tiles: &[(usize, QueryTile<'_>)]) -> usize {
        let (head, tile) = &tiles[0];
        let reader = self.cache.read();
        let pages: Vec<PageView<'_>> = reader.pages(0, *head).collect();
        let reads_all = |layer: &usize| {
            let context = SelectContext {
                layer: *layer,
                layers: self.options.layers,
                ..self.context(*head, &pages)
            };
            policies[*head].select(tile, &context) == Selection::full(self.options.tokens)
        };
        (0..self.options.layers).filter(reads_all).count()
    }

    /// The tiles of the chunk with their KV heads.
    fn tiles(&self) -> Vec<(usize, QueryTile<'_>)> {
        let step = (TILE_HEAD_ROWS * self.options.kv_heads / self.options.heads).max(1);
        (0..self.options.kv_heads)
            .flat_map(|head| {
                (0..self.rows)
                    .step_by(step)
                    .map(move |first| (head, self.tile(head, first, step.min(self.rows - first))))
            })
            .collect()
    }

    fn scale(&self) -> f32 {
        1.0 / (self.options.head_dim as f32).sqrt()
    }

    fn tile(&self, kv_head: usize, first: usize, rows: usize) -> QueryTile<'_> {
        let group = self.options.heads / self.options.kv_heads;
        let width = self.options.heads * self.options.head_dim;
        QueryTile {
            data: &self.queries[first * width + kv_head * group * self.options.head_dim..],
            rows,
            row_stride: width,
            group,
            head_dim: self.options.head_dim,
            start: self.options.tokens - self.rows + first,
        }
    }

    fn context<'p>(&self, kv_head: usize, pages: &'p [PageView<'p>]) -> SelectContext<'p> {
        let tokens = self.options.tokens;
        SelectContext {
            phase: self.phase,
            // Neither a first nor a last layer, and not the prompt's last chunk: some policies read those densely.
            layer: 100,
            layers: 200,
            kv_head,
            chunk_start: tokens - self.rows,
            tokens,
            total_tokens: if self.phase == Phase::Prefill {
                2 * tokens
            } else {
                tokens
            },
            page_tokens: riffle_kv::DEFAULT_PAGE_TOKENS,
            scale: self.scale(),
            soft_cap: None,
            pages,
        }
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
