//! Several parallel residual streams (AltUp, Baykal et al., "Alternating Updates for Efficient Transformers", 2023).
//! A layer computes one of them; a few coefficients per token update the others from its result.

use std::sync::Arc;

use super::rows::for_rows;
use super::{HyperConnection, Norm, Projection};
use crate::SegmentPart;
use crate::workspace::RowBlock;

/// Smallest mean square of a stream that is rescaled to another's magnitude.
const LEAST_MEAN_SQUARE: f32 = 1e-5;

/// Predicts a layer's streams, and corrects the predictions by its computed result.
pub struct AltUp {
    /// Index of the stream that the layer computes.
    pub active: usize,
    /// Norm of the rows from which coefficients are computed.
    pub router_norm: Norm,
    /// Projection from normalised rows to one value per stream; coefficients use the value's hyperbolic tangent.
    pub router: Projection,
    /// Matrix from these values to the coefficients of a prediction, `[streams, streams, streams]`: to a stream, from a
    /// stream, value.
    pub prediction: Vec<f32>,
    /// Matrix from these values to the coefficients of a correction, `[streams, streams]`.
    pub correction: Vec<f32>,
    /// Factors on the corrected rows for the layer's input gate, `[hidden_size]`.
    pub output_scale: Option<Vec<f32>>,
}

/// Conversion of embeddings to streams, and of streams to the final hidden state.
pub struct Streams {
    /// Projections from an embedding to each stream except the first.
    pub begin: Vec<Projection>,
    /// From each stream except the first to a term of the hidden state, which is their mean.
    pub end: Vec<Projection>,
    /// The predictions of the first layer.
    pub first: Arc<AltUp>,
}

/// Work on the streams of rows.
pub enum StreamStep {
    /// `streams = the first layer's predictions` from an embedding in `Hidden`, which becomes the active stream.
    Begin(Arc<Streams>),
    /// `stream = Hidden` for each stream.
    Repeat,
    /// `Hidden = gated mean of the normalised streams`.
    Mix(Arc<HyperConnection>),
    /// `streams += factor of the stream * Branch`.
    Inject(Arc<HyperConnection>),
    /// `streams = predictions corrected by Hidden`, `Hidden = the active stream, scaled`.
    Correct(Arc<AltUp>),
    /// `streams += Normed`, except for the first.
    Spread,
    /// `streams = predictions of the next layer`, `Hidden = its active stream`.
    Predict(Arc<AltUp>),
    /// `Hidden = mean of the streams`, each projected back.
    Join(Arc<Streams>),
}

/// Rows of streams and scratch for them.
struct StreamRows<'a> {
    /// `[rows, hidden]`.
    hidden: &'a mut [f32],
    /// `[rows, streams, hidden]`.
    streams: &'a mut [f32],
    /// `[rows, hidden]`.
    normed: &'a mut [f32],
    /// `[rows, hidden]`.
    branch: &'a mut [f32],
}

impl<'a> StreamRows<'a> {
    fn of(block: &'a mut RowBlock<'_>) -> StreamRows<'a> {
        StreamRows {
            hidden: block.hidden,
            streams: block.streams,
            normed: block.normed,
            branch: block.branch,
        }
    }
}

impl AltUp {
    fn streams(&self) -> usize {
        self.router.weight().out_features()
    }

    /// The values for coefficients, `[rows, streams]`, of rows in `normed`.
    fn values(&self, normed: &mut [f32], parts: &[SegmentPart]) -> Vec<f32> {
        let width = self.router_norm.width();
        let mut values = vec![0.0; normed.len() / width * self.streams()];
        for_rows(normed, width, |_, row| self.router_norm.apply_in_place(row));
        self.router.apply(normed, &mut values, parts);
        values.iter_mut().for_each(|value| *value = value.tanh());
        values
    }

    /// Predicts the streams; `hidden` becomes the active stream.
    fn predict(&self, rows: &mut StreamRows<'_>, parts: &[SegmentPart]) {
        let (width, count) = (self.router_norm.width(), self.streams());
        copy_stream(rows.streams, (self.active, count), rows.normed, width);
        let values = self.values(rows.normed, parts);
        for_rows(rows.streams, count * width, |row, streams| {
            let values = &values[row * count..][..count];
            let before = streams.to_vec();
            for (to, stream) in streams.chunks_exact_mut(width).enumerate() {
                for (from, before) in before.chunks_exact(width).enumerate() {
                    let coefficient = weighted(&self.prediction[(to * count + from) * count..], values);
                    for (value, before) in stream.iter_mut().zip(before) {
                        *value += coefficient * before;
                    }
                }
            }
        });
        copy_stream(rows.streams, (self.active, count), rows.hidden, width);
    }

    /// Corrects predictions by the result in `hidden`, which becomes the active stream.
    fn correct(&self, rows: &mut StreamRows<'_>, parts: &[SegmentPart]) {
        let (width, count) = (self.router_norm.width(), self.streams());
        rows.normed.copy_from_slice(rows.hidden);
        let values = self.values(rows.normed, parts);
        let hidden = &*rows.hidden;
        for_rows(rows.streams, count * width, |row, streams| {
            let values = &values[row * count..][..count];
            let predicted = &streams[self.active * width..][..width];
            let result = hidden[row * width..][..width].iter();
            let missing: Vec<f32> = result.zip(predicted).map(|(result, found)| result - found).collect();
            for (to, stream) in streams.chunks_exact_mut(width).enumerate() {
                let coefficient = 1.0 + weighted(&self.correction[to * count..], values);
                for (value, missing) in stream.iter_mut().zip(&missing) {
                    *value += coefficient * missing;
                }
            }
        });
        copy_stream(rows.streams, (self.active, count), rows.hidden, width);
        if let Some(scale) = &self.output_scale {
            for_rows(rows.hidden, width, |_, row| {
                row.iter_mut().zip(scale).for_each(|(value, scale)| *value *= scale);
            });
        }
    }

    fn bytes(&self) -> u64 {
        let values = self.prediction.len() + self.correction.len() + self.output_scale.as_ref().map_or(0, Vec::len);
        self.router_norm.bytes() + self.router.bytes() + 4 * values as u64
    }
}

impl Streams {
    /// Computes the streams of embeddings in `hidden`, and the predictions of the first layer.
    fn begin(&self, rows: &mut StreamRows<'_>, parts: &[SegmentPart]) {
        let (width, count) = (self.first.router_norm.width(), self.first.streams());
        for stream in 0..count {
            let values = match stream.checked_sub(1) {
                None => &*rows.hidden,
                Some(number) => {
                    self.begin[number].apply(rows.hidden, rows.branch, parts);
                    bring_to_magnitude(rows.branch, rows.hidden, width);
                    &*rows.branch
                }
            };
            for_rows(rows.streams, count * width, |row, streams| {
                streams[stream * width..][..width].copy_from_slice(&values[row * width..][..width]);
            });
        }
        self.first.predict(rows, parts);
    }

    fn join(&self, rows: &mut StreamRows<'_>, parts: &[SegmentPart]) {
        let (width, count) = (self.first.router_norm.width(), self.first.streams());
        copy_stream(rows.streams, (0, count), rows.hidden, width);
        let first = rows.hidden.to_vec();
        for (number, end) in self.end.iter().enumerate() {
            copy_stream(rows.streams, (number + 1, count), rows.normed, width);
            end.apply(rows.normed, rows.branch, parts);
            bring_to_magnitude(rows.branch, &first, width);
            rows.hidden
                .iter_mut()
                .zip(&*rows.branch)
                .for_each(|(sum, value)| *sum += value);
        }
        rows.hidden.iter_mut().for_each(|sum| *sum /= count as f32);
    }

    /// Bytes in memory, without the predictions of the first layer, which the layer counts.
    fn bytes(&self) -> u64 {
        self.begin.iter().chain(&self.end).map(Projection::bytes).sum()
    }
}

impl StreamStep {
    pub(crate) fn apply(&self, block: &mut RowBlock<'_>, parts: &[SegmentPart]) {
        match self {
            StreamStep::Begin(streams) => streams.begin(&mut StreamRows::of(block), parts),
            StreamStep::Repeat => {
                let (width, hidden) = (block.hidden.len() / parts_rows(parts).max(1), &*block.hidden);
                let count = block.streams.len() / block.hidden.len().max(1);
                for_rows(block.streams, count * width, |row, streams| {
                    let streams = streams.chunks_exact_mut(width);
                    streams.for_each(|stream| stream.copy_from_slice(&hidden[row * width..][..width]));
                });
            }
            StreamStep::Mix(connection) => connection.mix(block, parts),
            StreamStep::Inject(connection) => connection.inject(block, parts),
            StreamStep::Correct(streams) => streams.correct(&mut StreamRows::of(block), parts),
            StreamStep::Predict(streams) => streams.predict(&mut StreamRows::of(block), parts),
            StreamStep::Join(streams) => streams.join(&mut StreamRows::of(block), parts),
            StreamStep::Spread => {
                let (width, normed) = (block.normed.len() / parts_rows(parts).max(1), &*block.normed);
                let count = block.streams.len() / block.normed.len().max(1);
                for_rows(block.streams, count * width, |row, streams| {
                    for stream in streams.chunks_exact_mut(width).skip(1) {
                        let added = &normed[row * width..][..width];
                        stream.iter_mut().zip(added).for_each(|(value, added)| *value += added);
                    }
                });
            }
        }
    }

    /// Bytes in memory. A layer's corrections share its predictions' weights, and a block's sums its inputs' weights.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            StreamStep::Begin(streams) => streams.bytes(),
            StreamStep::Mix(connection) => connection.bytes(),
            StreamStep::Correct(streams) => streams.bytes(),
            StreamStep::Repeat
            | StreamStep::Inject(_)
            | StreamStep::Spread
            | StreamStep::Predict(_)
            | StreamStep::Join(_) => 0,
        }
    }
}

fn parts_rows(parts: &[SegmentPart]) -> usize {
    parts.iter().map(|part| part.rows.len()).sum()
}

/// Copies one of `count` streams of each row to `to`, `[rows, width]`.
fn copy_stream(streams: &[f32], (stream, count): (usize, usize), to: &mut [f32], width: usize) {
    for_rows(to, width, |row, to| {
        to.copy_from_slice(&streams[(row * count + stream) * width..][..width]);
    });
}

/// Scales each row to the root mean square of the same row of `of`.
fn bring_to_magnitude(rows: &mut [f32], of: &[f32], width: usize) {
    let mean_square = |row: &[f32]| row.iter().map(|value| value * value).sum::<f32>() / width as f32;
    for_rows(rows, width, |number, row| {
        let target = mean_square(&of[number * width..][..width]).sqrt();
        let scale = target / mean_square(row).max(LEAST_MEAN_SQUARE).sqrt();
        row.iter_mut().for_each(|value| *value *= scale);
    });
}

fn weighted(weights: &[f32], values: &[f32]) -> f32 {
    weights.iter().zip(values).map(|(weight, value)| weight * value).sum()
}

/// An augmented residual (Menghani et al., "LAuReL", 2024): `Branch = Normed + norm(right(left(Normed)))`.
pub struct Laurel {
    /// Projection to a narrow width.
    pub left: Projection,
    /// Projection back to the hidden size.
    pub right: Projection,
    /// The norm after both projections.
    pub norm: Norm,
}

impl Laurel {
    pub(crate) fn apply(&self, rows: &mut RowBlock<'_>, parts: &[SegmentPart]) {
        let (count, narrow) = (parts_rows(parts), self.left.weight().out_features());
        let inner = &mut rows.inner[..count * narrow];
        self.left.apply(rows.normed, inner, parts);
        self.right.apply(inner, rows.branch, parts);
        let normed = &*rows.normed;
        let width = self.norm.width();
        for_rows(rows.branch, width, |row, branch| {
            self.norm.apply_in_place(branch);
            let kept = &normed[row * width..][..width];
            branch.iter_mut().zip(kept).for_each(|(value, kept)| *value += kept);
        });
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.left.bytes() + self.right.bytes() + self.norm.bytes()
    }
}
