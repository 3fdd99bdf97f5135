//! Blocks of four-bit codes for values of a short table: IQ4_NL, IQ4_XS, MXFP4, NVFP4.

use super::plain_blocks::write_nibbles;
use super::search::{best_scale, extreme, inverse, scaled_error, to_half};
use super::super_block::signed_scales;

/// The values of IQ4_NL and IQ4_XS.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// The values of MXFP4 and NVFP4 from 0, doubled; codes from 8 are their negatives.
const E2M1: [f32; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];

/// The code of the nearest value for each half number from −128 on. Borders between values are halves.
static IQ4_CODES: [u8; 512] = {
    let mut codes = [0; 512];
    let mut index = 0;
    while index < 512 {
        // The middle between two half numbers, in quarters.
        let middle = 2 * (index as i32 - 256) + 1;
        let mut code = 0;
        while code < 15 && middle > 2 * (IQ4[code] as i32 + IQ4[code + 1] as i32) {
            code += 1;
        }
        codes[index] = code as u8;
        index += 1;
    }
    codes
};

/// Trial values of the largest magnitude, near both ends of the table.
const IQ4_TOPS: [f32; 20] = {
    let mut tops = [0.0; 20];
    let mut index = 0;
    while index < 20 {
        let end = if index % 2 == 0 { -127.0 } else { 113.0 };
        tops[index] = end * (0.84 + 0.04 * (index / 2) as f32);
        index += 1;
    }
    tops
};

#[inline(always)]
fn iq4_code(value: f32) -> u8 {
    let place = (2.0 * value + 256.0).clamp(0.0, 511.0);
    IQ4_CODES[place as usize]
}

#[inline(always)]
fn iq4_value(value: f32) -> f32 {
    f32::from(IQ4[usize::from(iq4_code(value))])
}

fn iq4_codes(x: &[f32], scale: f32) -> [u8; 32] {
    let inverse = inverse(scale);
    core::array::from_fn(|index| iq4_code(x[index] * inverse))
}

pub(super) fn iq4_nl(x: &[f32], w: &[f32], block: &mut [u8]) {
    let (scale, rounded) = to_half(best_scale(x, w, &IQ4_TOPS, iq4_value));
    block[..2].copy_from_slice(&scale.to_le_bytes());
    write_nibbles(&iq4_codes(x, rounded), &mut block[2..]);
}

pub(super) fn iq4_xs(x: &[f32], w: &[f32], block: &mut [u8]) {
    let scales = signed_scales([x, w], 32, [-32.0, 31.0], &IQ4_TOPS, iq4_value);
    block.fill(0);
    block[..2].copy_from_slice(&scales.scale.to_le_bytes());
    for (part, x) in x.chunks_exact(32).enumerate() {
        let six = (scales.multiples[part] + 32) as u8;
        block[2 + part / 4] |= (six >> 4) << (2 * (part % 4));
        block[4 + part / 2] |= (six & 15) << (4 * (part % 2));
        write_nibbles(&iq4_codes(x, scales.of(part)), &mut block[8 + 16 * part..]);
    }
}

fn e2m1_code(value: f32) -> u8 {
    let magnitude = value.abs();
    let code = (0..7)
        .filter(|code| magnitude > (E2M1[*code] + E2M1[code + 1]) / 2.0)
        .count() as u8;
    if value < 0.0 && code > 0 { code | 8 } else { code }
}

fn e2m1_value(value: f32) -> f32 {
    let code = e2m1_code(value);
    let magnitude = E2M1[usize::from(code & 7)];
    if code > 7 { -magnitude } else { magnitude }
}

/// The code of the scale with the least error, among some.
fn best_code(x: &[f32], w: &[f32], codes: impl Iterator<Item = u8>, scale: fn(u8) -> f32) -> u8 {
    let mut best = (f32::INFINITY, 0);
    for code in codes {
        let error = scaled_error(x, w, scale(code), e2m1_value);
        if error < best.0 {
            best = (error, code);
        }
    }
    best.1
}

pub(super) fn mxfp4(x: &[f32], w: &[f32], block: &mut [u8]) {
    let largest = extreme(x).abs();
    let exponent = (largest.to_bits() >> 23) as i32 - 2;
    let near = (exponent - 1).max(0)..=(exponent + 1).clamp(0, 254);
    let code = best_code(x, w, near.map(|exponent| exponent as u8), half_of_e8m0);
    let inverse = inverse(half_of_e8m0(code));
    block[0] = code;
    write_nibbles(
        &core::array::from_fn(|index| e2m1_code(x[index] * inverse)),
        &mut block[1..],
    );
}

pub(super) fn nvfp4(x: &[f32], w: &[f32], block: &mut [u8]) {
    for (part, (x, w)) in x.chunks_exact(16).zip(w.chunks_exact(16)).enumerate() {
        let wanted = extreme(x).abs() / 12.0;
        // Codes increase with their values.
        let near = (0..0x7e).filter(|code| half_of_ue4m3(*code) < wanted).count() as u8;
        let codes = near.saturating_sub(4)..=(near + 6).min(0x7e);
        let code = best_code(x, w, codes, half_of_ue4m3);
        let inverse = inverse(half_of_ue4m3(code));
        block[part] = code;
        for place in 0..8 {
            let [low, high] = [place, place + 8].map(|index| e2m1_code(x[index] * inverse));
            block[4 + 8 * part + place] = low | high << 4;
        }
    }
}

/// Half of an E8M0, 2^(byte − 128).
fn half_of_e8m0(byte: u8) -> f32 {
    let byte = u32::from(byte);
    f32::from_bits(if byte < 2 {
        0x0020_0000 << byte
    } else {
        (byte - 1) << 23
    })
}

/// Half of an unsigned E4M3.
fn half_of_ue4m3(byte: u8) -> f32 {
    f32::from_bits(u32::from(byte & 0x7f) << 20) * f32::from_bits(0x7b00_0000)
}
