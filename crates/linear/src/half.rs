//! Widening of 16-bit floats, exact and without branches so that loops over them become vector code.

/// Widens IEEE binary16.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // 2^112 moves the exponent to binary32's bias and normalises subnormals in the same multiplication.
    let finite = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    // Infinities and NaN keep their mantissa under an exponent of ones.
    let special = if magnitude >= 0x7c00 << 13 { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite.to_bits() | special | sign)
}

/// Widens bfloat16.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
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
}
