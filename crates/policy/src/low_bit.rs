//! Keys in four bits, for estimates that read an eighth of what f32 keys take.

use riffle_attention::{LANES, PageView};

use crate::kernel::Lanes;
use crate::keys::read_tokens;

/// Channels that share a scale.
const BLOCK: usize = 16;

/// The whole stripes of 16 keys of a sequence: −7..=7 times a scale per key and 16 channels.
#[derive(Default)]
pub(crate) struct LowBitKeys {
    stripes: usize,
    /// `[stripes, head_dim, 8]`: lanes 0..8 in the low, 8..16 in the high halves.
    codes: Vec<u8>,
    /// `[stripes, head_dim / 16, 16]`
    scales: Vec<f32>,
}

impl LowBitKeys {
    /// Takes in the whole stripes below `tokens` that are not known yet.
    pub(crate) fn extend(&mut self, pages: &[PageView<'_>], head_dim: usize, tokens: usize) {
        let mut rows = vec![0.0; LANES * head_dim];
        while (self.stripes + 1) * LANES <= tokens {
            read_tokens(pages, head_dim, self.stripes * LANES, &mut rows);
            for first in (0..head_dim).step_by(BLOCK) {
                let scales: Lanes = std::array::from_fn(|lane| {
                    let channels = &rows[lane * head_dim + first..][..BLOCK];
                    channels.iter().fold(0.0f32, |top, value| top.max(value.abs())) / 7.0
                });
                let code = |lane: usize, channel: usize| {
                    let scale = scales[lane];
                    let value = if scale > 0.0 {
                        rows[lane * head_dim + channel] / scale
                    } else {
                        0.0
                    };
                    (value.round() as i8 + 8) as u8
                };
                for channel in first..first + BLOCK {
                    let pairs = (0..LANES / 2).map(|lane| code(lane, channel) | (code(lane + LANES / 2, channel) << 4));
                    self.codes.extend(pairs);
                }
                self.scales.extend(scales);
            }
            self.stripes += 1;
        }
    }

    /// Writes a stripe's keys, `[head_dim, LANES]`, and says whether it is known.
    pub(crate) fn expand(&self, stripe: usize, keys: &mut [Lanes]) -> bool {
        if stripe >= self.stripes {
            return false;
        }
        let head_dim = keys.len();
        let codes = &self.codes[stripe * head_dim * LANES / 2..];
        let scales = &self.scales[stripe * head_dim / BLOCK * LANES..];
        for (channel, (key, codes)) in keys.iter_mut().zip(codes.chunks_exact(LANES / 2)).enumerate() {
            let scales = &scales[channel / BLOCK * LANES..][..LANES];
            for (lane, byte) in codes.iter().enumerate() {
                key[lane] = (f32::from(byte & 15) - 8.0) * scales[lane];
                key[lane + LANES / 2] = (f32::from(byte >> 4) - 8.0) * scales[lane + LANES / 2];
            }
        }
        true
    }

    /// Forgets keys at and after `tokens`.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        let stripes = tokens / LANES;
        if stripes < self.stripes {
            self.codes.truncate(self.codes.len() / self.stripes * stripes);
            self.scales.truncate(self.scales.len() / self.stripes * stripes);
            self.stripes = stripes;
        }
    }
}
