//! Decoders of streams, each with a limit on bytes.

use std::io::Read;

use flate2::read::{DeflateDecoder, ZlibDecoder};

use super::object::{hex, is_space};

/// The reason why a stream has no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilterError {
    /// The result exceeds the limit.
    TooLarge,
    /// A picture, or an unknown kind.
    Unknown,
}

/// Parameters of a predictor, which stores differences between neighbours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Predictor {
    pub(super) kind: usize,
    pub(super) colors: usize,
    pub(super) bits: usize,
    pub(super) columns: usize,
    /// True if LZW codes lengthen one code early.
    pub(super) is_early: bool,
}

impl Default for Predictor {
    fn default() -> Self {
        Self {
            kind: 1,
            colors: 1,
            bits: 8,
            columns: 1,
            is_early: true,
        }
    }
}

/// Decodes a filter's data. Damaged data give their readable part.
pub(super) fn decode(filter: &str, data: &[u8], predictor: &Predictor, most: usize) -> Result<Vec<u8>, FilterError> {
    let bytes = match filter {
        "FlateDecode" | "Fl" => inflate(data, most)?,
        "LZWDecode" | "LZW" => lzw(data, predictor.is_early, most)?,
        "ASCIIHexDecode" | "AHx" => return Ok(ascii_hex(data)),
        "ASCII85Decode" | "A85" => return limited(ascii_85(data), most),
        "RunLengthDecode" | "RL" => return run_length(data, most),
        _ => return Err(FilterError::Unknown),
    };
    Ok(if predictor.kind > 1 {
        predicted(bytes, predictor)
    } else {
        bytes
    })
}

fn limited(bytes: Vec<u8>, most: usize) -> Result<Vec<u8>, FilterError> {
    if bytes.len() > most {
        Err(FilterError::TooLarge)
    } else {
        Ok(bytes)
    }
}

fn inflate(data: &[u8], most: usize) -> Result<Vec<u8>, FilterError> {
    let skipped = data.iter().take_while(|byte| is_space(**byte)).count();
    let data = &data[skipped..];
    let mut bytes = Vec::new();
    // Bytes unpacked before an error are kept.
    let _ = ZlibDecoder::new(data).take(most as u64 + 1).read_to_end(&mut bytes);
    if bytes.is_empty() && data.len() > 2 {
        let _ = DeflateDecoder::new(&data[2..])
            .take(most as u64 + 1)
            .read_to_end(&mut bytes);
    }
    limited(bytes, most)
}

fn ascii_hex(data: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = data
        .iter()
        .take_while(|byte| **byte != b'>')
        .filter_map(|byte| hex(*byte))
        .collect();
    let pairs = digits.chunks(2);
    pairs
        .map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(0))
        .collect()
}

fn ascii_85(data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.len());
    let mut group = Vec::with_capacity(5);
    let data = data.strip_prefix(b"<~").unwrap_or(data);
    for byte in data {
        match byte {
            b'~' => break,
            b'z' if group.is_empty() => bytes.extend([0; 4]),
            b'!'..=b'u' => {
                group.push(byte - b'!');
                if group.len() == 5 {
                    bytes.extend(of_85(&group));
                    group.clear();
                }
            }
            _ => {}
        }
    }
    if group.len() > 1 {
        let count = group.len() - 1;
        group.resize(5, 84);
        bytes.extend(&of_85(&group)[..count]);
    }
    bytes
}

fn of_85(group: &[u8]) -> [u8; 4] {
    let value = group.iter().fold(0u32, |value, digit| {
        value.wrapping_mul(85).wrapping_add(u32::from(*digit))
    });
    value.to_be_bytes()
}

fn run_length(data: &[u8], most: usize) -> Result<Vec<u8>, FilterError> {
    let (mut bytes, mut at) = (Vec::new(), 0);
    while let Some(length) = data.get(at) {
        let length = usize::from(*length);
        at += 1;
        if length < 128 {
            let end = (at + length + 1).min(data.len());
            bytes.extend(&data[at..end]);
            at = end;
        } else if length == 128 {
            break;
        } else if let Some(byte) = data.get(at) {
            bytes.resize(bytes.len() + 257 - length, *byte);
            at += 1;
        }
        if bytes.len() > most {
            return Err(FilterError::TooLarge);
        }
    }
    Ok(bytes)
}

fn lzw(data: &[u8], is_early: bool, most: usize) -> Result<Vec<u8>, FilterError> {
    const CLEAR: usize = 256;
    const END: usize = 257;
    // Each code of the table is a range of earlier output.
    let mut table: Vec<(usize, usize)> = Vec::with_capacity(4096);
    let mut bytes: Vec<u8> = Vec::new();
    let mut previous: Option<(usize, usize)> = None;
    let (mut window, mut held, mut width) = (0u32, 0, 9);
    for byte in data {
        window = window << 8 | u32::from(*byte);
        held += 8;
        if held < width {
            continue;
        }
        held -= width;
        let code = (window >> held) as usize & ((1 << width) - 1);
        match code {
            CLEAR => {
                table.clear();
                (previous, width) = (None, 9);
                continue;
            }
            END => break,
            _ => {}
        }
        let start = bytes.len();
        if code < CLEAR {
            bytes.push(code as u8);
        } else if let Some((from, to)) = table.get(code - 258).copied() {
            bytes.extend_from_within(from..to);
        } else if let Some((from, to)) = previous {
            bytes.extend_from_within(from..to);
            bytes.push(bytes[from]);
        } else {
            break;
        }
        if let Some((from, to)) = previous
            && table.len() < 4096 - 258
        {
            // The entry is the previous one plus the first byte of this one, which are adjacent.
            table.push((from, to + 1));
        }
        previous = Some((start, bytes.len()));
        let next = table.len() + 258 + usize::from(is_early);
        width = match next {
            0..512 => 9,
            512..1024 => 10,
            1024..2048 => 11,
            _ => 12,
        };
        if bytes.len() > most {
            return Err(FilterError::TooLarge);
        }
    }
    Ok(bytes)
}

/// Undoes the predictor of PNG or TIFF, which cross-reference streams use.
fn predicted(mut bytes: Vec<u8>, predictor: &Predictor) -> Vec<u8> {
    let bits = predictor.colors.clamp(1, 64) * predictor.bits.clamp(1, 16);
    let pixel = bits.div_ceil(8);
    let row = (bits * predictor.columns.clamp(1, 1 << 24)).div_ceil(8);
    if predictor.kind == 2 {
        if predictor.bits == 8 {
            for row in bytes.chunks_mut(row) {
                for at in pixel..row.len() {
                    row[at] = row[at].wrapping_add(row[at - pixel]);
                }
            }
        }
        return bytes;
    }
    let mut out: Vec<u8> = Vec::with_capacity(bytes.len());
    for line in bytes.chunks(row + 1) {
        let start = out.len();
        let above = start.checked_sub(row);
        for (at, byte) in line[1..].iter().enumerate() {
            let left = if at >= pixel { out[start + at - pixel] } else { 0 };
            let up = above.map_or(0, |above| out[above + at]);
            let corner = above.filter(|_| at >= pixel).map_or(0, |above| out[above + at - pixel]);
            let guess = match line[0] {
                1 => left,
                2 => up,
                3 => ((u16::from(left) + u16::from(up)) / 2) as u8,
                4 => paeth(left, up, corner),
                _ => 0,
            };
            out.push(byte.wrapping_add(guess));
        }
    }
    out
}

fn paeth(left: u8, up: u8, corner: u8) -> u8 {
    let (a, b, c) = (i16::from(left), i16::from(up), i16::from(corner));
    let guess = a + b - c;
    let (from_a, from_b, from_c) = ((guess - a).abs(), (guess - b).abs(), (guess - c).abs());
    if from_a <= from_b && from_a <= from_c {
        left
    } else if from_b <= from_c {
        up
    } else {
        corner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_agree_with_the_examples_of_the_standard() {
        let plain = Predictor::default();
        let of = |filter: &str, data: &[u8]| decode(filter, data, &plain, 1 << 20).unwrap();
        // ISO 32000-1, 7.4.4.2: 45 45 45 45 45 65 45 45 45 66.
        let lzw = [0x80, 0x0b, 0x60, 0x50, 0x22, 0x0c, 0x0c, 0x85, 0x01];
        assert_eq!(of("LZWDecode", &lzw), [45, 45, 45, 45, 45, 65, 45, 45, 45, 66]);
        assert_eq!(
            of("ASCII85Decode", b"9jqo^BlbD-BleB1DJ+*+F(f,q~>"),
            b"Man is distinguished"
        );
        assert_eq!(of("ASCIIHexDecode", b"61 6 2 7>"), b"abp");
        assert_eq!(of("RunLengthDecode", &[2, 1, 2, 3, 254, 9, 128]), [1, 2, 3, 9, 9, 9]);
        let too_long = [[129u8, 0]; 100].concat();
        assert_eq!(decode("RL", &too_long, &plain, 1000), Err(FilterError::TooLarge));
    }
}
