//! Layout of weights on the device: the planes of `kernels/weights.cuh`.

use riffle_linear::WeightFormat;

use crate::CudaError;

/// A field of a block: its offset in the file's block, and its bytes.
type Field = (usize, usize);

/// The fields of a block as planes, in the order of `kernels/weights.cuh`; empty for floats, which are not
/// rearranged.
pub(super) fn planes(format: WeightFormat) -> &'static [Field] {
    match format {
        WeightFormat::Q4_0 => &[(2, 16), (0, 2)],
        WeightFormat::Q4_1 => &[(4, 16), (0, 4)],
        WeightFormat::Q5_0 => &[(6, 16), (0, 2), (2, 4)],
        WeightFormat::Q5_1 => &[(8, 16), (0, 4), (4, 4)],
        WeightFormat::Q8_0 => &[(2, 32), (0, 2)],
        WeightFormat::Q2K => &[(16, 64), (0, 16), (80, 4)],
        WeightFormat::Q3K => &[(32, 64), (0, 32), (96, 12), (108, 2)],
        WeightFormat::Q4K => &[(16, 128), (4, 12), (0, 4)],
        WeightFormat::Q5K => &[(48, 128), (4, 12), (0, 4), (16, 32)],
        WeightFormat::Q6K => &[(0, 128), (128, 64), (192, 16), (208, 2)],
        _ => &[],
    }
}

/// True if kernels support the format: floats, and formats with planes.
pub(super) fn is_known(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16) || !planes(format).is_empty()
}

/// The kernels' number of a format.
pub(super) fn number(format: WeightFormat) -> u32 {
    let place = WeightFormat::ALL.iter().position(|other| *other == format);
    place.expect("ALL holds every format") as u32
}

/// Checks that `bytes` hold a matrix `[outputs, inputs]`. Returns the number of its blocks.
pub(super) fn blocks(format: WeightFormat, outputs: usize, inputs: usize, bytes: usize) -> Result<usize, CudaError> {
    if !is_known(format) {
        return Err(CudaError::Unsupported {
            what: "number of a matrix's format",
            value: number(format) as usize,
            requirement: "a float type, q4_0 to q8_0 or q2_k to q6_k: load the model on the CPU",
        });
    }
    if outputs == 0 || inputs == 0 || !inputs.is_multiple_of(format.block_weights()) {
        return Err(CudaError::Unsupported {
            what: "inputs of a matrix",
            value: inputs,
            requirement: "a positive number of whole blocks of its format",
        });
    }
    let blocks = outputs.saturating_mul(inputs / format.block_weights());
    let needed_bytes = blocks.saturating_mul(format.block_bytes());
    if bytes != needed_bytes {
        return Err(CudaError::Mismatch {
            what: "bytes of a matrix",
            expected: needed_bytes,
            found: bytes,
        });
    }
    Ok(blocks)
}

/// Bytes of the matrix on the device.
pub(super) fn device_bytes(format: WeightFormat, blocks: usize) -> usize {
    match planes(format) {
        [] => blocks * format.block_bytes(),
        planes => planes
            .iter()
            .map(|(_, bytes)| (blocks * bytes).next_multiple_of(16))
            .sum(),
    }
}

/// Rearranges the file's blocks into planes.
pub(super) fn arrange(format: WeightFormat, source: &[u8], target: &mut [u8]) {
    let (planes, block_bytes) = (planes(format), format.block_bytes());
    if planes.is_empty() {
        return target.copy_from_slice(source);
    }
    let mut rest = target;
    for (offset, bytes) in planes {
        let count = source.len() / block_bytes;
        let (plane, after) = rest.split_at_mut((count * bytes).next_multiple_of(16));
        for (to, block) in plane.chunks_exact_mut(*bytes).zip(source.chunks_exact(block_bytes)) {
            to.copy_from_slice(&block[*offset..][..*bytes]);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_hold_every_byte_of_a_block_once() {
        for format in WeightFormat::ALL {
            if planes(*format).is_empty() {
                continue;
            }
            let mut seen = vec![0; format.block_bytes()];
            for (offset, bytes) in planes(*format) {
                seen[*offset..offset + bytes].iter_mut().for_each(|count| *count += 1);
            }
            assert!(seen.iter().all(|count| *count == 1), "{format}");
        }
    }
}
