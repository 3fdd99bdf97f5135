//! Exact widening of 16-bit floats, and rounding to them, without branches so that loops become vector code.

/// Widens IEEE binary16.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // 2^112 changes the exponent to binary32's bias and normalises subnormals in one multiplication.
    let finite = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    // Infinities and NaN keep their mantissa under an exponent of ones.
    let special = if magnitude >= 0x7c00 << 13 { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite.to_bits() | special | sign)
}

/// Converts an 8-bit float (4 bits of exponent, 3 of mantissa) to the bits of a binary16 of 1/256 of its value:
/// exact, including subnormals.
#[inline(always)]
pub(crate) fn f8_to_f16(bits: u8) -> u16 {
    (i16::from(bits.cast_signed()) << 7).cast_unsigned() & 0xbfff
}

/// Widens bfloat16.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to bfloat16, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // For a number the sum never overflows. A NaN keeps its upper bits, plus the bit that makes it quiet.
    let quiet = bits >> 16 | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 {
        quiet
    } else {
        rounded
    }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sixteen_bit_pattern_widens_exactly() {
        for bits in 0..=u16::MAX {
            let same = |ours: f32, theirs: f32| ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
            assert!(
                same(f16_to_f32(bits), half::f16::from_bits(bits).to_f32()),
                "f16 {bits:#06x}"
            );
            assert!(
                same(bf16_to_f32(bits), half::bf16::from_bits(bits).to_f32()),
                "bf16 {bits:#06x}"
            );
        }
    }

    #[test]
    fn rounding_to_bfloat16_takes_the_nearest_and_keeps_nan() {
        for step in 0..1 << 16 {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(step << 16 | low);
                let (ours, theirs) = (f32_to_bf16(value), half::bf16::from_f32(value));
                assert!(
                    ours == theirs.to_bits() || theirs.is_nan() && bf16_to_f32(ours).is_nan(),
                    "{value:?}: {ours:#06x}"
                );
            }
        }
    }
}
