//! The table of weight formats: one row each, from which all other code takes its facts.

use core::fmt;

use crate::float::{self, Bf16, Element, F8, F16, F32};
use crate::machine::Isa;
use crate::quant::{self, Codes, Group, Quant};
use crate::quant::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, Tq1_0, Tq2_0};
use crate::quant::{Q1_0, Q2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::tasks::Product;

/// The facts of a format.
pub(crate) struct FormatRow {
    name: &'static str,
    ggml_type: Option<u32>,
    block_weights: usize,
    block_bytes: usize,
    /// Bytes of scales outside the blocks, for a row of `inputs` inputs.
    scale_bytes: fn(usize) -> usize,
    /// Packed rows are padded to a multiple of this many bytes.
    pub(crate) row_multiple: usize,
    /// The first block with a scale or minimum that is not finite, and this number.
    first_not_finite: fn(&[u8]) -> Option<(usize, f32)>,
    /// `(row-major bytes, outputs, inputs, packed)`
    pub(crate) pack: fn(&[u8], usize, usize, &mut [u8]),
    /// `(packed, outputs, inputs, row-major bytes)`
    pub(crate) unpack: fn(&[u8], usize, usize, &mut [u8]),
    /// `(a row of a file, its weights)`
    decode: fn(&[u8], &mut [f32]),
    /// The codes of blocks.
    codes: Codes,
    /// `(packed, outputs, row, weights of the row)`
    pub(crate) row_into: fn(&[u8], usize, usize, &mut [f32]),
    /// `(isa, products, inputs, input)`
    pub(crate) multiply: fn(Isa, Vec<Product<'_>>, usize, &[f32]),
    /// As `multiply`, with rounded input if the format supports it.
    pub(crate) multiply_rounded: fn(Isa, Vec<Product<'_>>, usize, &[f32]),
}

impl FormatRow {
    /// A format of single floats of `bytes` bytes, multiplied by `multiply`.
    const fn float<E: Element>(
        name: &'static str,
        ggml_type: Option<u32>,
        bytes: usize,
        multiply: fn(Isa, Vec<Product<'_>>, usize, &[f32]),
    ) -> Self {
        Self {
            name,
            ggml_type,
            block_weights: 1,
            block_bytes: bytes,
            scale_bytes: float::scale_bytes::<E>,
            row_multiple: E::INPUTS * bytes,
            first_not_finite: |_| None,
            pack: float::pack::<E>,
            unpack: float::unpack::<E>,
            decode: float::decode::<E>,
            codes: Codes::Quants,
            row_into: float::row_into::<E>,
            multiply,
            multiply_rounded: multiply,
        }
    }

    /// A format of blocks.
    const fn blocks<Q: Quant>(name: &'static str, ggml_type: Option<u32>) -> Self {
        let multiply: fn(Isa, Vec<Product<'_>>, usize, &[f32]) = |isa, products, inputs, input| {
            quant::multiply(Q::FORMAT, isa, products, inputs, input);
        };
        Self {
            name,
            ggml_type,
            block_weights: Q::WEIGHTS,
            block_bytes: Q::BYTES,
            scale_bytes: |_| 0,
            row_multiple: 1,
            first_not_finite: |blocks| quant::first_not_finite(Q::FORMAT, blocks),
            pack: |source, outputs, inputs, packed| {
                quant::pack(Q::FORMAT, source, outputs, inputs, packed);
            },
            unpack: |packed, _, inputs, rows| quant::unpack(Q::FORMAT, packed, inputs, rows),
            decode: |row, weights| quant::decode(Q::FORMAT, row, weights),
            codes: Q::CODES,
            row_into: |packed, _, row, output| quant::row_into(Q::FORMAT, packed, row, output),
            multiply,
            multiply_rounded: multiply,
        }
    }
}

/// Generates the enum and its table, so that each format is defined once.
macro_rules! formats {
    ($($(#[$doc:meta])* $format:ident = $row:expr;)*) => {
        /// Storage format of a matrix's weights, in files and in memory.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "the names GGUF gives them")]
        #[non_exhaustive]
        pub enum WeightFormat {
            $($(#[$doc])* $format,)*
        }

        impl WeightFormat {
            /// Every format.
            pub const ALL: &[WeightFormat] = &[$(WeightFormat::$format,)*];
        }

        static TABLE: &[FormatRow] = &[$($row,)*];
    };
}

formats! {
    /// IEEE binary32.
    F32 = FormatRow::float::<F32>("f32", Some(0), 4, float::multiply::<F32>);
    /// IEEE binary16.
    F16 = FormatRow::float::<F16>("f16", Some(1), 2, float::multiply::<F16>);
    /// The upper half of a binary32 number.
    Bf16 = FormatRow {
        multiply_rounded: float::multiply_rounded,
        ..FormatRow::float::<Bf16>("bf16", Some(30), 2, float::multiply_pairs::<Bf16>)
    };
    /// Blocks of 32: 4 bits and a scale.
    Q4_0 = FormatRow::blocks::<Q4_0>("q4_0", Some(2));
    /// Blocks of 32: 4 bits, a scale and a minimum.
    Q4_1 = FormatRow::blocks::<Q4_1>("q4_1", Some(3));
    /// Blocks of 32: 5 bits and a scale.
    Q5_0 = FormatRow::blocks::<Q5_0>("q5_0", Some(6));
    /// Blocks of 32: 5 bits, a scale and a minimum.
    Q5_1 = FormatRow::blocks::<Q5_1>("q5_1", Some(7));
    /// Blocks of 32: 8 bits and a scale.
    Q8_0 = FormatRow::blocks::<Q8_0>("q8_0", Some(8));
    /// Blocks of 256: 2 bits, 4-bit scales and minimums per 16 weights.
    Q2K = FormatRow::blocks::<Q2K>("q2_k", Some(10));
    /// Blocks of 256: 3 bits, 6-bit scales per 16 weights.
    Q3K = FormatRow::blocks::<Q3K>("q3_k", Some(11));
    /// Blocks of 256: 4 bits, 6-bit scales and minimums per 32 weights.
    Q4K = FormatRow::blocks::<Q4K>("q4_k", Some(12));
    /// Blocks of 256: 5 bits, 6-bit scales and minimums per 32 weights.
    Q5K = FormatRow::blocks::<Q5K>("q5_k", Some(13));
    /// Blocks of 256: 6 bits, 8-bit scales per 16 weights.
    Q6K = FormatRow::blocks::<Q6K>("q6_k", Some(14));
    /// Blocks of 32: codes of 4 bits for unevenly spaced values, and a scale.
    Iq4Nl = FormatRow::blocks::<Iq4Nl>("iq4_nl", Some(20));
    /// Blocks of 256: the codes of IQ4_NL, 6-bit scales per 32 weights.
    Iq4Xs = FormatRow::blocks::<Iq4Xs>("iq4_xs", Some(23));
    /// Blocks of 32: floats of 4 bits, and a power of two.
    Mxfp4 = FormatRow::blocks::<Mxfp4>("mxfp4", Some(39));
    /// Blocks of 256: 4 weights in a grid of 512, signs, 4-bit scales per 32 weights.
    Iq3S = FormatRow::blocks::<Iq3S>("iq3_s", Some(21));
    /// Blocks of 256: 4 weights in a grid of 256, signs, 4-bit scales per 32 weights.
    Iq3Xxs = FormatRow::blocks::<Iq3Xxs>("iq3_xxs", Some(18));
    /// Blocks of 256: 8 weights in a grid of 256, signs, 4-bit scales per 32 weights.
    Iq2Xxs = FormatRow::blocks::<Iq2Xxs>("iq2_xxs", Some(16));
    /// Blocks of 256: 8 weights in a grid of 512, signs, 4-bit scales per 16 weights.
    Iq2Xs = FormatRow::blocks::<Iq2Xs>("iq2_xs", Some(17));
    /// Blocks of 256: 8 weights in a grid of 1024, signs, 4-bit scales per 16 weights.
    Iq2S = FormatRow::blocks::<Iq2S>("iq2_s", Some(22));
    /// Blocks of 64: 4-bit floats, 8-bit float scales per 16 weights.
    Nvfp4 = FormatRow::blocks::<Nvfp4>("nvfp4", Some(40));
    /// Blocks of 256: digits to base 3, and a scale.
    Tq1_0 = FormatRow::blocks::<Tq1_0>("tq1_0", Some(34));
    /// Blocks of 256: 2 bits and a scale.
    Tq2_0 = FormatRow::blocks::<Tq2_0>("tq2_0", Some(35));
    /// Blocks of 256: 8 weights in a ternary grid of 2048, 3-bit scales and a shift per 32 weights.
    Iq1S = FormatRow::blocks::<Iq1S>("iq1_s", Some(19));
    /// Blocks of 256: 8 weights in the grid of IQ1_S, 3-bit scales per 16 weights, a shift per 8.
    Iq1M = FormatRow::blocks::<Iq1M>("iq1_m", Some(29));
    /// Blocks of 128: 1 bit and a scale.
    Q1_0 = FormatRow::blocks::<Q1_0>("q1_0", Some(41));
    /// Blocks of 64: 2 bits and a scale.
    Q2_0 = FormatRow::blocks::<Q2_0>("q2_0", Some(42));
    /// 8-bit floats (4 bits of exponent, 3 of mantissa), with a binary32 scale per 128 weights of a row, after the
    /// row's floats.
    F8E4m3 = FormatRow::float::<F8>("f8_e4m3", None, 1, float::multiply::<F8>);
    /// Blocks of 32: a scale and a minimum in binary32, and 4 bits.
    Q4G32 = FormatRow::blocks::<Group<4, 32>>("q4_g32", None);
    /// Blocks of 64: a scale and a minimum in binary32, and 4 bits.
    Q4G64 = FormatRow::blocks::<Group<4, 64>>("q4_g64", None);
    /// Blocks of 128: a scale and a minimum in binary32, and 4 bits.
    Q4G128 = FormatRow::blocks::<Group<4, 128>>("q4_g128", None);
    /// Blocks of 32: a scale and a minimum in binary32, and 8 bits around 128.
    Q8G32 = FormatRow::blocks::<Group<8, 32>>("q8_g32", None);
    /// Blocks of 64: a scale and a minimum in binary32, and 8 bits around 128.
    Q8G64 = FormatRow::blocks::<Group<8, 64>>("q8_g64", None);
}

impl WeightFormat {
    pub(crate) fn row(self) -> &'static FormatRow {
        &TABLE[self as usize]
    }

    /// The name in GGUF files and in this project's options, for example `q4_k`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The number of the format in ggml and GGUF files, if it has one.
    pub fn ggml_type(self) -> Option<u32> {
        self.row().ggml_type
    }

    /// The format with this ggml number, if it is supported.
    pub fn from_ggml_type(number: u32) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|format| format.ggml_type() == Some(number))
    }

    /// Weights per block: a row is a whole number of blocks.
    pub fn block_weights(self) -> usize {
        self.row().block_weights
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Bytes of a row of `inputs` weights, including scales after its blocks; `None` if these are not whole blocks.
    pub fn row_bytes(self, inputs: usize) -> Option<usize> {
        let whole = inputs.is_multiple_of(self.block_weights());
        (inputs / self.block_weights())
            .checked_mul(self.block_bytes())?
            .checked_add((self.row().scale_bytes)(inputs))
            .filter(|_| whole)
    }

    /// The weights of a file's row, each operation rounded as in ggml.
    ///
    /// # Panics
    ///
    /// If `row` does not have the [length](Self::row_bytes) of a row of as many weights as `weights` holds.
    pub fn decode_row(self, row: &[u8], weights: &mut [f32]) {
        assert_eq!(
            Some(row.len()),
            self.row_bytes(weights.len()),
            "the bytes of a row of {} weights",
            weights.len()
        );
        (self.row().decode)(row, weights);
    }

    /// Values of the entries of a grid format, entry after entry, before signs, shifts and scales: four per entry in
    /// IQ3 formats, eight in IQ2 and IQ1 formats. `None` for other formats.
    pub fn grid(self) -> Option<Vec<f32>> {
        self.row().codes.grid()
    }

    /// The first block of a file with a scale or minimum that is not finite, and this number; `None` for floats.
    pub fn first_block_not_finite(self, blocks: &[u8]) -> Option<(usize, f32)> {
        (self.row().first_not_finite)(blocks)
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
