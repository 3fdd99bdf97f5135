//! The update rules of layers with a memory matrix per head. For each token a head's memory `S`,
//! `[key_dim, value_dim]`, decays and receives a write:
//!
//! ```text
//! S ← exp(decay) S
//! S ← S + key ⊗ strength (value − Sᵀ key)    the gated delta rule
//! S ← S + key ⊗ strength value               the additive rule of Mamba2
//! read = Sᵀ query
//! ```
//!
//! Generated tokens are read one by one. Prompt tokens are read in chunks, and the writes of a chunk are computed
//! together (the WY or UT transform of Yang et al., "Parallelizing Linear Transformers with the Delta Rule", 2024).
//! Let `D[i,j]` be the decay from token j to token i, and `D[i]` the decay since the chunk's start. The writes `W`,
//! `[tokens, value_dim]`, solve the unit lower triangular system
//!
//! ```text
//! W[i] + Σ_{j<i} strength[i] D[i,j] (key[i]·key[j]) W[j] = strength[i] (value[i] − D[i] Sᵀ key[i])
//! ```
//!
//! and then `read[i] = D[i] Sᵀ query[i] + Σ_{j≤i} D[i,j] (query[i]·key[j]) W[j]` and
//! `S ← D[n] S + Σ_j D[n,j] key[j] ⊗ W[j]` are matrix products. The additive rule has `W[i] = strength[i] value[i]` and
//! no system to solve. Heads run in parallel. With a decay per element of a key (`channels`), `D` is a diagonal matrix.

mod channels;

use rayon::prelude::*;
use riffle_linear::Columns;

use crate::blocks::activation::exp;
use crate::blocks::norm::lane_sum;
use crate::state_shape::MemoryShape;
use crate::{GatedDeltaNetShape, KimiDeltaShape, LightningShape, Mamba2Shape, StateShape};

/// Tokens per chunk. Chunks end at multiples of it, independent of the batch's start.
const CHUNK: usize = Columns::COUNT;
/// Chunks with fewer tokens are read one by one.
const FEW: usize = 4;
/// Rows of the triangular system solved one by one between matrix products.
const SOLVE_ROWS: usize = 8;
/// The logarithm of the least decay factor that is not zero. Smaller factors change no f32 sum, and their products can
/// be subnormal, which processors multiply a hundred times more slowly.
const LEAST_DECAY: f32 = -60.0;
/// Number added to the squared length of queries and keys.
const EPSILON: f32 = 1e-6;

/// The sizes of the heads, their layout in a row, and the update rule of their memories.
#[derive(Debug)]
pub(crate) struct Rule {
    memory: MemoryShape,
    /// Heads of queries and keys.
    key_heads: usize,
    /// Values of a row.
    channels: usize,
    /// Places of the first query, key and value in a row.
    queries_at: usize,
    keys_at: usize,
    values_at: usize,
    heads_tiled: bool,
    /// True for the gated delta rule, whose queries and keys have unit length; false for the additive rule.
    is_delta: bool,
    /// True if each element of a key has its own decay.
    by_channel: bool,
}

/// The inputs of all heads from some consecutive tokens.
pub(crate) struct HeadTokens<'a> {
    /// Position of the first.
    pub(crate) start_position: usize,
    /// True to read the tokens one by one, for any number of tokens.
    pub(crate) one_by_one: bool,
    pub(crate) rows: usize,
    // [rows, channels]: queries and keys of every key head, values of every value head
    pub(crate) mixed: &'a [f32],
    // [rows, value_heads]: the write strength
    pub(crate) strength: &'a [f32],
    // [rows, value_heads], or [rows, value_heads, key_dim] by channel: the logarithm of the memory's decay factor
    pub(crate) decay: &'a [f32],
}

/// Some of the tokens, for one value head.
#[derive(Clone, Copy)]
struct HeadPart<'a> {
    tokens: &'a HeadTokens<'a>,
    head: usize,
    first: usize,
    count: usize,
}

/// A head's chunk, gathered.
#[derive(Default)]
struct Chunk {
    // [tokens, key_dim], of length 1 / √key_dim
    queries: Vec<f32>,
    // [tokens, key_dim], of length 1
    keys: Vec<f32>,
    // [key_dim, tokens]
    keys_across: Vec<Columns>,
    // [tokens, tokens], below the diagonal: minus the triangular system
    system: Vec<Columns>,
    // [tokens, tokens], up to the diagonal: decayed query · key
    scores: Vec<Columns>,
    // [tokens, 64]
    writes: Vec<Columns>,
    // [tokens, 64]
    reads: Vec<Columns>,
    // [tokens], the logarithm of the memory's decay since the chunk's start; zeros if keys and queries are already
    // decayed
    decay: Vec<f64>,
    // [key_dim], the decay factor of each memory row at the end of the chunk, or after a token
    remains: Vec<f32>,
    // [key_dim], a decayed key
    decayed: Vec<f32>,
    // [tokens, key_dim], as `decay`, per channel
    channel_decay: Vec<f64>,
}

impl Rule {
    /// The gated delta rule; a row is queries, keys, values.
    pub(crate) fn delta(shape: &GatedDeltaNetShape, heads_tiled: bool) -> Rule {
        Rule {
            heads_tiled,
            is_delta: true,
            ..Rule::of_rows(StateShape::GatedDeltaNet(*shape), shape.key_heads, shape.channels())
        }
    }

    /// The gated delta rule with a decay per element of a key; a row is queries, keys, values.
    pub(crate) fn delta_by_channel(shape: &KimiDeltaShape) -> Rule {
        Rule {
            is_delta: true,
            by_channel: true,
            ..Rule::of_rows(StateShape::KimiDelta(*shape), shape.heads, shape.channels())
        }
    }

    /// The additive rule of lightning attention; a row is queries, keys, values.
    pub(crate) fn lightning(shape: &LightningShape) -> Rule {
        Rule::of_rows(StateShape::Lightning(*shape), shape.heads, shape.channels())
    }

    /// The additive rule over rows of queries, keys and values.
    fn of_rows(state: StateShape, key_heads: usize, channels: usize) -> Rule {
        let memory = state.memory();
        let keys_at = key_heads * memory.rows;
        Rule {
            memory,
            key_heads,
            channels,
            queries_at: 0,
            keys_at,
            values_at: 2 * keys_at,
            heads_tiled: false,
            is_delta: false,
            by_channel: false,
        }
    }

    /// The rule of Mamba2; a row is the values of all heads, `B` (keys) and `C` (queries).
    pub(crate) fn additive(shape: &Mamba2Shape) -> Rule {
        let keys_at = shape.inner_width();
        Rule {
            memory: StateShape::Mamba2(*shape).memory(),
            key_heads: shape.groups,
            channels: shape.channels(),
            queries_at: keys_at + shape.groups * shape.state_width,
            keys_at,
            values_at: 0,
            heads_tiled: false,
            is_delta: false,
            by_channel: false,
        }
    }

    /// True if value heads of one key head are `key_heads` apart, instead of adjacent.
    pub(crate) fn heads_tiled(&self) -> bool {
        self.heads_tiled
    }

    /// Decays of a token.
    pub(crate) fn decays(&self) -> usize {
        self.memory.heads * if self.by_channel { self.memory.rows } else { 1 }
    }

    /// The matrices that the rule reads and writes.
    pub(crate) fn memory(&self) -> MemoryShape {
        self.memory
    }

    /// Reads `tokens`; `memory` is `[value_head, piece, key_dim]`, `read` `[value_head, rows, value_dim]`.
    pub(crate) fn apply(&self, tokens: &HeadTokens<'_>, memory: &mut [Columns], read: &mut [f32]) {
        let memories = memory.par_chunks_mut(self.memory.head_pieces());
        let reads = read.par_chunks_mut(tokens.rows * self.memory.columns);
        memories
            .zip(reads)
            .enumerate()
            .for_each_init(Chunk::default, |chunk, (head, (memory, read))| {
                let mut first = 0;
                while first < tokens.rows {
                    let until_boundary = CHUNK - (tokens.start_position + first) % CHUNK;
                    let count = until_boundary.min(tokens.rows - first);
                    let read = &mut read[first * self.memory.columns..][..count * self.memory.columns];
                    let part = HeadPart {
                        tokens,
                        head,
                        first,
                        count,
                    };
                    self.gather(chunk, part);
                    if tokens.one_by_one || count < FEW {
                        self.one_by_one(chunk, part, memory, read)
                    } else {
                        self.at_once(chunk, part, memory, read)
                    }
                    first += count;
                }
            });
    }

    /// Queries and keys of a part, scaled to their lengths.
    fn gather(&self, chunk: &mut Chunk, part: HeadPart<'_>) {
        let key_dim = self.memory.rows;
        let key_head = if self.heads_tiled {
            part.head % self.key_heads
        } else {
            part.head / (self.memory.heads / self.key_heads)
        };
        let (query_at, key_at) = (self.queries_at + key_head * key_dim, self.keys_at + key_head * key_dim);
        let query_length = (key_dim as f32).sqrt().recip();
        chunk.queries.clear();
        chunk.keys.clear();
        for row in self.rows(part) {
            let (query, key) = (&row[query_at..][..key_dim], &row[key_at..][..key_dim]);
            if self.is_delta {
                chunk.queries.extend(of_length(query_length, query));
                chunk.keys.extend(of_length(1.0, key));
            } else {
                chunk.queries.extend_from_slice(query);
                chunk.keys.extend_from_slice(key);
            }
        }
    }

    fn rows<'a>(&self, part: HeadPart<'a>) -> impl Iterator<Item = &'a [f32]> {
        let channels = self.channels;
        part.tokens.mixed[part.first * channels..][..part.count * channels].chunks_exact(channels)
    }

    /// The write strength of the part's token `index`.
    fn strength(&self, part: HeadPart<'_>, index: usize) -> f32 {
        part.tokens.strength[(part.first + index) * self.memory.heads + part.head]
    }

    /// The logarithm of the memory's decay factor at the part's token `index`.
    fn decay(&self, part: HeadPart<'_>, index: usize) -> f32 {
        part.tokens.decay[(part.first + index) * self.memory.heads + part.head]
    }

    /// The values of `head` in a row that belong to a piece of columns.
    fn values<'a>(&self, row: &'a [f32], head: usize, piece: usize) -> &'a [f32] {
        let from = self.values_at + head * self.memory.columns;
        &row[from..from + self.memory.columns][self.columns(piece)]
    }

    /// The columns of a head that belong to a piece.
    fn columns(&self, piece: usize) -> std::ops::Range<usize> {
        piece * Columns::COUNT..((piece + 1) * Columns::COUNT).min(self.memory.columns)
    }

    /// Computes the decay factor of each memory row at the part's token `index`. Returns the factor on the memory's
    /// value for [`Chunk::decayed`], the token's key.
    fn forget(&self, chunk: &mut Chunk, part: HeadPart<'_>, index: usize) -> f32 {
        let key_dim = self.memory.rows;
        let key = &chunk.keys[index * key_dim..][..key_dim];
        chunk.remains.clear();
        chunk.decayed.clear();
        if self.by_channel {
            chunk
                .remains
                .extend(self.channel_decay(part, index).iter().map(|decay| remaining(*decay)));
            let decayed = key.iter().zip(&chunk.remains).map(|(key, remains)| key * remains);
            chunk.decayed.extend(decayed);
            return 1.0;
        }
        let remains = remaining(self.decay(part, index));
        chunk.remains.resize(key_dim, remains);
        chunk.decayed.extend_from_slice(key);
        remains
    }

    /// The recurrence by its definition.
    fn one_by_one(&self, chunk: &mut Chunk, part: HeadPart<'_>, memory: &mut [Columns], read: &mut [f32]) {
        let key_dim = self.memory.rows;
        for (index, row) in self.rows(part).enumerate() {
            let (strength, remains) = (self.strength(part, index), self.forget(chunk, part, index));
            let key = &chunk.keys[index * key_dim..][..key_dim];
            let query = &chunk.queries[index * key_dim..][..key_dim];
            for (piece, memory) in memory.chunks_exact_mut(key_dim).enumerate() {
                let mut write = [Columns::ZERO];
                if self.is_delta {
                    Columns::multiply_add(&chunk.decayed, key_dim, 0..key_dim, memory, &mut write);
                }
                let values = self.values(row, part.head, piece);
                for (write, value) in write[0].0.iter_mut().zip(values) {
                    *write = strength * (value - remains * *write);
                }
                for ((memory, key), remains) in memory.iter_mut().zip(key).zip(&chunk.remains) {
                    for (memory, write) in memory.0.iter_mut().zip(&write[0].0) {
                        *memory = remains * *memory + key * write;
                    }
                }
                let mut result = [Columns::ZERO];
                Columns::multiply_add(query, key_dim, 0..key_dim, memory, &mut result);
                let columns = self.columns(piece);
                let read = &mut read[index * self.memory.columns..][columns.clone()];
                read.copy_from_slice(&result[0].0[..columns.len()]);
            }
        }
    }

    /// The chunk as matrix products.
    fn at_once(&self, chunk: &mut Chunk, part: HeadPart<'_>, memory: &mut [Columns], read: &mut [f32]) {
        if self.by_channel {
            self.relate_channels(chunk, part);
        } else {
            self.relate_tokens(chunk, part);
        }
        for (piece, memory) in memory.chunks_exact_mut(self.memory.rows).enumerate() {
            self.write_piece(chunk, part, piece, memory);
            self.read_piece(chunk, memory);
            for (memory, remains) in memory.iter_mut().zip(&chunk.remains) {
                memory.0.iter_mut().for_each(|value| *value *= remains);
            }
            let keys_across = Columns::values(&chunk.keys_across);
            Columns::multiply_add(keys_across, CHUNK, 0..part.count, &chunk.writes, memory);
            let columns = self.columns(piece);
            for (read, result) in read.chunks_exact_mut(self.memory.columns).zip(&chunk.reads) {
                read[columns.clone()].copy_from_slice(&result.0[..columns.len()]);
            }
        }
    }

    /// Computes the products between a chunk's tokens, and their decay to its end.
    fn relate_tokens(&self, chunk: &mut Chunk, part: HeadPart<'_>) {
        let mut decay = 0.0;
        chunk.decay.clear();
        chunk.decay.extend((0..part.count).map(|index| {
            decay += f64::from(self.decay(part, index));
            decay
        }));
        self.relate(chunk, part.count, |index| self.strength(part, index));
        // Keys decayed to the end of the chunk.
        for keys in &mut chunk.keys_across {
            for (key, at) in keys.0.iter_mut().zip(&chunk.decay) {
                *key *= remaining((decay - at) as f32);
            }
        }
        chunk.remains.clear();
        chunk.remains.resize(self.memory.rows, remaining(decay as f32));
    }

    /// Computes the chunk's writes in a piece of columns: the memory's values for the keys, then the differences.
    fn write_piece(&self, chunk: &mut Chunk, part: HeadPart<'_>, piece: usize, memory: &[Columns]) {
        let key_dim = self.memory.rows;
        let writes = cleared(&mut chunk.writes, part.count);
        if self.is_delta {
            Columns::multiply_add(&chunk.keys, key_dim, 0..key_dim, memory, writes);
        }
        for (index, (write, row)) in writes.iter_mut().zip(self.rows(part)).enumerate() {
            let (strength, remains) = (self.strength(part, index), remaining(chunk.decay[index] as f32));
            for (write, value) in write.0.iter_mut().zip(self.values(row, part.head, piece)) {
                *write = strength * (value - remains * *write);
            }
        }
        if self.is_delta {
            solve(Columns::values(&chunk.system), writes);
        }
    }

    /// Computes the chunk's reads in a piece of columns: from the memory before it, and from its own writes.
    fn read_piece(&self, chunk: &mut Chunk, memory: &[Columns]) {
        let key_dim = self.memory.rows;
        let (scores, writes) = (Columns::values(&chunk.scores), &chunk.writes);
        let reads = cleared(&mut chunk.reads, writes.len());
        Columns::multiply_add(&chunk.queries, key_dim, 0..key_dim, memory, reads);
        for (read, decay) in reads.iter_mut().zip(&chunk.decay) {
            let remains = remaining(*decay as f32);
            read.0.iter_mut().for_each(|value| *value *= remains);
        }
        for (tile, reads) in reads.chunks_mut(SOLVE_ROWS).enumerate() {
            let (from, until) = (tile * SOLVE_ROWS, tile * SOLVE_ROWS + reads.len());
            Columns::multiply_add(&scores[from * CHUNK..], CHUNK, 0..until, &writes[..until], reads);
        }
    }

    /// Fills `keys_across`, `system` and `scores` of a chunk of `count` tokens.
    fn relate(&self, chunk: &mut Chunk, count: usize, strength: impl Fn(usize) -> f32) {
        let key_dim = self.memory.rows;
        let keys_across = cleared(&mut chunk.keys_across, key_dim);
        for (index, key) in chunk.keys.chunks_exact(key_dim).enumerate() {
            for (across, key) in keys_across.iter_mut().zip(key) {
                across.0[index] = *key;
            }
        }
        let (system, scores) = (cleared(&mut chunk.system, count), cleared(&mut chunk.scores, count));
        if self.is_delta {
            Columns::multiply_add(&chunk.keys, key_dim, 0..key_dim, keys_across, system);
        }
        Columns::multiply_add(&chunk.queries, key_dim, 0..key_dim, keys_across, scores);
        for (index, (system, scores)) in system.iter_mut().zip(scores).enumerate() {
            let strength = strength(index);
            let now = chunk.decay[index];
            let pairs = system.0.iter_mut().zip(&mut scores.0).zip(&chunk.decay);
            for ((system, score), then) in pairs.take(index + 1) {
                let remains = remaining((now - then) as f32);
                *system *= -strength * remains;
                *score *= remains;
            }
            system.0[index..].fill(0.0);
            scores.0[index + 1..].fill(0.0);
        }
    }
}

/// The decay factor of a logarithm.
fn remaining(decay: f32) -> f32 {
    if decay < LEAST_DECAY { 0.0 } else { exp(decay) }
}

/// `values` scaled to a length.
fn of_length(length: f32, values: &[f32]) -> impl Iterator<Item = f32> {
    let scale = (lane_sum(values, |x| x * x) + EPSILON).sqrt().recip() * length;
    values.iter().map(move |value| value * scale)
}

/// Solves `x[i] = x[i] + Σ_{j<i} system[i, j] x[j]` in place, from the first row on; `system` is `[rows, 64]`.
fn solve(system: &[f32], x: &mut [Columns]) {
    for first in (0..x.len()).step_by(SOLVE_ROWS) {
        let (solved, rest) = x.split_at_mut(first);
        let rows = SOLVE_ROWS.min(rest.len());
        let rows = &mut rest[..rows];
        Columns::multiply_add(&system[first * CHUNK..], CHUNK, 0..first, solved, rows);
        for row in 1..rows.len() {
            let (above, row_and_below) = rows.split_at_mut(row);
            for (column, above) in above.iter().enumerate() {
                let factor = system[(first + row) * CHUNK + first + column];
                for (value, above) in row_and_below[0].0.iter_mut().zip(&above.0) {
                    *value += factor * above;
                }
            }
        }
    }
}

/// The first `count` pieces, set to zero.
fn cleared(pieces: &mut Vec<Columns>, count: usize) -> &mut [Columns] {
    pieces.clear();
    pieces.resize(count, Columns::ZERO);
    pieces
}

#[cfg(test)]
mod tests;
