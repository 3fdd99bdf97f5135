//! Converts planes of pages between the CPU's layout and the device's, without rounding.

use riffle_attention::{Format, LANES, QUANT_BLOCK};

use super::attention::format_number;
use crate::CudaError;

/// Kind of a page's plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    /// Keys, interleaved by 16 tokens on the CPU.
    Keys,
    /// Values.
    Values,
}

/// Rearranges a plane from the CPU's layout into the device's; both have [`Format::plane_bytes`].
///
/// # Errors
/// f32 (the device has no such pages), a `head_dim` or `page_tokens` that is no multiple of 16, other lengths.
pub fn plane_to_device(
    kind: PlaneKind,
    format: Format,
    head_dim: usize,
    cpu: &[u8],
    device: &mut [u8],
) -> Result<(), CudaError> {
    let tokens = check(format, head_dim, cpu.len(), device.len())?;
    for_places(kind, format, head_dim, tokens, |from, to, half| match half {
        None => device[to..to + unit(format)].copy_from_slice(&cpu[from..from + unit(format)]),
        Some(halves) => halves.to_device(cpu[from], &mut device[to]),
    });
    for_scales(kind, format, head_dim, tokens, |from, to| {
        device[to..to + 2].copy_from_slice(&cpu[from..from + 2])
    });
    Ok(())
}

/// The inverse of [`plane_to_device`].
///
/// # Errors
/// As [`plane_to_device`].
pub fn plane_to_cpu(
    kind: PlaneKind,
    format: Format,
    head_dim: usize,
    device: &[u8],
    cpu: &mut [u8],
) -> Result<(), CudaError> {
    let tokens = check(format, head_dim, device.len(), cpu.len())?;
    for_places(kind, format, head_dim, tokens, |to, from, half| match half {
        None => cpu[to..to + unit(format)].copy_from_slice(&device[from..from + unit(format)]),
        Some(halves) => halves.to_cpu(device[from], &mut cpu[to]),
    });
    for_scales(kind, format, head_dim, tokens, |to, from| {
        cpu[to..to + 2].copy_from_slice(&device[from..from + 2])
    });
    Ok(())
}

/// Position of a quant's bits within its byte.
#[derive(Clone, Copy)]
enum Bits {
    /// A byte; the CPU's has an offset of 128.
    Byte,
    /// Four bits; true if the byte's high half holds them.
    Nibble { cpu_high: bool, device_high: bool },
}

impl Bits {
    fn to_device(self, cpu: u8, device: &mut u8) {
        match self {
            Self::Byte => *device = cpu ^ 0x80,
            Self::Nibble { cpu_high, device_high } => move_nibble(cpu, cpu_high, device, device_high),
        }
    }

    fn to_cpu(self, device: u8, cpu: &mut u8) {
        match self {
            Self::Byte => *cpu = device ^ 0x80,
            Self::Nibble { cpu_high, device_high } => move_nibble(device, device_high, cpu, cpu_high),
        }
    }
}

fn move_nibble(from: u8, from_high: bool, to: &mut u8, to_high: bool) {
    let nibble = if from_high { from >> 4 } else { from & 15 };
    *to = if to_high {
        (*to & 15) | nibble << 4
    } else {
        (*to & 0xf0) | nibble
    };
}

fn unit(format: Format) -> usize {
    if matches!(format, Format::F16 | Format::Bf16) {
        2
    } else {
        1
    }
}

/// Tokens in a plane of these bytes.
fn check(format: Format, head_dim: usize, bytes: usize, other: usize) -> Result<usize, CudaError> {
    format_number(format)?;
    if head_dim == 0 || !head_dim.is_multiple_of(LANES) {
        return Err(CudaError::Unsupported {
            what: "head_dim",
            value: head_dim,
            requirement: "a multiple of 16",
        });
    }
    let stripe = format.plane_bytes(LANES, head_dim);
    if !bytes.is_multiple_of(stripe) || bytes != other {
        return Err(CudaError::Mismatch {
            what: "bytes of a plane",
            expected: bytes.next_multiple_of(stripe),
            found: other,
        });
    }
    Ok(bytes / stripe * LANES)
}

/// Calls `each` for every element, with the CPU's byte and the device's byte. For integers it also passes the position
/// of the element's bits in the device's byte.
fn for_places(
    kind: PlaneKind,
    format: Format,
    head_dim: usize,
    tokens: usize,
    mut each: impl FnMut(usize, usize, Option<Bits>),
) {
    let stripe_bytes = format.plane_bytes(LANES, head_dim);
    let scale_bytes = 2 * LANES;
    for token in 0..tokens {
        let (stripe, lane) = (token / LANES * stripe_bytes, token % LANES);
        for d in 0..head_dim {
            // The block's first element, and its width: the last may be narrower.
            let (first, at) = (d / QUANT_BLOCK * QUANT_BLOCK, d % QUANT_BLOCK);
            let width = QUANT_BLOCK.min(head_dim - first);
            let keys = kind == PlaneKind::Keys;
            let all_scales = scale_bytes * head_dim.div_ceil(QUANT_BLOCK);
            match format {
                Format::Q8_0 => {
                    let cpu = if keys {
                        scale_bytes * (first / QUANT_BLOCK + 1) + LANES * first + at / 4 * 4 * LANES + 4 * lane + at % 4
                    } else {
                        all_scales + LANES * first + lane / 4 * 4 * width + 4 * at + lane % 4
                    };
                    each(stripe + cpu, token * head_dim + d, Some(Bits::Byte));
                }
                Format::Q4_0 => {
                    let (cpu, cpu_high) = if keys {
                        let block = scale_bytes * (first / QUANT_BLOCK + 1) + LANES / 2 * first;
                        (block + at / 8 * 4 * LANES + 4 * lane + at % 4, at % 8 >= 4)
                    } else {
                        (
                            all_scales + LANES / 2 * first + lane / 8 * 4 * width + 4 * at + lane % 4,
                            lane % 8 >= 4,
                        )
                    };
                    let device_high = d % 2 == 1;
                    let bits = Bits::Nibble { cpu_high, device_high };
                    each(stripe + cpu, token * (head_dim / 2) + d / 2, Some(bits));
                }
                _ => {
                    let cpu = if keys { d * LANES + lane } else { lane * head_dim + d };
                    each(stripe + 2 * cpu, 2 * (token * head_dim + d), None);
                }
            }
        }
    }
}

/// Calls `each` with the CPU's and the device's byte of every scale.
fn for_scales(kind: PlaneKind, format: Format, head_dim: usize, tokens: usize, mut each: impl FnMut(usize, usize)) {
    let token_bytes = match format {
        Format::Q8_0 => head_dim,
        Format::Q4_0 => head_dim / 2,
        _ => return,
    };
    let (stripe_bytes, blocks) = (format.plane_bytes(LANES, head_dim), head_dim.div_ceil(QUANT_BLOCK));
    for token in 0..tokens {
        for block in 0..blocks {
            let before = match kind {
                PlaneKind::Keys => block * (2 * LANES + LANES * QUANT_BLOCK * token_bytes / head_dim),
                PlaneKind::Values => 2 * LANES * block,
            };
            let cpu = token / LANES * stripe_bytes + before + 2 * (token % LANES);
            each(cpu, tokens * token_bytes + 2 * (token * blocks + block));
        }
    }
}
