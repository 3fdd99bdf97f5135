//! Scales of 8-bit floats: each multiplies one output's sum over a panel of inputs.
//!
//! A row in a file is its elements, then the binary32 scales of its panels. In packed form all scales follow all
//! elements, as `[panel][outputs]`.

use super::{Element, GroupSums, PANEL, TILE_TOKENS};
use crate::LANES;

/// Ratio of a packed scale to the file's scale: elements are widened to 1/256 of their value.
const FACTOR: f32 = 256.0;

/// Bytes of the scales of a row of `inputs` elements.
pub(crate) const fn scale_bytes<E: Element>(inputs: usize) -> usize {
    if E::SCALED {
        size_of::<f32>() * inputs.div_ceil(PANEL)
    } else {
        0
    }
}

/// The packed scales of the outputs from `first` on; empty if elements have none.
#[derive(Clone, Copy)]
pub(super) struct Scales<'a> {
    /// `[panel][padded]`
    all: &'a [f32],
    padded: usize,
    first: usize,
}

impl<'a> Scales<'a> {
    pub(super) fn new<E: Element>(packed: &'a [u8], outputs: usize, inputs: usize, first: usize) -> Self {
        let padded = outputs.next_multiple_of(LANES);
        let bytes = padded * scale_bytes::<E>(inputs);
        Self {
            all: bytemuck::cast_slice(&packed[packed.len() - bytes..]),
            padded,
            first,
        }
    }

    /// The scales of a panel.
    pub(super) fn of(self, panel: usize) -> &'a [f32] {
        &self.all[panel * self.padded..][self.first..self.padded]
    }

    /// The first scale of a panel, as in the file.
    pub(super) fn stored(self, panel: usize) -> f32 {
        self.of(panel)[0] / FACTOR
    }

    /// Adds the sums that `add` computes to `sums`, times the panel's scales if elements have some.
    pub(super) fn add<E: Element>(self, panel: usize, sums: &mut [GroupSums], add: impl FnOnce(&mut [GroupSums])) {
        if !E::SCALED {
            return add(sums);
        }
        let mut parts = [GroupSums::default(); TILE_TOKENS];
        let parts = &mut parts[..sums.len()];
        add(parts);
        let scales = self.of(panel);
        for (sums, parts) in sums.iter_mut().zip(parts) {
            let parts = parts.as_flattened().iter().zip(scales);
            for (sum, (part, scale)) in sums.as_flattened_mut().iter_mut().zip(parts) {
                *sum += part * scale;
            }
        }
    }
}

/// Converts a scale of the file to the scale of widened elements.
pub(super) fn packed(stored: f32) -> f32 {
    FACTOR * stored
}

/// Writes the scales of the file's rows, `source`, after the packed elements.
pub(super) fn pack<E: Element>(source: &[u8], outputs: usize, inputs: usize, packed: &mut [u8]) {
    let bytes = scale_bytes::<E>(inputs);
    if bytes == 0 {
        return;
    }
    let padded = outputs.next_multiple_of(LANES);
    let start = packed.len() - padded * bytes;
    let scales: &mut [f32] = bytemuck::cast_slice_mut(&mut packed[start..]);
    for (output, row) in source.chunks_exact(source.len() / outputs).enumerate() {
        let row = row[row.len() - bytes..].as_chunks().0;
        for (panel, scale) in row.iter().enumerate() {
            scales[panel * padded + output] = self::packed(f32::from_le_bytes(*scale));
        }
    }
}
