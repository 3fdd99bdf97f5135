//! Mean and covariance of queries before rotation to their positions.

use std::sync::Arc;

use rayon::prelude::*;
use riffle_attention::{Partial, rotate_heads};
use riffle_kv::KvCache;

use crate::attention::{Chosen, Chunk, Heads, QueryObserver, rotated_widths};
use crate::{Engine, EngineError, Sequence};

/// Sums over the queries of a scratch sequence that started empty.
pub(crate) struct Moments {
    engine: Arc<Engine>,
    /// A sequence length that selects the rotation ([`riffle_model::SegmentTokens::length`]).
    rotary_length: usize,
    /// Number of first tokens to leave out, whose queries are outliers.
    sink_tokens: usize,
    layers: Vec<MeasuredLayer>,
}

/// A measured layer.
struct MeasuredLayer {
    /// Index of the layer in the model.
    layer: usize,
    /// Index of the layer in the cache.
    cache_layer: usize,
    heads: Heads,
    /// Sums of each query head.
    sums: Vec<HeadSums>,
}

/// Sums over the queries of one head.
#[derive(Clone)]
struct HeadSums {
    count: usize,
    /// `[head_dim]`
    sum: Vec<f64>,
    /// `[head_dim, head_dim]`, the lower triangle.
    products: Vec<f64>,
}

/// Moments of the queries of one head, over the positions where they are expected.
pub(super) struct QueryDistribution {
    /// `[head_dim]`
    pub(super) mean: Vec<f32>,
    /// `[head_dim, head_dim]`
    pub(super) covariance: Vec<f32>,
}

impl QueryObserver for Moments {
    fn observe(&mut self, _: &mut KvCache, chosen: &Chosen<'_>, _: Option<&[Partial]>) -> Result<(), EngineError> {
        let chunk = &chosen.chunk;
        let mut layers = self.layers.iter();
        let Some(number) = layers.position(|measured| measured.cache_layer == chunk.layer) else {
            return Ok(());
        };
        let queries = self.unturned(self.layers[number].layer, chunk);
        let MeasuredLayer { heads, sums, .. } = &mut self.layers[number];
        let key_width = heads.key_width;
        sums.par_iter_mut().enumerate().for_each(|(head, sums)| {
            for row in queries.chunks_exact(heads.query_width()) {
                sums.add(&row[head * key_width..(head + 1) * key_width]);
            }
        });
        Ok(())
    }
}

impl Moments {
    /// Moments of the queries of a sequence, without its first `sink_tokens` tokens.
    pub(super) fn new(sequence: &Sequence, sink_tokens: usize) -> Self {
        let engine = sequence.engine();
        let layers = engine.whole_layers().into_iter().map(|(layer, cache_layer)| {
            let heads = Heads::of_layer(engine.model().config(), layer);
            MeasuredLayer {
                layer,
                cache_layer,
                heads,
                sums: vec![HeadSums::empty(heads.key_width); heads.queries()],
            }
        });
        Self {
            layers: layers.collect(),
            engine: Arc::clone(engine),
            rotary_length: sequence.turn().length(),
            sink_tokens,
        }
    }

    /// Queries of a chunk before rotation, `[tokens, heads, key_width]`, without the sinks' queries.
    fn unturned(&self, layer: usize, chunk: &Chunk<'_>) -> Vec<f32> {
        let (width, key_width) = (chunk.heads.query_width(), chunk.heads.key_width);
        let kv_width = chunk.heads.kv_heads * key_width;
        let rotated = rotated_widths(&chunk.heads.cached())[0];
        let is_rotated = self.engine.resolved.rotation.keys;
        let (model, length) = (self.engine.model(), self.rotary_length);
        let rows = chunk.query_rows();
        let rows: Vec<(usize, &[f32])> = rows.filter(|(position, _)| *position >= self.sink_tokens).collect();
        let mut queries = vec![0.0; rows.len() * width];
        let turned = queries.par_chunks_exact_mut(width).zip(rows);
        turned.for_each(|(query, (position, row))| {
            query.copy_from_slice(row);
            if is_rotated {
                rotate_heads(query, rotated);
            }
            for heads in query.chunks_exact_mut(kv_width) {
                model.move_keys(layer, heads, position, 0, length);
            }
        });
        queries
    }

    /// Mean and covariance of queries at `future_tokens` positions from `first` on, by measured layer and query head.
    pub(super) fn distributions(&self, first: usize, future_tokens: usize) -> Vec<Vec<QueryDistribution>> {
        let of_layer = |measured: &MeasuredLayer| {
            let turn = self.mean_turn(measured, first, future_tokens);
            let heads = measured.sums.par_iter().map(|sums| sums.turned(&turn));
            heads.collect()
        };
        self.layers.iter().map(of_layer).collect()
    }

    /// The mean over `count` positions from `first` on of the rotation matrix of a head, `[head_dim, head_dim]`.
    fn mean_turn(&self, measured: &MeasuredLayer, first: usize, count: usize) -> Vec<f64> {
        let (head_dim, kv_heads) = (measured.heads.key_width, measured.heads.kv_heads);
        let mut turn = vec![0.0; head_dim * head_dim];
        // Unit vectors, as many at a time as a token has KV heads.
        for columns in (0..head_dim).collect::<Vec<_>>().chunks(kv_heads) {
            for position in first..first + count {
                let mut units = vec![0.0; kv_heads * head_dim];
                for (place, column) in columns.iter().enumerate() {
                    units[place * head_dim + column] = 1.0;
                }
                self.engine
                    .model()
                    .move_keys(measured.layer, &mut units, 0, position, self.rotary_length);
                for (column, unit) in columns.iter().zip(units.chunks_exact(head_dim)) {
                    for (row, value) in unit.iter().enumerate() {
                        turn[row * head_dim + column] += f64::from(*value) / count as f64;
                    }
                }
            }
        }
        turn
    }
}

impl HeadSums {
    fn empty(head_dim: usize) -> Self {
        Self {
            count: 0,
            sum: vec![0.0; head_dim],
            products: vec![0.0; head_dim * head_dim],
        }
    }

    fn add(&mut self, query: &[f32]) {
        self.count += 1;
        for (sum, value) in self.sum.iter_mut().zip(query) {
            *sum += f64::from(*value);
        }
        let rows = self.products.chunks_exact_mut(query.len());
        for (row, (products, left)) in rows.zip(query).enumerate() {
            for (product, right) in products[..=row].iter_mut().zip(query) {
                *product += f64::from(*left) * f64::from(*right);
            }
        }
    }

    /// Mean and covariance after multiplication of every query with `turn`.
    fn turned(&self, turn: &[f64]) -> QueryDistribution {
        let (head_dim, count) = (self.sum.len(), self.count.max(1) as f64);
        let mean: Vec<f64> = self.sum.iter().map(|sum| sum / count).collect();
        let covariance = |row: usize, column: usize| {
            let product = self.products[row.max(column) * head_dim + row.min(column)];
            product / count - mean[row] * mean[column]
        };
        let covariance: Vec<f64> = (0..head_dim * head_dim)
            .map(|at| covariance(at / head_dim, at % head_dim))
            .collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let rows = || turn.chunks_exact(head_dim);
        // The covariance is symmetric, so its rows are its columns.
        let half: Vec<f64> = rows()
            .flat_map(|turn| covariance.chunks_exact(head_dim).map(move |column| dot(turn, column)))
            .collect();
        let turned = half
            .chunks_exact(head_dim)
            .flat_map(|half| rows().map(move |turn| dot(half, turn) as f32));
        QueryDistribution {
            mean: rows().map(|turn| dot(turn, &mean) as f32).collect(),
            covariance: turned.collect(),
        }
    }
}
