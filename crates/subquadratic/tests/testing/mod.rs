//! Random tensors shared by the tests.

use riffle_subquadratic::Tensor3;

/// A small deterministic generator of values in −1..1.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn value(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// Values in −2..2.
    pub(crate) fn tensor(&mut self, seq: usize, heads: usize, dim: usize) -> Tensor3 {
        let data = (0..seq * heads * dim).map(|_| self.value() * 2.0).collect();
        Tensor3::from_vec(data, seq, heads, dim).unwrap()
    }
}
