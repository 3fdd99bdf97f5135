//! SentencePiece's table of replacements, from its models and Unigram tokenizer.json files.

use unicode_segmentation::UnicodeSegmentation;

use super::base64::from_base64;

/// Clusters with more bytes are looked up character by character.
const LONGEST_CLUSTER_BYTES: usize = 5;

/// A double-array trie from texts to replacements, in SentencePiece's binary form. Every step is checked, so a
/// damaged table gives wrong replacements but does no harm.
#[derive(Debug, Clone)]
pub(crate) struct CharacterMap {
    units: Vec<u32>,
    /// Replacements, each ended by a zero byte.
    replacements: String,
}

impl CharacterMap {
    /// Reads the base64 text of the table.
    pub(crate) fn new(base64: &str) -> Result<CharacterMap, String> {
        let bytes = from_base64(base64).ok_or("its precompiled_charsmap is damaged: it is not base64")?;
        CharacterMap::from_bytes(&bytes)
    }

    /// Reads the table of a SentencePiece model; empty if it replaces nothing.
    pub(crate) fn from_model(bytes: &[u8]) -> Result<Option<CharacterMap>, String> {
        if bytes.is_empty() {
            return Ok(None);
        }
        CharacterMap::from_bytes(bytes).map(Some)
    }

    fn from_bytes(bytes: &[u8]) -> Result<CharacterMap, String> {
        let damaged = |what: &str| format!("its precompiled_charsmap is damaged: {what}");
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

    /// The replacement of the shortest entry that is a prefix of `text`.
    fn replacement(&self, text: &str) -> Option<&str> {
        self.entries(text).next().map(|(_, replacement)| replacement)
    }

    /// The replacement of the longest entry that is a prefix of `text`, and the number of bytes it replaces.
    pub(crate) fn longest(&self, text: &str) -> Option<(usize, &str)> {
        self.entries(text)
            .filter(|(bytes, _)| text.is_char_boundary(*bytes))
            .last()
    }

    /// Every entry that is a prefix of `text`, by ascending length: its bytes and its replacement.
    fn entries<'m: 't, 't>(&'m self, text: &'t str) -> impl Iterator<Item = (usize, &'m str)> + 't {
        let unit = |at: usize| self.units.get(at).copied();
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut node = unit(0).map(offset);
        let steps = text.bytes().enumerate().map_while(move |(at, byte)| {
            let place = node? ^ usize::from(byte);
            let found = unit(place).filter(|found| byte != 0 && found & (1 << 31 | 0xff) == u32::from(byte))?;
            let next = place ^ offset(found);
            node = Some(next);
            Some((at + 1, (found >> 8 & 1 == 1).then_some(next)))
        });
        steps.filter_map(move |(bytes, leaf)| {
            let start = (unit(leaf?)? & !(1 << 31)) as usize;
            let rest = self.replacements.get(start..)?;
            Some((bytes, &rest[..rest.find('\0').unwrap_or(rest.len())]))
        })
    }
}
