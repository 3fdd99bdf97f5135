//! Mixers of tokens with a recurrent state.

use super::{GatedDeltaNet, KimiDeltaAttention, LightningAttention, Mamba2, NgramTable, ShortConvolution};
use crate::recurrent::LayerState;
use crate::{SegmentPart, StateShape};

/// A mixer of tokens with a state other than keys and values: one case for each [`StateShape`].
pub enum Mixer {
    /// Attention with a memory updated by the delta rule.
    GatedDeltaNet(Box<GatedDeltaNet>),
    /// A gated convolution over a few tokens.
    ShortConvolution(Box<ShortConvolution>),
    /// A selective state space model.
    Mamba2(Box<Mamba2>),
    /// Attention with a memory updated by the delta rule and a decay per element of a key.
    KimiDelta(Box<KimiDeltaAttention>),
    /// Attention with a memory that decays per head and adds each value under its key.
    Lightning(Box<LightningAttention>),
    /// Features of the latest tokens, added to all residual streams.
    Ngrams(Box<NgramTable>),
}

impl Mixer {
    /// Kind and sizes of the mixer's state.
    pub fn state(&self) -> StateShape {
        match self {
            Mixer::GatedDeltaNet(mixer) => StateShape::GatedDeltaNet(mixer.shape),
            Mixer::ShortConvolution(mixer) => StateShape::ShortConvolution(mixer.shape),
            Mixer::Mamba2(mixer) => StateShape::Mamba2(mixer.shape),
            Mixer::KimiDelta(mixer) => StateShape::KimiDelta(mixer.shape),
            Mixer::Lightning(mixer) => StateShape::Lightning(mixer.shape),
            Mixer::Ngrams(mixer) => StateShape::Ngrams(mixer.shape),
        }
    }

    /// Mixes rows; `input` and `output` are `[rows, hidden]`. `parts` assigns the rows to segments, and `states` has
    /// the state of each segment. `scratch` has at least [`StateShape::scratch_width`] values per row.
    pub(crate) fn apply(
        &self,
        parts: &[SegmentPart],
        states: &mut [Option<&mut LayerState>],
        input: &[f32],
        scratch: &mut [f32],
        output: &mut [f32],
    ) {
        match self {
            Mixer::GatedDeltaNet(mixer) => mixer.apply(parts, states, input, scratch, output),
            Mixer::ShortConvolution(mixer) => mixer.apply(parts, states, input, scratch, output),
            Mixer::Mamba2(mixer) => mixer.apply(parts, states, input, scratch, output),
            Mixer::KimiDelta(mixer) => mixer.apply(parts, states, input, scratch, output),
            Mixer::Lightning(mixer) => mixer.apply(parts, states, input, scratch, output),
            // The step calls this mixer directly, because it also needs tokens and streams.
            Mixer::Ngrams(_) => {}
        }
    }

    /// Applies the first `rows` recorded rows to the state from the start of the recording. Drops the other rows.
    pub(crate) fn replay(&self, state: &mut LayerState, rows: usize) {
        state.recorded.truncate(rows);
        if rows == 0 {
            return;
        }
        let recorded = std::mem::take(&mut state.recorded);
        let inputs = recorded.first(rows);
        match self {
            Mixer::GatedDeltaNet(mixer) => mixer.replay(state, inputs),
            Mixer::ShortConvolution(mixer) => mixer.replay(state, inputs),
            Mixer::Mamba2(mixer) => mixer.replay(state, inputs),
            Mixer::KimiDelta(mixer) => mixer.replay(state, inputs),
            Mixer::Lightning(mixer) => mixer.replay(state, inputs),
            Mixer::Ngrams(mixer) => mixer.replay(state, inputs),
        }
        state.recorded = recorded;
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Mixer::GatedDeltaNet(mixer) => mixer.bytes(),
            Mixer::ShortConvolution(mixer) => mixer.bytes(),
            Mixer::Mamba2(mixer) => mixer.bytes(),
            Mixer::KimiDelta(mixer) => mixer.bytes(),
            Mixer::Lightning(mixer) => mixer.bytes(),
            Mixer::Ngrams(mixer) => mixer.bytes(),
        }
    }
}

#[cfg(test)]
mod tests;
