//! Damage that any file can take: bits, bytes, its end, its parts.

use riffle_testing::damage::Damage;

/// Effect of damage on a file's meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// The damage breaks a guarantee of the format, so the answer may not change silently.
    Structure,
    /// The result may be a legal file with other contents, so answers are not compared.
    Content,
}

/// A damaged file.
#[derive(Debug)]
pub(crate) struct Mutated {
    pub(crate) bytes: Vec<u8>,
    pub(crate) harm: Harm,
    /// Description of the damage for people.
    pub(crate) what: String,
}

/// Damages bytes without regard to their meaning. `harm` is the effect on a file of this format.
pub(crate) fn any_bytes(damage: &mut Damage, bytes: &[u8], harm: Harm) -> Mutated {
    let mut hurt = bytes.to_vec();
    let at = damage.below(bytes.len());
    let what = match damage.below(7) {
        0..=2 => {
            let Some(byte) = hurt.get_mut(at) else {
                return cut(damage, bytes);
            };
            *byte ^= 1 << damage.below(8);
            format!("a bit of byte {at} flipped")
        }
        3 => {
            let end = (at + 1 + damage.below(64)).min(hurt.len());
            hurt[at..end].fill(0);
            format!("bytes {at} to {end} set to zero")
        }
        4 => {
            let end = (at + 1 + damage.below(64)).min(hurt.len());
            hurt.drain(at..end);
            format!("bytes {at} to {end} left out")
        }
        5 => {
            let end = (at + 1 + damage.below(64)).min(hurt.len());
            let part = hurt[at..end].to_vec();
            hurt.splice(at..at, part);
            format!("bytes {at} to {end} doubled")
        }
        _ => return cut(damage, bytes),
    };
    Mutated {
        bytes: hurt,
        harm,
        what,
    }
}

/// Several kinds of damage at once, like a fuzzer.
pub(crate) fn havoc(damage: &mut Damage, bytes: &[u8], harm: Harm) -> Mutated {
    Mutated {
        bytes: damage.damaged(&[bytes.to_vec()]),
        harm,
        what: "damaged in several places".to_owned(),
    }
}

/// Truncates the file; no format here allows that.
pub(crate) fn cut(damage: &mut Damage, bytes: &[u8]) -> Mutated {
    let length = damage.below(bytes.len());
    Mutated {
        bytes: bytes[..length].to_vec(),
        harm: Harm::Structure,
        what: format!("cut to {length} of {} bytes", bytes.len()),
    }
}
