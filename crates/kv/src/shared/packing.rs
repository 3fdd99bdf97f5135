//! Packs planes without loss: the high bytes of floats repeat, so they are coded by frequency.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use riffle_attention::Format;

/// Packing pays if it saves at least one in this many bytes.
const LEAST_SAVING: usize = 12;

/// Bytes of an element whose last byte has the sign and the exponent; `None` for single-byte formats, which cannot be
/// packed.
fn element_bytes(format: Format) -> Option<usize> {
    Some(format.element_bytes()).filter(|bytes| *bytes > 1)
}

/// Planes in an order known to both sides: their formats and lengths.
pub(super) type Planes<'a> = &'a [(Format, usize)];

/// The planes in `raw`, packed: the length of the coded high bytes (u64), these, then all other bytes. `None` if this
/// saves too little.
pub(super) fn pack(raw: &[u8], planes: Planes<'_>) -> Option<Vec<u8>> {
    let (mut high, mut low) = (Vec::with_capacity(raw.len() / 2), Vec::with_capacity(raw.len()));
    let mut rest = raw;
    for (format, bytes) in planes {
        let (plane, after) = rest.split_at(*bytes);
        rest = after;
        match element_bytes(*format) {
            None => low.extend_from_slice(plane),
            Some(2) => {
                let elements = plane.as_chunks::<2>().0;
                high.extend(elements.iter().map(|element| element[1]));
                low.extend(elements.iter().map(|element| element[0]));
            }
            Some(_) => {
                let elements = plane.as_chunks::<4>().0;
                high.extend(elements.iter().map(|element| element[3]));
                low.extend(elements.iter().flat_map(|element| [element[0], element[1], element[2]]));
            }
        }
    }
    if high.is_empty() {
        return None;
    }
    let mut coder = DeflateEncoder::new(vec![0; 8], Compression::fast());
    coder.write_all(&high).ok()?;
    let mut packed = coder.finish().ok()?;
    let coded = packed.len() - 8;
    packed[..8].copy_from_slice(&(coded as u64).to_le_bytes());
    packed.extend_from_slice(&low);
    (packed.len() + raw.len() / LEAST_SAVING <= raw.len()).then_some(packed)
}

/// The bytes given to [`pack`], `raw_bytes` of them; `None` if `packed` is not its result.
pub(super) fn unpack(packed: &[u8], planes: Planes<'_>) -> Option<Vec<u8>> {
    let raw_bytes: usize = planes.iter().map(|(_, bytes)| bytes).sum();
    let high_bytes: usize = planes
        .iter()
        .map(|(format, bytes)| element_bytes(*format).map_or(0, |element| bytes / element))
        .sum();
    let (coded, rest) = packed.split_first_chunk::<8>()?;
    let coded = usize::try_from(u64::from_le_bytes(*coded)).ok()?;
    let (coded, mut low) = rest.split_at_checked(coded)?;
    if low.len() != raw_bytes - high_bytes {
        return None;
    }
    let mut high = Vec::with_capacity(high_bytes);
    let read = DeflateDecoder::new(coded)
        .take(high_bytes as u64 + 1)
        .read_to_end(&mut high);
    if read.ok()? != high_bytes {
        return None;
    }
    let (mut high, mut raw) = (&high[..], vec![0; raw_bytes]);
    let mut out = &mut raw[..];
    for (format, bytes) in planes {
        let (plane, after) = out.split_at_mut(*bytes);
        out = after;
        match element_bytes(*format) {
            None => {
                let (here, later) = low.split_at(*bytes);
                plane.copy_from_slice(here);
                low = later;
            }
            Some(element) => {
                let (high_here, high_later) = high.split_at(bytes / element);
                let (low_here, low_later) = low.split_at(bytes - bytes / element);
                (high, low) = (high_later, low_later);
                join(plane, element, high_here, low_here);
            }
        }
    }
    Some(raw)
}

fn join(plane: &mut [u8], element: usize, high: &[u8], low: &[u8]) {
    if element == 2 {
        for ((out, high), low) in plane.as_chunks_mut::<2>().0.iter_mut().zip(high).zip(low) {
            *out = [*low, *high];
        }
        return;
    }
    let low = low.as_chunks::<3>().0;
    for ((out, high), low) in plane.as_chunks_mut::<4>().0.iter_mut().zip(high).zip(low) {
        *out = [low[0], low[1], low[2], *high];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Floats that resemble a model's keys: around zero, of similar size.
    fn floats(count: usize) -> impl Iterator<Item = f32> {
        let mut state = 7u32;
        (0..count).map(move |_| {
            let mut uniform = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            };
            (uniform() + uniform() + uniform()) * 3.0
        })
    }

    #[test]
    fn packed_planes_come_back_to_the_bit_and_are_smaller() {
        let wide: Vec<u8> = floats(3000).flat_map(f32::to_le_bytes).collect();
        let half: Vec<u8> = floats(3000)
            .flat_map(|x| riffle_attention::f32_to_f16(x).to_le_bytes())
            .collect();
        let quantised: Vec<u8> = (0..999).map(|i| (i * 7919 % 251) as u8).collect();
        let raw = [&wide[..], &half, &quantised, &half].concat();
        let planes = [
            (Format::F32, wide.len()),
            (Format::F16, half.len()),
            (Format::Q8_0, quantised.len()),
            (Format::Bf16, half.len()),
        ];
        let packed = pack(&raw, &planes).expect("it is smaller");
        assert!(packed.len() < raw.len() * 11 / 12, "{} of {}", packed.len(), raw.len());
        assert_eq!(unpack(&packed, &planes).unwrap(), raw);
    }

    #[test]
    fn quantised_planes_and_noise_are_left_as_they_are() {
        let noise = |i: u32| twox_hash::XxHash3_128::oneshot(&i.to_le_bytes()) as u8;
        let noise: Vec<u8> = (0..4096).map(noise).collect();
        assert!(pack(&noise, &[(Format::Q8_0, noise.len())]).is_none());
        assert!(pack(&noise, &[(Format::F16, noise.len())]).is_none());
    }

    #[test]
    fn changed_lengths_are_refused_without_a_panic() {
        let half: Vec<u8> = floats(500)
            .flat_map(|x| riffle_attention::f32_to_f16(x).to_le_bytes())
            .collect();
        let planes = [(Format::F16, half.len())];
        let packed = pack(&half, &planes).unwrap();
        for cut in 0..packed.len() {
            assert!(unpack(&packed[..cut], &planes).is_none(), "cut at {cut}");
        }
        for length in [0, 1, u64::MAX, packed.len() as u64] {
            let mut other = packed.clone();
            other[..8].copy_from_slice(&length.to_le_bytes());
            assert!(unpack(&other, &planes).is_none());
        }
    }
}
