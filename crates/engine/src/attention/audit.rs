//! Measures how much of the exact attention a policy keeps, by computing exact attention for sampled queries.

use riffle_attention::{Partial, QueryTile, Selection, Span};
use riffle_kv::KvCache;
use serde::{Deserialize, Serialize};

use crate::attention::{Chosen, Chunk, Heads, Tile, reading};
use crate::{EngineError, PairCount};

/// Queries per chunk that are compared with exact attention.
const SAMPLED_ROWS: usize = 64;

/// Neighbouring queries sampled together, so that they share reads of keys and values.
const RUN: usize = 8;

/// Steps of the histogram of kept mass, from none to all.
const STEPS: usize = 1000;

/// The kept share of the exact mass, over all sampled queries of all audited layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AuditReport {
    /// Sampled (query, head) pairs.
    pub samples: u64,
    /// Share of the exact softmax mass that was read, on average.
    pub mean_mass: f64,
    /// Share exceeded by 99% of the samples.
    pub first_percentile_mass: f64,
    /// The head with the lowest mean.
    pub worst_head: Option<HeadAudit>,
    /// Mean of ‖output − exact output‖ / ‖exact output‖.
    pub mean_output_error: f64,
    /// The largest.
    pub largest_output_error: f64,
    /// Share of the causal (query, key) pairs that were read.
    pub density: f64,
    /// Every audited query head.
    pub heads: Vec<HeadAudit>,
}

/// The kept share of the exact mass of one query head.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeadAudit {
    /// Layer of the head.
    pub layer: usize,
    /// KV head of the query head.
    pub kv_head: usize,
    /// Index among the layer's query heads.
    pub head: usize,
    /// Sampled queries.
    pub samples: u64,
    /// Share of the exact mass that was read, on average.
    pub mean_mass: f64,
    /// Share exceeded by 99% of the samples.
    pub first_percentile_mass: f64,
    /// Mean relative error of the output.
    pub mean_output_error: f64,
    /// Share of the causal pairs that the KV head read.
    pub density: f64,
}

/// One sampled query of one head compared with exact attention, for
/// [`SequenceObservers::audit`](crate::SequenceObservers::audit).
#[derive(Debug, Clone, Copy)]
pub struct AuditedQuery<'a> {
    /// Layer of the query, counted among layers with keys and values.
    pub layer: usize,
    /// KV head of the query head.
    pub kv_head: usize,
    /// Index among the layer's query heads.
    pub head: usize,
    /// Position of the query.
    pub position: usize,
    /// Share of the exact softmax mass that was read.
    pub kept_mass: f64,
    /// Exact softmax mass of the keys up to its own, `[position + 1]`.
    pub mass: &'a [f32],
    /// Keys that were read: ascending and disjoint, without block means.
    pub read: &'a [Span],
}

/// Receives sampled queries: layer by layer within a logical batch, for each head by position.
pub(crate) type AuditObserver = Box<dyn FnMut(&AuditedQuery<'_>) + Send + Sync>;

/// Running sums of one query head.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct HeadSums {
    samples: u64,
    mass: f64,
    error: f64,
    largest_error: f64,
    pairs: PairCount,
    /// Samples by kept mass, `[STEPS + 1]`.
    histogram: Vec<u32>,
}

/// The audit of one session.
pub(crate) struct Audit {
    /// Heads by layer of the cache.
    layers: Vec<Heads>,
    /// Share of the mass that a sample should keep.
    target: f64,
    /// `[layers, query heads]`; empty until a layer is audited.
    pub(crate) sums: Vec<Option<HeadSums>>,
    pub(super) observer: Option<AuditObserver>,
}

/// Sampled rows of one KV head: their tile, the first row in it, and the `[rows, group]` log-sum-exp of their reads.
pub(crate) struct SampledRun {
    tile: usize,
    first_row: usize,
    rows: usize,
    log_sum_exp: Vec<f32>,
}

/// The sampled queries of a run, and their exact attention.
struct Compared<'a> {
    run: &'a SampledRun,
    queries: QueryTile<'a>,
    exact: &'a Partial,
}

impl Compared<'_> {
    /// The kept share of the exact mass of row `at / group`, head `at % group`.
    fn kept_mass(&self, at: usize, group: usize) -> f64 {
        f64::from(self.run.log_sum_exp[at] - self.exact.log_sum_exp(at / group, at % group)).exp()
    }
}

impl Audit {
    pub(crate) fn new(layers: Vec<Heads>, target: f64) -> Self {
        Self {
            sums: vec![None; layers.iter().map(Heads::queries).sum()],
            layers,
            target,
            observer: None,
        }
    }

    /// Continues from saved sums; returns false for sums of other heads.
    pub(crate) fn resume(&mut self, sums: Vec<Option<HeadSums>>) -> bool {
        let sound = sums.iter().flatten().all(|sums| sums.histogram.len() == STEPS + 1);
        let sound = sound && sums.len() == self.sums.len();
        if sound {
            self.sums = sums;
        }
        sound
    }

    /// Samples the reads in `partials` so far: only keys, before any summary is added.
    pub(crate) fn sample(&self, tiles: &[Tile<'_>], partials: &[Partial]) -> Vec<SampledRun> {
        let mut runs = Vec::new();
        for (number, (tile, partial)) in tiles.iter().zip(partials).enumerate() {
            let chunk_rows: usize = tiles
                .iter()
                .filter(|other| other.kv_head == tile.kv_head)
                .map(|other| other.queries.rows)
                .sum();
            for (first, rows) in sampled_runs(chunk_rows) {
                // The part of the run within this tile.
                let from = first.max(tile.first_row);
                let to = (first + rows).min(tile.first_row + tile.queries.rows);
                if from >= to {
                    continue;
                }
                let first_row = from - tile.first_row;
                runs.push(SampledRun {
                    tile: number,
                    first_row,
                    rows: to - from,
                    log_sum_exp: (first_row..first_row + to - from)
                        .flat_map(|row| (0..partial.group()).map(move |head| partial.log_sum_exp(row, head)))
                        .collect(),
                });
            }
        }
        runs
    }

    /// Computes exact attention for a chunk's sampled queries, with pages in any tier, and adds the comparison.
    /// `output` is the chunk's, `[tokens, heads, value_width]`. Returns, by KV head, the number of samples and the
    /// number that missed the target.
    pub(crate) fn compare(
        &mut self,
        cache: &mut KvCache,
        chosen: &Chosen<'_>,
        runs: &[SampledRun],
        output: &[f32],
    ) -> Result<Vec<(u64, u64)>, EngineError> {
        let Heads { kv_heads, group, .. } = chosen.chunk.heads;
        let mut samples = vec![(0, 0); kv_heads];
        let sampled = runs.iter().map(|run| {
            let tile = &chosen.chunk.tiles[run.tile];
            (tile.kv_head, tile.rows(run.first_row, run.rows))
        });
        let sampled: Vec<(usize, QueryTile<'_>)> = sampled.collect();
        let exact = reading::attend_everything(cache, &chosen.chunk, &sampled)?;
        for ((run, exact), (kv_head, queries)) in runs.iter().zip(&exact).zip(sampled) {
            let compared = Compared { run, queries, exact };
            self.show(cache, chosen, &compared)?;
            let (seen, missed) = self.take_in(&chosen.chunk, &compared, output)?;
            samples[kv_head].0 += seen;
            samples[kv_head].1 += missed;
        }
        for (kv_head, count) in chosen.counts.iter().enumerate() {
            for head in kv_head * group..(kv_head + 1) * group {
                self.sums_of(chosen.chunk.layer, head).pairs.add(*count);
            }
        }
        Ok(samples)
    }

    /// Adds the comparison of a run; returns the number of samples and the number that missed the target.
    fn take_in(
        &mut self,
        chunk: &Chunk<'_>,
        compared: &Compared<'_>,
        output: &[f32],
    ) -> Result<(u64, u64), EngineError> {
        let Compared { run, exact, .. } = compared;
        let Heads { group, value_width, .. } = chunk.heads;
        let (tile, width) = (&chunk.tiles[run.tile], chunk.heads.result_width());
        // [rows, group, value_width]
        let mut expected = vec![0.0; run.rows * group * value_width];
        exact.finish_into(&mut expected, group * value_width, chunk.sinks_of(tile.kv_head))?;
        let mut missed = 0;
        for (at, expected) in expected.chunks_exact(value_width).enumerate() {
            let (row, head) = (at / group, tile.kv_head * group + at % group);
            let mass = compared.kept_mass(at, group);
            let first = (tile.first_row + run.first_row + row) * width + head * value_width;
            let error = relative_error(&output[first..first + value_width], expected);
            missed += u64::from(mass < self.target);
            self.sums_of(chunk.layer, head).add(mass.min(1.0), error);
        }
        Ok(((run.rows * group) as u64, missed))
    }

    /// Passes the queries of a run to the observer, if there is one.
    fn show(&mut self, cache: &mut KvCache, chosen: &Chosen<'_>, compared: &Compared<'_>) -> Result<(), EngineError> {
        let Some(observer) = &mut self.observer else {
            return Ok(());
        };
        let Compared { run, queries, exact } = compared;
        let (group, kv_head) = (chosen.chunk.heads.group, chosen.chunk.tiles[run.tile].kv_head);
        let masses = reading::mass_of_everything(cache, &chosen.chunk, kv_head, queries, exact)?;
        for (at, mass) in masses.iter().enumerate() {
            let (row, head) = (at / group, at % group);
            let position = queries.start + row;
            let named = chosen.phases().into_iter();
            let named = named.filter_map(|selections| selections.get(run.tile));
            let spans = Selection::from_spans(named.flat_map(|selection| selection.reads(position, 1)));
            observer(&AuditedQuery {
                layer: chosen.chunk.layer,
                kv_head,
                head: kv_head * group + head,
                position,
                kept_mass: compared.kept_mass(at, group).min(1.0),
                mass,
                read: spans.spans(),
            });
        }
        Ok(())
    }

    pub(crate) fn report(&self) -> AuditReport {
        let places = self.layers.iter().enumerate();
        let places = places.flat_map(|(layer, heads)| (0..heads.queries()).map(move |head| (layer, heads.group, head)));
        let audited = places.zip(&self.sums);
        let heads = audited.filter_map(|((layer, group, head), sums)| Some(sums.as_ref()?.report(layer, group, head)));
        let heads: Vec<HeadAudit> = heads.collect();
        let mut all = HeadSums::new();
        for sums in self.sums.iter().flatten() {
            all.samples += sums.samples;
            all.mass += sums.mass;
            all.error += sums.error;
            all.largest_error = all.largest_error.max(sums.largest_error);
            all.pairs.add(sums.pairs);
            let histogram = all.histogram.iter_mut().zip(&sums.histogram);
            histogram.for_each(|(sum, count)| *sum += count);
        }
        let of_all = all.report(0, 1, 0);
        AuditReport {
            samples: of_all.samples,
            mean_mass: of_all.mean_mass,
            first_percentile_mass: of_all.first_percentile_mass,
            worst_head: heads.iter().copied().min_by(|a, b| a.mean_mass.total_cmp(&b.mean_mass)),
            mean_output_error: of_all.mean_output_error,
            largest_output_error: all.largest_error,
            density: of_all.density,
            heads,
        }
    }

    fn sums_of(&mut self, layer: usize, head: usize) -> &mut HeadSums {
        let at = self.layers[..layer].iter().map(Heads::queries).sum::<usize>() + head;
        self.sums[at].get_or_insert_with(HeadSums::new)
    }
}

impl HeadSums {
    fn new() -> Self {
        Self {
            samples: 0,
            mass: 0.0,
            error: 0.0,
            largest_error: 0.0,
            pairs: PairCount::default(),
            histogram: vec![0; STEPS + 1],
        }
    }

    /// The means of a query head of a layer.
    fn report(&self, layer: usize, group: usize, head: usize) -> HeadAudit {
        let samples = self.samples.max(1) as f64;
        HeadAudit {
            layer,
            kv_head: head / group,
            head,
            samples: self.samples,
            mean_mass: self.mass / samples,
            first_percentile_mass: first_percentile(&self.histogram),
            mean_output_error: self.error / samples,
            density: self.pairs.read as f64 / self.pairs.causal.max(1) as f64,
        }
    }

    fn add(&mut self, mass: f64, error: f64) {
        self.samples += 1;
        self.mass += mass;
        self.error += error;
        self.largest_error = self.largest_error.max(error);
        self.histogram[(mass * STEPS as f64) as usize] += 1;
    }
}

/// (first row, rows) of the sampled runs of a chunk of `rows`, evenly spread, including the last rows.
fn sampled_runs(rows: usize) -> Vec<(usize, usize)> {
    if rows <= SAMPLED_ROWS {
        return vec![(0, rows)];
    }
    let runs = SAMPLED_ROWS / RUN;
    (1..=runs).map(|number| (rows * number / runs - RUN, RUN)).collect()
}

/// The mass that 99% of the samples exceed, rounded down to a step.
fn first_percentile(histogram: &[u32]) -> f64 {
    let total: u64 = histogram.iter().map(|count| u64::from(*count)).sum();
    let mut below = 0;
    for (step, count) in histogram.iter().enumerate() {
        below += u64::from(*count);
        if below * 100 > total {
            return step as f64 / STEPS as f64;
        }
    }
    1.0
}

fn relative_error(ours: &[f32], exact: &[f32]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let difference = square(&mut ours.iter().zip(exact).map(|(a, b)| f64::from(a - b)));
    let size = square(&mut exact.iter().map(|value| f64::from(*value)));
    if size > 0.0 { (difference / size).sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_runs_lie_in_the_chunk_apart_from_each_other_and_hold_its_end() {
        for rows in [1, 7, 64, 65, 100, 512, 1024] {
            let runs = sampled_runs(rows);
            assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            assert_eq!(runs.last().map(|(first, count)| first + count), Some(rows));
            assert_eq!(runs.iter().map(|(_, count)| count).sum::<usize>(), rows.min(64));
        }
    }

    #[test]
    fn the_first_percentile_is_what_all_but_one_in_a_hundred_exceed() {
        let mut sums = HeadSums::new();
        (0..200).for_each(|n| sums.add(f64::from(n) / 200.0, 0.0));
        assert_eq!(first_percentile(&sums.histogram), 0.01);
        assert_eq!(first_percentile(&HeadSums::new().histogram), 1.0);
    }
}
