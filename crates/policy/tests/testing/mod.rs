//! Random queries and keys, their pages, and their attention in f64.
#![allow(dead_code)]

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use riffle_attention::{PageView, Plane, PlaneMut, QueryTile, Selection, write_keys, write_values};
use riffle_policy::{Phase, Policy, PolicySpec, SelectContext, build};

/// A chunk of queries at the end of some keys, of one KV head.
pub(crate) struct Scene {
    pub(crate) head_dim: usize,
    pub(crate) group: usize,
    pub(crate) start: usize,
    pub(crate) rows: usize,
    pub(crate) tokens: usize,
    pub(crate) scale: f32,
    pub(crate) layer: usize,
    pub(crate) phase: Phase,
    /// Prompt tokens after the chunk.
    pub(crate) after: usize,
    /// `[rows, group, head_dim]`
    pub(crate) queries: Vec<f32>,
    /// `[tokens, head_dim]`
    pub(crate) keys: Vec<f32>,
    page_tokens: usize,
    /// Keys and values of each page; a token's value is its key.
    planes: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Scene {
    /// Keys of varied length, so that attention is neither flat nor a single peak; some keys have a large product with
    /// all queries.
    pub(crate) fn new(seed: u64, start: usize, rows: usize, group: usize, page_tokens: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (head_dim, tokens) = (32, start + rows);
        let mut normal = || (0..6).map(|_| random.random_range(-1.0f32..1.0)).sum::<f32>() / 1.4;
        let common: Vec<f32> = (0..head_dim).map(|_| normal()).collect();
        let mut keys = Vec::new();
        for token in 0..tokens {
            let loud = if token % 13 == 5 { 1.5 } else { 0.0 };
            keys.extend(common.iter().map(|c| normal() + loud * c));
        }
        let mut queries = Vec::new();
        for _ in 0..rows * group {
            queries.extend(common.iter().map(|c| 0.8 * c + 1.2 * normal()));
        }
        Self {
            head_dim,
            group,
            start,
            rows,
            tokens,
            scale: 0.3,
            layer: 2,
            phase: Phase::Prefill,
            after: 10_000,
            queries,
            keys,
            page_tokens,
            planes: Vec::new(),
        }
        .paged(page_tokens)
    }

    /// The same tokens in other pages.
    pub(crate) fn paged(mut self, page_tokens: usize) -> Self {
        let d = self.head_dim;
        self.page_tokens = page_tokens;
        self.planes = self
            .keys
            .chunks(page_tokens * d)
            .map(|keys| {
                let (mut key_plane, mut value_plane) = (vec![f32::NAN; page_tokens * d], vec![0.0; page_tokens * d]);
                write_keys(&mut PlaneMut::F32(&mut key_plane), d, 0, keys.len() / d, keys, d).unwrap();
                write_values(&mut PlaneMut::F32(&mut value_plane), d, 0, keys.len() / d, keys, d).unwrap();
                (key_plane, value_plane)
            })
            .collect();
        self
    }

    pub(crate) fn pages(&self) -> Vec<PageView<'_>> {
        let planes = self.planes.iter().enumerate();
        planes
            .map(|(number, (keys, values))| PageView {
                start: number * self.page_tokens,
                tokens: self.page_tokens.min(self.tokens - number * self.page_tokens),
                keys: Plane::F32(keys),
                values: Plane::F32(values),
            })
            .collect()
    }

    pub(crate) fn context<'a>(&self, pages: &'a [PageView<'a>]) -> SelectContext<'a> {
        SelectContext {
            phase: self.phase,
            layer: self.layer,
            layers: 4,
            kv_head: 1,
            chunk_start: self.start,
            tokens: self.tokens,
            total_tokens: self.tokens + self.after,
            page_tokens: self.page_tokens,
            scale: self.scale,
            soft_cap: None,
            pages,
            signs: None,
        }
    }

    /// Rows `from..to` of the chunk.
    pub(crate) fn tile(&self, from: usize, to: usize) -> QueryTile<'_> {
        let width = self.group * self.head_dim;
        QueryTile {
            data: &self.queries[from * width..to * width],
            rows: to - from,
            row_stride: width,
            group: self.group,
            head_dim: self.head_dim,
            start: self.start + from,
        }
    }

    /// Prepares for the chunk and selects tile by tile: (first row, end row, selection).
    pub(crate) fn select(&self, spec: &str, tile_rows: usize) -> Vec<(usize, usize, Selection)> {
        let mut policy = make(spec, self.phase);
        let pages = self.pages();
        let context = self.context(&pages);
        policy.prepare(&self.tile(0, self.rows), &context);
        let tiles = (0..self.rows).step_by(tile_rows);
        tiles
            .map(|from| {
                let to = (from + tile_rows).min(self.rows);
                (from, to, policy.select(&self.tile(from, to), &context))
            })
            .collect()
    }

    /// q·k × scale of row `row` and head `head` with every key.
    pub(crate) fn logits(&self, row: usize, head: usize) -> Vec<f64> {
        let query = &self.queries[(row * self.group + head) * self.head_dim..][..self.head_dim];
        let keys = self.keys.chunks(self.head_dim);
        keys.map(|key| dot(query, key) * f64::from(self.scale)).collect()
    }

    /// Causal softmax of row `row` and head `head`, `[start + row + 1]`.
    pub(crate) fn attention(&self, row: usize, head: usize) -> Vec<f64> {
        softmax(&self.logits(row, head)[..self.start + row + 1])
    }
}

pub(crate) fn make(spec: &str, phase: Phase) -> Policy {
    build(&spec.parse::<PolicySpec>().unwrap(), phase).unwrap()
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

pub(crate) fn softmax(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().fold(f64::NEG_INFINITY, |top, logit| top.max(*logit));
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Indices of the `count` best, forced ones first.
pub(crate) fn best(scores: &[f64], count: usize, forced: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| {
        forced(*b)
            .cmp(&forced(*a))
            .then(scores[*b].total_cmp(&scores[*a]))
            .then(a.cmp(b))
    });
    let all_forced = order.iter().filter(|index| forced(**index)).count();
    order.truncate(count.max(all_forced));
    order
}

/// The fewest best keys that hold `share` of the mass, forced ones first, at least `least`.
pub(crate) fn best_share(scores: &[f64], share: f64, least: usize, forced: impl Fn(usize) -> bool) -> Vec<usize> {
    let total: f64 = scores.iter().sum();
    let always = scores.iter().enumerate().filter(|(index, _)| forced(*index)).count();
    (always.max(least)..=scores.len())
        .map(|count| best(scores, count, &forced))
        .find(|chosen| chosen.iter().map(|index| scores[*index]).sum::<f64>() >= share * total)
        .unwrap_or_else(|| (0..scores.len()).collect())
}

/// (start, rows, group, page, tile rows)
pub(crate) const CHUNKS: [(usize, usize, usize, usize, usize); 6] = [
    (0, 90, 1, 64, 32),
    (0, 7, 2, 16, 7),
    (150, 40, 2, 48, 16),
    (301, 75, 4, 64, 33),
    (256, 64, 1, 256, 64),
    (333, 1, 8, 32, 1),
];

pub(crate) fn scenes() -> impl Iterator<Item = (Scene, usize)> {
    let chunks = CHUNKS.iter().enumerate();
    chunks
        .map(|(seed, (start, rows, group, page, tile))| (Scene::new(seed as u64, *start, *rows, *group, *page), *tile))
}

pub(crate) fn decode_scenes() -> impl Iterator<Item = Scene> {
    scenes().map(|(mut scene, _)| {
        scene.phase = Phase::Decode;
        scene.after = 0;
        scene
    })
}

/// Checks each (query, key) of the chunk: read exactly when causal and `read(first row, end row, row, key)`.
pub(crate) fn assert_mask(
    scene: &Scene,
    tiles: &[(usize, usize, Selection)],
    read: impl Fn(usize, usize, usize, usize) -> bool,
) {
    for (from, to, selection) in tiles {
        for row in *from..*to {
            let query = scene.start + row;
            for key in 0..scene.tokens {
                let expected = key <= query && read(*from, *to, row, key);
                assert_eq!(
                    selection.contains(query, key),
                    expected,
                    "query {query}, key {key}, tile {from}..{to}"
                );
            }
        }
    }
}
