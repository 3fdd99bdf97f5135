//! Damages files reproducibly.

use std::fs;
use std::path::{Path, PathBuf};

/// The inputs of a target: small valid ones, and inputs of earlier faults.
pub fn inputs(target: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let mut paths: Vec<PathBuf> = ["seeds", "found"]
        .iter()
        .filter_map(|folder| fs::read_dir(root.join(folder).join(target)).ok())
        .flatten()
        .map(|entry| entry.expect("the folder can be listed").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "there are no inputs for {target}");
    paths
        .iter()
        .map(|path| fs::read(path).expect("the input can be read"))
        .collect()
}

/// Unlikely values of sizes, counts and offsets.
pub const NUMBERS: [u64; 12] = [
    0,
    1,
    2,
    255,
    65_536,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 48,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];
const WORDS: [&str; 14] = [
    "null",
    "-1",
    "0",
    "1e400",
    "NaN",
    "99999999999999999999",
    "4294967296",
    "[]",
    "{}",
    "\"\"",
    "[[[[[[[[",
    "true",
    "\"\\ud800\"",
    "{\"a\":{\"a\":{\"a\":1}}}",
];

/// A generator of damage (splitmix64).
pub struct Damage(u64);

impl Damage {
    /// Equal seeds give equal damage.
    pub fn new(seed: u64) -> Damage {
        Damage(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }

    /// A random element of `of`.
    pub fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A damaged copy of one of `inputs`: flipped bits, replaced numbers and words, parts removed, duplicated or
    /// copied from another input, or a missing end.
    pub fn damaged(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(4) {
            self.hurt(&mut bytes, inputs);
        }
        bytes
    }

    fn hurt(&mut self, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        // Headers come first, so half of the damage affects the first 600 bytes.
        let reach = if self.bits().is_multiple_of(2) {
            bytes.len().min(600)
        } else {
            bytes.len()
        };
        let at = self.below(reach);
        let end = (at + self.below(80)).min(bytes.len());
        match self.below(10) {
            0 | 1 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (self.0 % 8);
                }
            }
            2..=4 => {
                let number = self.choose(&NUMBERS).to_le_bytes();
                let width = self.choose(&[1, 2, 4, 8, 8]);
                for (byte, new) in bytes[at..].iter_mut().zip(&number[..width]) {
                    *byte = *new;
                }
            }
            5 => {
                // An integer in a text.
                let digit = |byte: &u8| byte.is_ascii_digit();
                let Some(start) = bytes[at..].iter().position(digit).map(|found| at + found) else {
                    return;
                };
                let length = bytes[start..].iter().take_while(|byte| digit(byte)).count();
                let word = self.choose(&WORDS);
                bytes.splice(start..start + length, word.bytes());
            }
            6 => {
                bytes.drain(at..end);
            }
            7 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(end..end, part);
            }
            8 => {
                let other = &inputs[self.below(inputs.len())];
                let from = self.below(other.len());
                let part = &other[from..(from + self.below(200)).min(other.len())];
                bytes.splice(at..end, part.iter().copied());
            }
            _ => {
                let length = self.below(bytes.len() + 1);
                bytes.truncate(length);
            }
        }
    }
}
