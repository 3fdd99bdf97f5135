//! Hyper-connections with learned gates (Qwen4-Exp, after Zhu et al., "Hyper-Connections", 2024): a block reads a
//! gated mean of several residual streams, and its result is added to each stream with a factor.

use super::activation::{sigmoid, silu};
use super::rows::for_rows;
use super::{Norm, Projection};
use crate::SegmentPart;
use crate::workspace::RowBlock;

/// The weights of one block's connection to the streams.
pub struct HyperConnection {
    /// The norm of each stream, `[hidden_size]`.
    pub norms: Vec<Norm>,
    /// Projection from all normalised streams to the rank of the gates.
    pub down: Projection,
    /// Projection from this rank to a gate for each element of each stream.
    pub up: Projection,
    /// Projection from all normalised streams to a factor for each stream; `None` if nothing is added to the streams.
    pub inject: Option<Projection>,
}

impl HyperConnection {
    fn streams(&self) -> usize {
        self.norms.len()
    }

    fn width(&self) -> usize {
        self.norms.first().map_or(0, Norm::width)
    }

    /// Scratch values per row, for `streams` streams of width `hidden` and gates of rank `rank`.
    pub(crate) fn scratch_width(streams: usize, hidden: usize, rank: usize) -> usize {
        2 * streams * hidden + rank.max(streams)
    }

    /// Writes the normalised streams, `[rows, streams, hidden]`.
    fn normalise(&self, streams: &[f32], normed: &mut [f32]) {
        normed.copy_from_slice(streams);
        let width = self.width();
        for_rows(normed, self.streams() * width, |_, row| {
            for (norm, stream) in self.norms.iter().zip(row.chunks_exact_mut(width)) {
                norm.apply_in_place(stream);
            }
        });
    }

    /// `Hidden = mean over the streams of gate * normalised stream`.
    pub(crate) fn mix(&self, rows: &mut RowBlock<'_>, parts: &[SegmentPart]) {
        let (count, width) = (self.streams(), self.width());
        let (normed, scratch) = rows.mixer.split_at_mut(rows.streams.len());
        let (gates, scratch) = scratch.split_at_mut(rows.streams.len());
        let narrow = &mut scratch[..rows.hidden.len() / width * self.down.weight().out_features()];
        self.normalise(rows.streams, normed);
        self.down.apply(normed, narrow, parts);
        narrow.iter_mut().for_each(|value| *value = silu(*value / count as f32));
        self.up.apply(narrow, gates, parts);
        let (normed, gates) = (&*normed, &*gates);
        for_rows(rows.hidden, width, |row, hidden| {
            hidden.fill(0.0);
            for stream in 0..count {
                let at = (row * count + stream) * width;
                let values = normed[at..].iter().zip(&gates[at..]);
                for (sum, (value, gate)) in hidden.iter_mut().zip(values) {
                    *sum += sigmoid(*gate) * value;
                }
            }
            hidden.iter_mut().for_each(|sum| *sum /= count as f32);
        });
    }

    /// `streams += factor of the stream * Branch`. The factors follow from the streams before the sum.
    pub(crate) fn inject(&self, rows: &mut RowBlock<'_>, parts: &[SegmentPart]) {
        let Some(inject) = &self.inject else { return };
        let (count, width) = (self.streams(), self.width());
        let (normed, scratch) = rows.mixer.split_at_mut(rows.streams.len());
        let factors = &mut scratch[..rows.streams.len() / width];
        self.normalise(rows.streams, normed);
        inject.apply(normed, factors, parts);
        let (factors, branch) = (&*factors, &*rows.branch);
        for_rows(rows.streams, count * width, |row, streams| {
            let added = &branch[row * width..][..width];
            for (stream, factor) in streams.chunks_exact_mut(width).zip(&factors[row * count..]) {
                let factor = 2.0 * sigmoid(factor / count as f32);
                stream
                    .iter_mut()
                    .zip(added)
                    .for_each(|(value, added)| *value += factor * added);
            }
        });
    }

    pub(crate) fn bytes(&self) -> u64 {
        let norms: u64 = self.norms.iter().map(Norm::bytes).sum();
        norms + self.down.bytes() + self.up.bytes() + self.inject.as_ref().map_or(0, Projection::bytes)
    }
}
