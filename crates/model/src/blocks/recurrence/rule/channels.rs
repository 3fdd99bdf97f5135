//! Chunks with a decay per element of a key (Kimi Delta Attention, arXiv:2510.26692).
//!
//! Let `G[i]` be the logarithm of each memory row's decay from the chunk's start to token i. Then a product of two
//! tokens is `Σ_d key[i,d] key[j,d] exp(G[i,d] − G[j,d])`. Rows are computed a few at a time. With the tokens before
//! these rows, the sum is a matrix product: both factors decay relative to the last token before the rows, so that
//! neither grows.

use riffle_linear::Columns;

use super::{CHUNK, Chunk, HeadPart, Rule, SOLVE_ROWS, cleared, remaining};

impl Rule {
    /// The logarithms of each memory row's decay at the part's token `index`.
    pub(super) fn channel_decay<'a>(&self, part: HeadPart<'a>, index: usize) -> &'a [f32] {
        let key_dim = self.memory.rows;
        &part.tokens.decay[((part.first + index) * self.memory.heads + part.head) * key_dim..][..key_dim]
    }

    /// As [`relate_tokens`](Self::relate_tokens). Afterwards keys and queries are decayed relative to the chunk's
    /// start.
    pub(super) fn relate_channels(&self, chunk: &mut Chunk, part: HeadPart<'_>) {
        let key_dim = self.memory.rows;
        chunk.channel_decay.clear();
        for index in 0..part.count {
            let before = chunk.channel_decay.len().checked_sub(key_dim);
            for (channel, decay) in self.channel_decay(part, index).iter().enumerate() {
                let sum = before.map_or(0.0, |before| chunk.channel_decay[before + channel]);
                chunk.channel_decay.push(sum + f64::from(*decay));
            }
        }
        cleared(&mut chunk.system, part.count);
        cleared(&mut chunk.scores, part.count);
        for first in (0..part.count).step_by(SOLVE_ROWS) {
            let rows = first..(first + SOLVE_ROWS).min(part.count);
            if first > 0 {
                relate_to_earlier(chunk, key_dim, rows.clone());
            }
            relate_to_each_other(chunk, key_dim, rows);
        }
        for (index, system) in chunk.system.iter_mut().enumerate() {
            let strength = self.strength(part, index);
            system.0.iter_mut().for_each(|value| *value *= -strength);
        }
        decay_to_ends(chunk, key_dim, part.count);
    }
}

/// Fills the products of some rows with the tokens before them.
fn relate_to_earlier(chunk: &mut Chunk, key_dim: usize, rows: std::ops::Range<usize>) {
    let sums = &chunk.channel_decay;
    let reference = &sums[(rows.start - 1) * key_dim..][..key_dim];
    let across = cleared(&mut chunk.keys_across, key_dim);
    for (token, key) in chunk.keys.chunks_exact(key_dim).take(rows.start).enumerate() {
        let then = &sums[token * key_dim..][..key_dim];
        for (((across, key), now), then) in across.iter_mut().zip(key).zip(reference).zip(then) {
            across.0[token] = key * remaining((now - then) as f32);
        }
    }
    for (heads, products) in [(&chunk.keys, &mut chunk.system), (&chunk.queries, &mut chunk.scores)] {
        chunk.decayed.clear();
        let of_rows = heads[rows.start * key_dim..rows.end * key_dim].iter();
        let of_rows = of_rows.zip(&sums[rows.start * key_dim..]).zip(reference.iter().cycle());
        let decayed = of_rows.map(|((value, now), reference)| value * remaining((now - reference) as f32));
        chunk.decayed.extend(decayed);
        Columns::multiply_add(&chunk.decayed, key_dim, 0..key_dim, across, &mut products[rows.clone()]);
    }
}

/// Fills the products of some rows with each other.
fn relate_to_each_other(chunk: &mut Chunk, key_dim: usize, rows: std::ops::Range<usize>) {
    for now in rows.clone() {
        let of = |token: usize| token * key_dim..(token + 1) * key_dim;
        for then in rows.start..=now {
            chunk.decayed.clear();
            let sums = chunk.channel_decay[of(now)].iter().zip(&chunk.channel_decay[of(then)]);
            let keys = chunk.keys[of(then)].iter().zip(sums);
            chunk
                .decayed
                .extend(keys.map(|(key, (now, then))| key * remaining((now - then) as f32)));
            chunk.scores[now].0[then] = dot(&chunk.queries[of(now)], &chunk.decayed);
            if then < now {
                chunk.system[now].0[then] = dot(&chunk.keys[of(now)], &chunk.decayed);
            }
        }
    }
}

/// Decays `keys_across` relative to the chunk's end, and keys and queries relative to its start.
fn decay_to_ends(chunk: &mut Chunk, key_dim: usize, count: usize) {
    let sums = &chunk.channel_decay;
    let end = &sums[(count - 1) * key_dim..];
    let across = cleared(&mut chunk.keys_across, key_dim);
    for (token, key) in chunk.keys.chunks_exact(key_dim).enumerate() {
        let then = &sums[token * key_dim..][..key_dim];
        for (((across, key), end), then) in across.iter_mut().zip(key).zip(end).zip(then) {
            across.0[token] = key * remaining((end - then) as f32);
        }
    }
    for ((key, query), sum) in chunk.keys.iter_mut().zip(&mut chunk.queries).zip(sums) {
        let remains = remaining(*sum as f32);
        *key *= remains;
        *query *= remains;
    }
    chunk.remains.clear();
    chunk.remains.extend(end.iter().map(|end| remaining(*end as f32)));
    chunk.decay.clear();
    chunk.decay.resize(count, 0.0);
    debug_assert!(count <= CHUNK, "chunks hold {CHUNK} tokens");
}

/// The sum of products, in lanes that vectorise and have a fixed order.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (a, rest) = a.as_chunks::<LANES>();
    let (b, rest_b) = b.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest = rest.iter().zip(rest_b).map(|(a, b)| a * b);
    lanes.into_iter().chain(rest).sum()
}
