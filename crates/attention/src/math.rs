//! exp and ln without std. Within 1.5 ulp of the exact value if the result is a normal number.

/// e^x.
pub(crate) fn exp(x: f32) -> f32 {
    exp64(f64::from(x)) as f32
}

/// ln x for x > 0.
pub(crate) fn ln(x: f32) -> f32 {
    ln64(f64::from(x)) as f32
}

/// √x for x ≥ 0, by Newton's iteration in f64.
pub(crate) fn sqrt(x: f32) -> f32 {
    if x <= 0.0 || !x.is_finite() {
        return if x == f32::INFINITY || x == 0.0 { x } else { f32::NAN };
    }
    let x = f64::from(x);
    let mut root = exp64(0.5 * ln64(x));
    root = 0.5 * (root + x / root);
    root as f32
}

/// tanh x.
pub(crate) fn tanh64(x: f64) -> f64 {
    let e = exp64(-2.0 * x.abs());
    let magnitude = (1.0 - e) / (1.0 + e);
    if x < 0.0 { -magnitude } else { magnitude }
}

/// e^x to about 1e-15 relative.
pub(crate) fn exp64(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > 709.0 {
        return f64::INFINITY;
    }
    if x < -700.0 {
        return 0.0;
    }
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    let n = (x * core::f64::consts::LOG2_E + MAGIC) - MAGIC;
    // ln 2 in two terms, so that the remainder is exact.
    let r = (x - n * 0.693_147_180_369_123_8) - n * 1.908_214_929_270_587_7e-10;
    let mut sum = 1.0;
    for k in (1..=13).rev() {
        sum = 1.0 + r / f64::from(k) * sum;
    }
    sum * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

/// ln x for x > 0 to about 1e-15 relative.
pub(crate) fn ln64(x: f64) -> f64 {
    if x == f64::INFINITY || x.is_nan() {
        return x;
    }
    if x <= 0.0 {
        return if x == 0.0 { f64::NEG_INFINITY } else { f64::NAN };
    }
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > core::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (square, mut power, mut sum) = (z * z, z, 0.0);
    for k in 0..20 {
        sum += power / f64::from(2 * k + 1);
        power *= square;
    }
    2.0 * sum + exponent as f64 * core::f64::consts::LN_2
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn square_roots_are_rounded_right() {
        for x in [0.0f32, 1.0, 2.0, 64.0, 80.0, 96.0, 128.0, 1e-30, 3e30] {
            assert_eq!(sqrt(x), x.sqrt());
        }
    }

    #[test]
    fn agrees_with_the_platform() {
        for i in -7000..7000 {
            let x = f64::from(i) * 0.0997;
            let (ours, theirs) = (exp64(x), x.exp());
            assert!((ours - theirs).abs() <= theirs * 1e-14, "exp {x}: {ours} {theirs}");
            assert!((ln64(theirs) - x).abs() <= 1e-13 * x.abs().max(1.0), "ln exp {x}");
            let y = f64::from(i) * 0.001;
            assert!((tanh64(y) - y.tanh()).abs() < 1e-15);
        }
    }
}
