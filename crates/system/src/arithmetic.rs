//! Arithmetic for which systems have libraries of their own.

use crate::platform;

/// a·b + c, rounded once. For code without an instruction for it; the C library of mingw-w64 rounds twice.
#[inline]
pub fn fused_multiply_add(a: f32, b: f32, c: f32) -> f32 {
    platform::fused_multiply_add(a, b, c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_and_a_sum_are_rounded_once() {
        let small = f32::EPSILON;
        // The product is 1 + 2ε + ε²: two roundings lose the last term.
        assert_eq!(
            fused_multiply_add(1.0 + small, 1.0 + small, -(1.0 + 2.0 * small)),
            small * small
        );
        // Half a unit and a bit more rounds up, and a bit less down.
        let tiny = f32::MIN_POSITIVE;
        assert_eq!(fused_multiply_add(small / 2.0, 1.0, 1.0), 1.0);
        assert_eq!(fused_multiply_add(small / 2.0, 1.0 + small, 1.0), 1.0 + small);
        assert_eq!(fused_multiply_add(tiny, tiny, 1.0), 1.0);
        assert_eq!(fused_multiply_add(f32::MAX, 2.0, 0.0), f32::INFINITY);
        assert!(fused_multiply_add(f32::INFINITY, 0.0, 1.0).is_nan());
    }
}
