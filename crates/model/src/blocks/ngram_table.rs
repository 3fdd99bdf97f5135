//! A table of embeddings of hashed n-grams, which adds features of the latest tokens to every residual stream
//! (Qwen4-Exp's per-layer embedding).
//!
//! Each head hashes the n-gram that ends at a token to a row of the table. The streams gate a value that is projected
//! from these rows. A dilated causal convolution adds the values of earlier tokens.

use riffle_linear::PackedMatrix;

use super::activation::sigmoid;
use super::norm::lane_sum;
use super::recurrence::{Convolution, values_of};
use super::rows::for_rows;
use super::{Norm, Projection};
use crate::recorded::RecordedRows;
use crate::recurrent::LayerState;
use crate::workspace::RowBlock;
use crate::{NgramShape, SegmentPart};

/// Smallest absolute gate logit before its root is taken.
const LEAST_GATE: f32 = 1e-6;

/// The hashes of n-grams of 2 to [`most`](Self::most) tokens, several heads for each length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramHashes {
    /// Factors on the token and on each token before it; the longest n-gram has as many tokens.
    pub factors: Vec<i64>,
    /// Rows of each head, `[lengths, heads]`.
    pub sizes: Vec<i64>,
    /// First row of each head.
    pub offsets: Vec<i64>,
    /// The end-of-text token. An n-gram stops at it, and it fills the earlier places of the n-gram.
    pub end_of_text: u32,
}

/// The weights of one layer's table.
pub struct NgramTable {
    pub(super) shape: NgramShape,
    /// Hashes from tokens to rows.
    pub hashes: NgramHashes,
    /// `[rows, width of a head]`, in the file's format and read by row.
    pub table: PackedMatrix,
    /// Projection from the rows of all heads to a key for each stream.
    pub key: Projection,
    /// Projection from the rows of all heads to the value for all streams.
    pub value: Projection,
    /// Norms of keys, by stream.
    pub key_norms: Vec<Norm>,
    /// Norms of streams, which are the queries.
    pub query_norms: Vec<Norm>,
    /// Norms of gated values before the convolution, by stream.
    pub value_norms: Vec<Norm>,
    /// Over `[streams, hidden_size]` and a channel without weights that holds the token.
    convolution: Convolution,
}

impl NgramHashes {
    /// Tokens of the longest n-gram.
    pub fn most(&self) -> usize {
        self.factors.len()
    }

    /// The rows of all heads for a token; `before(n)` is the token n places before it, if there is one.
    fn rows(&self, token: u32, before: impl Fn(usize) -> Option<u32>) -> impl Iterator<Item = usize> {
        let heads = self.sizes.len() / (self.most() - 1).max(1);
        let mut mixed = i64::from(token).wrapping_mul(self.factors[0]);
        let mut has_ended = false;
        (1..self.most()).flat_map(move |place| {
            let found = before(place).filter(|_| !has_ended).unwrap_or(self.end_of_text);
            has_ended |= found == self.end_of_text;
            mixed ^= i64::from(found).wrapping_mul(self.factors[place]);
            let own = (place - 1) * heads..place * heads;
            let rows = self.sizes[own.clone()].iter().zip(&self.offsets[own]);
            rows.map(move |(size, offset)| (mixed.rem_euclid(*size) + offset) as usize)
        })
    }
}

impl NgramTable {
    /// `taps` are the weights of the convolution, `[streams * hidden_size, kernel]`, over every
    /// [`most`](NgramHashes::most)-th token.
    pub fn new(
        shape: &NgramShape,
        (hashes, table): (NgramHashes, PackedMatrix),
        [key, value]: [Projection; 2],
        [key_norms, query_norms, value_norms]: [Vec<Norm>; 3],
        mut taps: Vec<f32>,
    ) -> NgramTable {
        let kernel = taps.len() / shape.channels;
        taps.resize(taps.len() + kernel, 0.0);
        let convolution = Convolution::new(&taps, None, shape.channels + 1);
        NgramTable {
            shape: *shape,
            convolution: convolution.with_silu().with_dilation(hashes.most()),
            hashes,
            table,
            key,
            value,
            key_norms,
            query_norms,
            value_norms,
        }
    }

    /// Adds features of the rows' tokens to their streams.
    pub(crate) fn apply(&self, rows: &mut RowBlock<'_>, parts: &[SegmentPart], states: &mut [Option<&mut LayerState>]) {
        let NgramShape { channels, inputs, .. } = self.shape;
        let (count, stored, hidden) = (rows.tokens.len(), channels + 1, self.value.weight().out_features());
        let (embedded, scratch) = rows.mixer.split_at_mut(count * inputs);
        let (values, scratch) = scratch.split_at_mut(count * hidden);
        let (gated, scratch) = scratch.split_at_mut(count * channels);
        let (raw, scratch) = scratch.split_at_mut(count * stored);
        let mixed = &mut scratch[..count * stored];
        let first = parts.first().map_or(0, |part| part.rows.start);
        for part in parts {
            if let Some(state) = &states[part.segment] {
                let tokens = &rows.tokens[values_of(part, first, 1)];
                self.embed(tokens, state, &mut embedded[values_of(part, first, inputs)]);
            }
        }
        self.key.apply(embedded, gated, parts);
        self.value.apply(embedded, values, parts);
        self.gate(rows.streams, values, gated);
        let (gated, tokens) = (&*gated, rows.tokens);
        for_rows(raw, stored, |row, raw| {
            raw[..channels].copy_from_slice(&gated[row * channels..][..channels]);
            for (norm, stream) in self.value_norms.iter().zip(raw.chunks_exact_mut(hidden)) {
                norm.apply_in_place(stream);
            }
            raw[channels] = stored_token(tokens[row]);
        });
        for part in parts {
            let Some(state) = &mut states[part.segment] else {
                continue;
            };
            let raw = &raw[values_of(part, first, stored)];
            state.recorded.take(part, inputs_of(part.rows.len(), raw));
            let mixed = &mut mixed[values_of(part, first, stored)];
            self.convolution.apply(&mut state.convolution, raw, mixed);
            state.tokens += part.rows.len();
        }
        let mixed = &*mixed;
        for_rows(rows.streams, channels, |row, streams| {
            let added = gated[row * channels..].iter().zip(&mixed[row * stored..]);
            streams
                .iter_mut()
                .zip(added)
                .for_each(|(value, (gated, mixed))| *value += gated + mixed);
        });
    }

    /// Writes the table's rows for consecutive tokens of a segment, `[tokens, inputs]`.
    fn embed(&self, tokens: &[u32], state: &LayerState, output: &mut [f32]) {
        let (stored, width) = (self.shape.channels + 1, self.table.in_features());
        for_rows(output, self.shape.inputs, |row, output| {
            let before = |places: usize| match row.checked_sub(places) {
                Some(row) => Some(tokens[row]),
                None => {
                    let place = (self.shape.window + row).checked_sub(places)?;
                    token_of(state.convolution[place * stored + self.shape.channels])
                }
            };
            let found = self.hashes.rows(tokens[row], before);
            for (head, output) in found.zip(output.chunks_exact_mut(width)) {
                self.table.row_into(head, output);
            }
        });
    }

    /// Replaces the keys in `gated`, `[rows, streams, hidden]`, by the gated values, `[rows, hidden]`.
    fn gate(&self, streams: &[f32], values: &[f32], gated: &mut [f32]) {
        let (channels, width) = (self.shape.channels, self.value.weight().out_features());
        for_rows(gated, channels, |row, gated| {
            let value = &values[row * width..][..width];
            let mut query = vec![0.0; width];
            for (stream, gated) in gated.chunks_exact_mut(width).enumerate() {
                query.copy_from_slice(&streams[row * channels + stream * width..][..width]);
                self.query_norms[stream].apply_in_place(&mut query);
                self.key_norms[stream].apply_in_place(gated);
                query.iter_mut().zip(&*gated).for_each(|(query, key)| *query *= key);
                let logit = lane_sum(&query, |product| product) / (width as f32).sqrt();
                let root = logit.abs().max(LEAST_GATE).sqrt();
                let sign = if logit == 0.0 { 0.0 } else { logit.signum() };
                let gate = sigmoid(root * sign);
                gated
                    .iter_mut()
                    .zip(value)
                    .for_each(|(gated, value)| *gated = gate * value);
            }
        });
    }

    /// Applies recorded rows to the state.
    pub(super) fn replay(&self, state: &mut LayerState, rows: RecordedRows<'_>) {
        Convolution::keep_last(&mut state.convolution, rows.raw);
        state.tokens += rows.rows;
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        let norms = self.key_norms.iter().chain(&self.query_norms).chain(&self.value_norms);
        let projections = self.key.bytes() + self.value.bytes();
        let norms: u64 = norms.map(Norm::bytes).sum();
        self.table.bytes() as u64 + projections + norms + self.convolution.bytes()
    }
}

fn inputs_of(rows: usize, raw: &[f32]) -> RecordedRows<'_> {
    RecordedRows {
        rows,
        raw,
        strength: &[],
        decay: &[],
    }
}

/// A token as a state holds it. A state begins with zeros, so zero is no token.
fn stored_token(token: u32) -> f32 {
    (token + 1) as f32
}

fn token_of(stored: f32) -> Option<u32> {
    (stored as u32).checked_sub(1)
}
