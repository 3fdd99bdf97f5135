//! Damage to GGUF files: one of their parts is changed, and the file is written again.

use super::mutation::{Harm, Mutated, any_bytes, cut, havoc};
use riffle_testing::damage::{Damage, NUMBERS};

const ALIGNMENT: usize = 32;
/// Types of metadata values: f32, text, list.
const FLOAT: u32 = 6;
const TEXT: u32 = 8;
const LIST: u32 = 9;
/// Tensor types with elements of equal size, so that swapping them gives another legal file: f32 and i32; f16, bf16
/// and i16; q4_0, q4_k, iq4_nl and nvfp4; q5_0 and q5_k; q3_k and iq3_s; iq2_xxs and tq2_0.
const EQUALLY_LARGE: [&[u32]; 6] = [&[0, 26], &[1, 30, 25], &[2, 12, 20, 40], &[6, 13], &[11, 21], &[16, 35]];

/// The parts of a GGUF file.
#[derive(Clone)]
struct Parts {
    tensor_count: u64,
    entry_count: u64,
    entries: Vec<Entry>,
    tensors: Vec<Tensor>,
    data: Vec<u8>,
}

/// A key with its value.
#[derive(Clone)]
struct Entry {
    key: Vec<u8>,
    kind: u32,
    value: Vec<u8>,
}

/// A tensor's description.
#[derive(Clone)]
struct Tensor {
    name: Vec<u8>,
    dimensions: Vec<u64>,
    kind: u32,
    offset: u64,
}

/// Damages a GGUF file.
pub(crate) fn damaged(damage: &mut Damage, bytes: &[u8]) -> Mutated {
    match damage.below(12) {
        0 => return cut(damage, bytes),
        1 => return any_bytes(damage, bytes, Harm::Content),
        2 => return havoc(damage, bytes, Harm::Content),
        _ => {}
    }
    let mut parts = Parts::read(bytes);
    let (harm, what) = parts.change(damage);
    Mutated {
        bytes: parts.write(),
        harm,
        what,
    }
}

impl Parts {
    fn read(bytes: &[u8]) -> Parts {
        let mut reader = Reader { bytes, at: 8 };
        let (tensor_count, entry_count) = (reader.u64(), reader.u64());
        let entries = (0..entry_count).map(|_| reader.entry()).collect();
        let tensors = (0..tensor_count).map(|_| reader.tensor()).collect();
        let data = bytes[reader.at.next_multiple_of(ALIGNMENT)..].to_vec();
        let parts = Parts {
            tensor_count,
            entry_count,
            entries,
            tensors,
            data,
        };
        assert!(parts.write() == bytes, "the parts are read as they were written");
        parts
    }

    fn write(&self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(self.tensor_count.to_le_bytes());
        bytes.extend(self.entry_count.to_le_bytes());
        for entry in &self.entries {
            bytes.extend((entry.key.len() as u64).to_le_bytes());
            bytes.extend(&entry.key);
            bytes.extend(entry.kind.to_le_bytes());
            bytes.extend(&entry.value);
        }
        for tensor in &self.tensors {
            bytes.extend((tensor.name.len() as u64).to_le_bytes());
            bytes.extend(&tensor.name);
            bytes.extend((tensor.dimensions.len() as u32).to_le_bytes());
            for size in &tensor.dimensions {
                bytes.extend(size.to_le_bytes());
            }
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes.extend(&self.data);
        bytes
    }

    /// Changes one part. Returns the possible harm and a description.
    fn change(&mut self, damage: &mut Damage) -> (Harm, String) {
        match damage.below(9) {
            0 => {
                let number = damage.choose(&NUMBERS);
                let before = match damage.below(2) {
                    0 => std::mem::replace(&mut self.tensor_count, number),
                    _ => std::mem::replace(&mut self.entry_count, number),
                };
                (Harm::Structure, format!("a count of {before} set to {number}"))
            }
            1 | 2 => self.retype_entry(damage),
            3 => self.change_entry(damage),
            4 => {
                let twin = self.entries[damage.below(self.entries.len())].clone();
                let what = format!("{} given twice", shown(&twin.key));
                self.entry_count += 1;
                self.entries.push(twin);
                (Harm::Structure, what)
            }
            5 => {
                let gone = self.entries.remove(damage.below(self.entries.len()));
                self.entry_count -= 1;
                // A missing value has a default.
                (Harm::Content, format!("{} left out", shown(&gone.key)))
            }
            6 => {
                let mut twin = self.tensors[damage.below(self.tensors.len())].clone();
                let what = format!("tensor {} given twice", shown(&twin.name));
                if damage.below(2) == 0 {
                    twin.offset = 0;
                }
                self.tensor_count += 1;
                self.tensors.push(twin);
                (Harm::Structure, what)
            }
            _ => self.change_tensor(damage),
        }
    }

    fn retype_entry(&mut self, damage: &mut Damage) -> (Harm, String) {
        let at = damage.below(self.entries.len());
        let entry = &mut self.entries[at];
        let (kind, value) = match damage.below(4) {
            0 => (FLOAT, f32::NAN.to_le_bytes().to_vec()),
            1 => (TEXT, [&3_u64.to_le_bytes()[..], b"abc"].concat()),
            // A Boolean value.
            2 => (7, vec![1]),
            // An empty list.
            _ => (LIST, [&0_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat()),
        };
        let what = format!("{} retyped from {} to {kind}", shown(&entry.key), entry.kind);
        // Another text instead of a text is legal, and an empty list may be legal.
        let harm = if kind == entry.kind && kind != FLOAT {
            Harm::Content
        } else {
            Harm::Structure
        };
        (entry.kind, entry.value) = (kind, value);
        (harm, what)
    }

    fn change_entry(&mut self, damage: &mut Damage) -> (Harm, String) {
        let at = damage.below(self.entries.len());
        let entry = &mut self.entries[at];
        let what = format!("the value of {} changed", shown(&entry.key));
        let number = damage.choose(&NUMBERS).to_le_bytes();
        let from = damage.below(entry.value.len());
        for (byte, new) in entry.value[from..].iter_mut().zip(number) {
            *byte = new;
        }
        let block_count = entry.key.ends_with(b".block_count");
        if block_count {
            (Harm::Structure, what)
        } else {
            (Harm::Content, what)
        }
    }

    fn change_tensor(&mut self, damage: &mut Damage) -> (Harm, String) {
        let at = damage.below(self.tensors.len());
        let name = shown(&self.tensors[at].name);
        let before = self.tensors[at].offset;
        let other = self.tensors[damage.below(self.tensors.len())].offset;
        let tensor = &mut self.tensors[at];
        match damage.below(5) {
            0 => {
                let before = std::mem::replace(&mut tensor.kind, damage.below(44) as u32);
                let harm = if EQUALLY_LARGE
                    .iter()
                    .any(|kinds| kinds.contains(&before) && kinds.contains(&tensor.kind))
                {
                    Harm::Content
                } else {
                    Harm::Structure
                };
                (harm, format!("tensor {name} retyped from {before} to {}", tensor.kind))
            }
            1 => {
                let axis = damage.below(tensor.dimensions.len());
                tensor.dimensions[axis] = damage.choose(&NUMBERS);
                (Harm::Structure, format!("a size of tensor {name} changed"))
            }
            2 => {
                tensor.dimensions.push(damage.choose(&[0, 1, 2, u64::MAX]));
                (Harm::Structure, format!("tensor {name} has a dimension more"))
            }
            3 => {
                tensor.offset = damage.choose(&[other, before + 1, before + 32, u64::MAX, 1 << 40]);
                (Harm::Structure, format!("tensor {name} moved to {}", tensor.offset))
            }
            _ => {
                tensor.name = b"\x1b[2J\xff name".to_vec();
                (Harm::Structure, format!("tensor {name} renamed"))
            }
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Vec<u8> {
        let taken = self.bytes[self.at..self.at + count].to_vec();
        self.at += count;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn text(&mut self) -> Vec<u8> {
        let length = self.u64() as usize;
        self.take(length)
    }

    fn entry(&mut self) -> Entry {
        let key = self.text();
        let kind = self.u32();
        let start = self.at;
        self.skip_value(kind);
        Entry {
            key,
            kind,
            value: self.bytes[start..self.at].to_vec(),
        }
    }

    fn skip_value(&mut self, kind: u32) {
        match kind {
            0 | 1 | 7 => self.at += 1,
            2 | 3 => self.at += 2,
            4..=6 => self.at += 4,
            10..=12 => self.at += 8,
            TEXT => _ = self.text(),
            LIST => {
                let (kind, count) = (self.u32(), self.u64());
                (0..count).for_each(|_| self.skip_value(kind));
            }
            other => panic!("the intact file has a value of type {other}"),
        }
    }

    fn tensor(&mut self) -> Tensor {
        let name = self.text();
        let count = self.u32();
        Tensor {
            name,
            dimensions: (0..count).map(|_| self.u64()).collect(),
            kind: self.u32(),
            offset: self.u64(),
        }
    }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}
