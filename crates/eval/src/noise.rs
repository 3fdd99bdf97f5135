//! Random values for measurements.

use rayon::prelude::*;

/// Values from −1 to 1.
pub fn noise(length: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0f32; length];
    values.par_chunks_mut(4096).enumerate().for_each(|(chunk, values)| {
        let mut state = (seed << 32 | chunk as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for value in values {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *value = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        }
    });
    values
}
