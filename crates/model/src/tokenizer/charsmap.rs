//! SentencePiece's table of replacements, as a Unigram tokenizer.json carries it.

use unicode_segmentation::UnicodeSegmentation;

/// Longer clusters of characters are looked up character by character.
const LONGEST_CLUSTER_BYTES: usize = 5;

/// A double-array trie of texts and what takes their place, in SentencePiece's binary form. Every step is checked, so a
/// damaged table replaces wrongly but harms nothing.
#[derive(Debug, Clone)]
pub(crate) struct CharacterMap {
    units: Vec<u32>,
    /// Replacements, each ended by a zero byte.
    replacements: String,
}

impl CharacterMap {
    /// Reads the base64 text of the table.
    pub(crate) fn new(base64: &str) -> Result<CharacterMap, String> {
        let damaged = |what: &str| format!("its precompiled_charsmap is damaged: {what}");
        let bytes = from_base64(base64).ok_or_else(|| damaged("it is not base64"))?;
        let (length, rest) = bytes.split_first_chunk().ok_or_else(|| damaged("it is empty"))?;
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > rest.len() || !length.is_multiple_of(4) {
            return Err(damaged("its table is longer than the text"));
        }
        let (units, replacements) = rest.split_at(length);
        let units = units.chunks_exact(4);
        Ok(CharacterMap {
            units: units
                .map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]))
                .collect(),
            replacements: String::from_utf8(replacements.to_vec()).map_err(|_| damaged("it is not valid UTF-8"))?,
        })
    }

    /// Appends `text` to `output`, replaced cluster by cluster.
    pub(crate) fn replace(&self, text: &str, mut push: impl FnMut(&str) -> Result<(), String>) -> Result<(), String> {
        for cluster in text.graphemes(true) {
            let whole = (cluster.len() <= LONGEST_CLUSTER_BYTES)
                .then(|| self.replacement(cluster))
                .flatten();
            if let Some(replacement) = whole {
                push(replacement)?;
                continue;
            }
            for (at, character) in cluster.char_indices() {
                let part = &cluster[at..at + character.len_utf8()];
                push(self.replacement(part).unwrap_or(part))?;
            }
        }
        Ok(())
    }

    /// The replacement of the shortest entry that `text` begins with.
    fn replacement(&self, text: &str) -> Option<&str> {
        let unit = |at: usize| self.units.get(at).copied();
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut node = offset(unit(0)?);
        for byte in text.bytes() {
            if byte == 0 {
                return None;
            }
            node ^= usize::from(byte);
            let found = unit(node)?;
            if found & (1 << 31 | 0xff) != u32::from(byte) {
                return None;
            }
            node ^= offset(found);
            if found >> 8 & 1 == 1 {
                let start = (unit(node)? & !(1 << 31)) as usize;
                let rest = self.replacements.get(start..)?;
                return Some(&rest[..rest.find('\0').unwrap_or(rest.len())]);
            }
        }
        None
    }
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0);
    for character in text.as_bytes()[..text.len() - padding].iter() {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}
