//! What selecting and attending cost under a policy beside dense attention of the same queries, in one layer.

use std::time::Instant;

use rayon::prelude::*;
use riffle_attention::{
    AttendJob, AttendOptions, Format, KvView, PageView, Partial, QueryTile, Selection, attend_batch, attend_scanned,
};
use riffle_engine::EngineError;
use riffle_kv::{CacheShape, KvCache};
use riffle_policy::{LentScan, Phase, Policy, PolicyRules, PolicySpec, SelectContext, build};
use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::noise::noise;
use crate::room::check_memory;

/// What the keys look like that queries meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyKind {
    /// Independent of the queries, logits of variance 1: a model of random weights whose queries and keys are normalised.
    Random,
    /// As `Random`, and one token in 64 stands out to every query, so that few tokens hold nearly all mass.
    Peaked,
}

/// One layer and its context.
#[derive(Debug, Clone, Copy)]
pub struct PolicyRateOptions {
    /// Tokens of the context, those of the queries included.
    pub tokens: usize,
    /// Layers of the model, of which a policy may read some densely.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Formats of keys and values under the policies; dense attention has f16.
    pub formats: (Format, Format),
    /// What the keys look like.
    pub keys: KeyKind,
    /// Queries of a prompt's chunk, where the policy prefers no other number.
    pub chunk_tokens: usize,
}

/// `riffle bench policies`: a row for each policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyRates {
    /// Threads.
    pub threads: usize,
    /// Tokens of the context.
    pub tokens: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Format of keys and of values under the policies.
    pub formats: [String; 2],
    /// What the keys looked like.
    pub keys: KeyKind,
    /// A row for each policy.
    pub rates: Vec<PolicyRate>,
}

/// What the last chunk of a prompt, or a decode step, costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyRate {
    /// The policy.
    pub policy: String,
    /// `prefill` or `decode`.
    pub phase: String,
    /// Milliseconds of dense attention from f16.
    pub dense_ms: f64,
    /// Milliseconds of looking at keys and choosing.
    pub select_ms: f64,
    /// Milliseconds of attending to what was chosen.
    pub attend_ms: f64,
    /// Share of the causal pairs that is read.
    pub density: f64,
    /// Layers of the model.
    pub layers: usize,
    /// Those of them that the policy reads densely.
    pub dense_layers: usize,
}

impl PolicyRate {
    /// How often the policy's time fits into dense attention's, in a layer that it does not read densely.
    pub fn speed(&self) -> f64 {
        self.dense_ms / (self.select_ms + self.attend_ms)
    }

    /// The same over all layers of the model.
    pub fn model_speed(&self) -> f64 {
        let dense = self.dense_layers as f64;
        let layers = self.layers as f64;
        layers / (dense + (layers - dense) / self.speed())
    }

    /// The time of selecting as a share of the time of attention it saves.
    pub fn share_of_saved(&self) -> f64 {
        self.select_ms / (self.dense_ms - self.attend_ms)
    }
}

/// Measures each policy in the phase, on the current threads, in a layer that is none of its dense ones, the lists of pages
/// included. Finished ones come from the journal and go there.
///
/// # Errors
/// A policy that does not choose in the phase or attends in two phases, a shape that the cache refuses;
/// [`EvalError::Interrupted`].
pub fn measure_policies(
    policies: &[PolicySpec],
    phase: Phase,
    options: &PolicyRateOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<PolicyRates, EvalError> {
    let mut cells = Vec::new();
    for spec in policies {
        let rules = PolicyRules::from(spec.clone());
        let rows = match phase {
            Phase::Decode => 1,
            Phase::Prefill => rules.preferred_chunk_tokens().unwrap_or(options.chunk_tokens),
        };
        check(options, rows)?;
        rules.check(phase, rows).map_err(EngineError::from)?;
        if rules.has_two_phases() {
            return Err(EvalError::Option(format!(
                "{} attends in two phases, which one chunk cannot show; time a run of it",
                spec.name()
            )));
        }
        cells.push(Cell {
            name: spec.to_string(),
            tokens: options.tokens,
            task: (spec, rows),
        });
    }
    let dense_cache = filled(options, (Format::F16, Format::F16))?;
    let cache = match options.formats {
        (Format::F16, Format::F16) => None,
        formats => Some(filled(options, formats)?),
    };
    let rates = run_cells(&cells, journal, watch, &mut |(spec, rows), _| {
        let queries = queries(options, *rows);
        let dense = Layer::new(options, &dense_cache, &queries, *rows, phase).time(&PolicySpec::full())?;
        let cache = cache.as_ref().unwrap_or(&dense_cache);
        let timed = Layer::new(options, cache, &queries, *rows, phase).time(spec)?;
        Ok(PolicyRate {
            policy: spec.to_string(),
            phase: phase.to_string(),
            dense_ms: dense.attend_ms,
            select_ms: timed.select_ms,
            attend_ms: timed.attend_ms,
            density: timed.density,
            layers: options.layers,
            dense_layers: timed.dense_layers,
        })
    })?;
    let (keys, values) = options.formats;
    Ok(PolicyRates {
        threads: rayon::current_num_threads(),
        tokens: options.tokens,
        heads: options.heads,
        kv_heads: options.kv_heads,
        head_dim: options.head_dim,
        formats: [keys, values].map(|format| format.name().to_owned()),
        keys: options.keys,
        rates,
    })
}

/// Refuses chunks and contexts that cannot be, or that memory does not hold.
fn check(options: &PolicyRateOptions, rows: usize) -> Result<(), EvalError> {
    let (tokens, heads, kv_heads) = (options.tokens, options.heads, options.kv_heads);
    if rows == 0 || rows > tokens {
        return Err(EvalError::Option(format!(
            "a chunk of {rows} tokens does not lie in a context of {tokens}: --ub takes at least 1, and --tokens at least as many as a chunk"
        )));
    }
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(EvalError::Option(format!(
            "{kv_heads} KV heads do not divide {heads} query heads"
        )));
    }
    let shapes = [(Format::F16, Format::F16), options.formats].map(|formats| shape(options, formats));
    for shape in &shapes {
        shape.validate().map_err(EngineError::from)?;
    }
    // Queries with their partials, and the values that the cache is filled from.
    let row_bytes = (heads * options.head_dim * size_of::<f32>()) as u64;
    let values = row_bytes.saturating_mul(4 * (rows + FILL_TOKENS) as u64);
    let caches = shapes.map(|shape| shape.bytes_for(tokens));
    let caches = caches[0].saturating_add(if options.formats == (Format::F16, Format::F16) {
        0
    } else {
        caches[1]
    });
    let what = format!(
        "a layer of {tokens} tokens with {heads} query and {kv_heads} KV heads of {}",
        options.head_dim
    );
    check_memory(
        &what,
        caches.saturating_add(values),
        "use fewer --tokens, or a smaller --shape or --ub",
    )
}

/// Query heads and rows in a tile, as the engine cuts them.
const TILE_HEAD_ROWS: usize = 128;

/// One layer at its last chunk.
struct Layer<'a> {
    options: &'a PolicyRateOptions,
    phase: Phase,
    rows: usize,
    /// `[rows, heads, head_dim]`
    queries: &'a [f32],
    cache: &'a KvCache,
}

struct Timed {
    select_ms: f64,
    attend_ms: f64,
    density: f64,
    dense_layers: usize,
}

impl<'a> Layer<'a> {
    fn new(options: &'a PolicyRateOptions, cache: &'a KvCache, queries: &'a [f32], rows: usize, phase: Phase) -> Self {
        Self {
            options,
            phase,
            rows,
            queries,
            cache,
        }
    }

    /// Medians of several runs.
    fn time(&self, spec: &PolicySpec) -> Result<Timed, EvalError> {
        let failed = EngineError::from;
        let mut policies: Vec<Policy> = (0..self.options.kv_heads)
            .map(|_| build(spec, self.phase))
            .collect::<Result<_, _>>()
            .map_err(EngineError::from)?;
        let heads = 0..self.options.kv_heads;
        let step = (TILE_HEAD_ROWS * self.options.kv_heads / self.options.heads).max(1);
        let tiles: Vec<(usize, QueryTile<'_>)> = heads
            .clone()
            .flat_map(|head| {
                (0..self.rows)
                    .step_by(step)
                    .map(move |first| (head, self.tile(head, first, step.min(self.rows - first))))
            })
            .collect();
        let options = AttendOptions::new(self.scale()).with_arithmetic(self.phase.arithmetic());
        let mut partials: Vec<Partial> = tiles.iter().map(|_| Partial::new(0, 0, 0)).collect();
        let (mut select_ms, mut attend_ms) = (Vec::new(), Vec::new());
        let mut density = 1.0;
        let began = Instant::now();
        // The first run makes summaries of what came before.
        while select_ms.len() < 4 || (began.elapsed().as_secs_f64() < 1.0 && select_ms.len() < 200) {
            let start = Instant::now();
            let reader = self.cache.read();
            let mut from = |head: usize| policies[head].keys_from(&self.context(head, &[]));
            let pages = heads
                .clone()
                .map(|head| reader.pages_from(0, head, from(head)).collect());
            let pages: Vec<Vec<PageView<'_>>> = pages.collect();
            let contexts = heads.clone().map(|head| self.context(head, &pages[head]));
            let contexts: Vec<SelectContext<'_>> = contexts.collect();
            policies.par_iter_mut().zip(&contexts).for_each(|(policy, context)| {
                policy.prepare(&self.tile(context.kv_head, 0, self.rows), context);
            });
            let selections: Vec<Selection> = tiles
                .par_iter()
                .map(|(head, tile)| policies[*head].select(tile, &contexts[*head]))
                .collect();
            select_ms.push(start.elapsed().as_secs_f64() * 1e3);
            let start = Instant::now();
            let pages: Vec<Vec<PageView<'_>>> = heads.clone().map(|head| reader.pages(0, head).collect()).collect();
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
                .zip(&selections)
                .map(|((head, tile), selection)| AttendJob {
                    queries: *tile,
                    kv: kv(*head),
                    selection: match scan(*head, tile) {
                        Some(_) => &nothing,
                        None => selection,
                    },
                })
                .collect();
            for (partial, (_, tile)) in partials.iter_mut().zip(&tiles) {
                partial.reset(tile.rows, tile.group, tile.head_dim);
            }
            attend_batch(&jobs, &options, &mut partials).map_err(failed)?;
            let scanned = partials.par_iter_mut().zip(&tiles).zip(&selections);
            scanned
                .try_for_each(|((partial, (head, tile)), selection)| match scan(*head, tile) {
                    Some(scan) => attend_scanned(scan, selection, &kv(*head), partial),
                    None => Ok(()),
                })
                .map_err(failed)?;
            attend_ms.push(start.elapsed().as_secs_f64() * 1e3);
            let pairs = tiles.iter().zip(&selections).map(|((_, tile), selection)| {
                let full = Selection::full(self.options.tokens);
                (
                    selection.pair_count(tile.start, tile.rows),
                    full.pair_count(tile.start, tile.rows),
                )
            });
            let (read, causal) = pairs.fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
            density = read as f64 / causal as f64;
        }
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
        Ok(Timed {
            dense_layers: (0..self.options.layers).filter(reads_all).count(),
            select_ms: median(&mut select_ms[1..]),
            attend_ms: median(&mut attend_ms[1..]),
            density,
        })
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

/// Values of variance 1.
fn unit(length: usize, seed: u64) -> Vec<f32> {
    let mut values = noise(length, seed);
    values.iter_mut().for_each(|value| *value *= 3.0f32.sqrt());
    values
}

/// What stands out, where anything does: added to every query, and to one key in 64.
fn direction(options: &PolicyRateOptions) -> Vec<f32> {
    let size = match options.keys {
        KeyKind::Random => 0.0,
        // Its square, √head_dim times, is added to the logits: e⁸ in weight.
        KeyKind::Peaked => (8.0 / (options.head_dim as f32).sqrt()).sqrt(),
    };
    let mut values = noise(options.head_dim, 11);
    values.iter_mut().for_each(|value| *value = size * value.signum());
    values
}

fn queries(options: &PolicyRateOptions, rows: usize) -> Vec<f32> {
    let mut queries = unit(rows * options.heads * options.head_dim, 7);
    let direction = direction(options);
    for query in queries.chunks_exact_mut(options.head_dim) {
        query.iter_mut().zip(&direction).for_each(|(q, d)| *q += d);
    }
    queries
}

/// One layer.
fn shape(options: &PolicyRateOptions, formats: (Format, Format)) -> CacheShape {
    CacheShape {
        layers: 1,
        kv_heads: options.kv_heads,
        head_dim: options.head_dim,
        page_tokens: riffle_kv::DEFAULT_PAGE_TOKENS,
        key_format: formats.0,
        value_format: formats.1,
    }
}

/// Tokens that a cache is filled with at a time.
const FILL_TOKENS: usize = 4096;

fn filled(options: &PolicyRateOptions, formats: (Format, Format)) -> Result<KvCache, EvalError> {
    let mut cache = KvCache::new(shape(options, formats), None).map_err(EngineError::from)?;
    let width = options.kv_heads * options.head_dim;
    let direction = direction(options);
    for start in (0..options.tokens).step_by(FILL_TOKENS) {
        let tokens = FILL_TOKENS.min(options.tokens - start);
        let mut keys = unit(tokens * width, start as u64 + 1);
        for (token, keys) in keys.chunks_exact_mut(width).enumerate() {
            // Spread by multiples of the golden ratio.
            if ((start + token) as f64 * 0.618_033_988_749_895).fract() < 1.0 / 64.0 {
                for key in keys.chunks_exact_mut(options.head_dim) {
                    key.iter_mut().zip(&direction).for_each(|(k, d)| *k += d);
                }
            }
        }
        cache
            .append(0, &keys, &noise(tokens * width, start as u64 + 2))
            .map_err(EngineError::from)?;
    }
    Ok(cache)
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::Step;

    #[test]
    fn sizes_that_cannot_be_are_refused_before_anything_is_allocated() {
        let options = PolicyRateOptions {
            tokens: 256,
            layers: 1,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            formats: (Format::F16, Format::F16),
            keys: KeyKind::Random,
            chunk_tokens: 64,
        };
        for (wrong, part) in [
            (
                PolicyRateOptions {
                    chunk_tokens: 0,
                    ..options
                },
                "--ub",
            ),
            (
                PolicyRateOptions {
                    chunk_tokens: 257,
                    ..options
                },
                "--ub",
            ),
            (PolicyRateOptions { kv_heads: 3, ..options }, "do not divide"),
            (
                PolicyRateOptions {
                    tokens: 1 << 40,
                    ..options
                },
                "fewer --tokens",
            ),
        ] {
            let mut go_on = |_: &Step<'_>| ControlFlow::Continue(());
            let full = [PolicySpec::full()];
            let refused = measure_policies(&full, Phase::Prefill, &wrong, &mut Journal::none(), &mut go_on);
            let message = refused.unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn rates_say_what_is_read_and_refuse_what_one_chunk_cannot_show() {
        let options = PolicyRateOptions {
            tokens: 2048,
            layers: 6,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            formats: (Format::Q8_0, Format::F16),
            keys: KeyKind::Peaked,
            chunk_tokens: 128,
        };
        let mut rates = Vec::new();
        let mut measure = |names: &[&str], phase| {
            let specs: Vec<PolicySpec> = names.iter().map(|name| name.parse().unwrap()).collect();
            let mut go_on = |_: &Step<'_>| ControlFlow::Continue(());
            let measured = measure_policies(&specs, phase, &options, &mut Journal::none(), &mut go_on)?;
            rates.extend(measured.rates);
            Ok::<_, EvalError>(())
        };
        measure(&["full", "xattention"], Phase::Prefill).unwrap();
        measure(&["certified", "quest:topk=2"], Phase::Decode).unwrap();
        let refused = measure(&["h2o-chunk"], Phase::Prefill).unwrap_err().to_string();
        assert!(refused.contains("two phases"), "{refused}");
        assert!(measure(&["quest"], Phase::Prefill).is_err());
        let density: Vec<f64> = rates.iter().map(|rate| rate.density).collect();
        assert_eq!(density[0], 1.0);
        assert!(density[1..].iter().all(|density| *density < 0.95), "{rates:?}");
        let dense_layers: Vec<usize> = rates.iter().map(|rate| rate.dense_layers).collect();
        assert_eq!(dense_layers, [6, 0, 0, 2]);
        assert!(rates.iter().all(|rate| rate.dense_ms > 0.0 && rate.speed() > 0.0));
    }
}
