//! Names blocks of text, independent of the location of their keys and values.

use std::sync::Arc;

use twox_hash::XxHash3_128;

/// A page of tokens after its parent block. Its key is a hash of all tokens up to its end and of the page size. Blocks
/// of the same text therefore have the same key in memory, on disk and on other machines. The key is independent of
/// model and formats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextBlock {
    /// Hash of all tokens up to the block's end.
    pub key: u128,
    /// Key of the parent block; `None` for the first.
    pub parent: Option<u128>,
    /// Tokens of the block.
    pub tokens: Arc<[u32]>,
}

impl TextBlock {
    /// The block of `tokens` after a parent.
    pub fn after(parent: Option<u128>, tokens: &[u32]) -> Self {
        Self {
            key: key_after(parent, tokens),
            parent,
            tokens: tokens.into(),
        }
    }

    /// The whole pages at the start of `tokens`.
    ///
    /// ```
    /// use riffle_kv::TextBlock;
    ///
    /// let tokens: Vec<u32> = (0..40).collect();
    /// let blocks: Vec<TextBlock> = TextBlock::chain(16, &tokens).collect();
    /// assert_eq!(blocks.len(), 2);
    /// assert_eq!(blocks[1].parent, Some(blocks[0].key));
    /// assert_eq!(blocks[1].tokens[..], tokens[16..32]);
    /// ```
    pub fn chain(page_tokens: usize, tokens: &[u32]) -> impl Iterator<Item = Self> {
        tokens.chunks_exact(page_tokens).scan(None, |parent, tokens| {
            let block = Self::after(*parent, tokens);
            *parent = Some(block.key);
            Some(block)
        })
    }
}

/// The key of a block of `tokens` after a parent.
pub(crate) fn key_after(parent: Option<u128>, tokens: &[u32]) -> u128 {
    let mut hash = XxHash3_128::new();
    match parent {
        Some(parent) => hash.write(&parent.to_le_bytes()),
        None => hash.write(&(tokens.len() as u64).to_le_bytes()),
    }
    tokens.iter().for_each(|token| hash.write(&token.to_le_bytes()));
    hash.finish_128()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_follows_from_all_tokens_up_to_the_end_and_from_the_page_size() {
        let tokens: Vec<u32> = (0..64).collect();
        let keys = |page: usize, tokens: &[u32]| -> Vec<u128> {
            TextBlock::chain(page, tokens).map(|block| block.key).collect()
        };
        let (small, large) = (keys(16, &tokens), keys(32, &tokens));
        assert_eq!((small.len(), large.len()), (4, 2));
        assert!(small.iter().all(|key| !large.contains(key)));
        let mut other = tokens.clone();
        other[20] += 1;
        let other = keys(16, &other);
        assert_eq!(small[0], other[0]);
        assert!((1..4).all(|block| small[block] != other[block]));
    }
}
