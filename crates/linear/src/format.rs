use core::fmt;

use crate::quant::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Quant};

/// How the weights of a matrix are stored, in the file as in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the names GGUF gives them")]
#[non_exhaustive]
pub enum WeightFormat {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// Blocks of 32: 4 bits and a scale.
    Q4_0,
    /// Blocks of 32: 4 bits, a scale and a minimum.
    Q4_1,
    /// Blocks of 32: 5 bits and a scale.
    Q5_0,
    /// Blocks of 32: 5 bits, a scale and a minimum.
    Q5_1,
    /// Blocks of 32: 8 bits and a scale.
    Q8_0,
    /// Blocks of 256: 2 bits, 4-bit scales and minimums of each 16.
    Q2K,
    /// Blocks of 256: 3 bits, 6-bit scales of each 16.
    Q3K,
    /// Blocks of 256: 4 bits, 6-bit scales and minimums of each 32.
    Q4K,
    /// Blocks of 256: 5 bits, 6-bit scales and minimums of each 32.
    Q5K,
    /// Blocks of 256: 6 bits, 8-bit scales of each 16.
    Q6K,
}

impl WeightFormat {
    /// Every format.
    pub const ALL: &[WeightFormat] = &[
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::Bf16,
        WeightFormat::Q4_0,
        WeightFormat::Q4_1,
        WeightFormat::Q5_0,
        WeightFormat::Q5_1,
        WeightFormat::Q8_0,
        WeightFormat::Q2K,
        WeightFormat::Q3K,
        WeightFormat::Q4K,
        WeightFormat::Q5K,
        WeightFormat::Q6K,
    ];

    /// The name GGUF files and this project's options use, for example `q4_k`.
    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::F32 => "f32",
            WeightFormat::F16 => "f16",
            WeightFormat::Bf16 => "bf16",
            WeightFormat::Q4_0 => "q4_0",
            WeightFormat::Q4_1 => "q4_1",
            WeightFormat::Q5_0 => "q5_0",
            WeightFormat::Q5_1 => "q5_1",
            WeightFormat::Q8_0 => "q8_0",
            WeightFormat::Q2K => "q2_k",
            WeightFormat::Q3K => "q3_k",
            WeightFormat::Q4K => "q4_k",
            WeightFormat::Q5K => "q5_k",
            WeightFormat::Q6K => "q6_k",
        }
    }

    /// Weights of one block: a row is a whole number of blocks.
    pub const fn block_weights(self) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => 1,
            WeightFormat::Q4_0 => Q4_0::WEIGHTS,
            WeightFormat::Q4_1 => Q4_1::WEIGHTS,
            WeightFormat::Q5_0 => Q5_0::WEIGHTS,
            WeightFormat::Q5_1 => Q5_1::WEIGHTS,
            WeightFormat::Q8_0 => Q8_0::WEIGHTS,
            WeightFormat::Q2K => Q2K::WEIGHTS,
            WeightFormat::Q3K => Q3K::WEIGHTS,
            WeightFormat::Q4K => Q4K::WEIGHTS,
            WeightFormat::Q5K => Q5K::WEIGHTS,
            WeightFormat::Q6K => Q6K::WEIGHTS,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            WeightFormat::F32 => 4,
            WeightFormat::F16 | WeightFormat::Bf16 => 2,
            WeightFormat::Q4_0 => Q4_0::BYTES,
            WeightFormat::Q4_1 => Q4_1::BYTES,
            WeightFormat::Q5_0 => Q5_0::BYTES,
            WeightFormat::Q5_1 => Q5_1::BYTES,
            WeightFormat::Q8_0 => Q8_0::BYTES,
            WeightFormat::Q2K => Q2K::BYTES,
            WeightFormat::Q3K => Q3K::BYTES,
            WeightFormat::Q4K => Q4K::BYTES,
            WeightFormat::Q5K => Q5K::BYTES,
            WeightFormat::Q6K => Q6K::BYTES,
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
