use riffle_attention::{Format, LANES};

use crate::KvError;

/// Tokens in a page unless the caller chooses.
pub const DEFAULT_PAGE_TOKENS: usize = 256;

/// The largest page.
pub const MAX_PAGE_TOKENS: usize = 1024;

/// What determines the bytes of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheShape {
    /// Layers that hold keys and values.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Elements of one key or value: a multiple of 16.
    pub head_dim: usize,
    /// Tokens in a page: a multiple of 16 from 16 to [`MAX_PAGE_TOKENS`].
    pub page_tokens: usize,
    /// Element format of keys.
    pub key_format: Format,
    /// Element format of values.
    pub value_format: Format,
}

impl CacheShape {
    /// Checks that a cache of this shape can be.
    ///
    /// # Errors
    /// [`KvError::Shape`] names the part that cannot.
    pub fn validate(&self) -> Result<(), KvError> {
        // The limits keep every product below within 64 bits.
        let counts = [("layers", self.layers), ("kv_heads", self.kv_heads)];
        for (what, value) in counts {
            if !(1..=1 << 16).contains(&value) {
                return Err(KvError::Shape {
                    what,
                    value,
                    requirement: "from 1 to 65536",
                });
            }
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(LANES) || self.head_dim > 1 << 14 {
            return Err(KvError::Shape {
                what: "head_dim",
                value: self.head_dim,
                requirement: "a multiple of 16 from 16 to 16384",
            });
        }
        if self.page_tokens == 0 || !self.page_tokens.is_multiple_of(LANES) || self.page_tokens > MAX_PAGE_TOKENS {
            return Err(KvError::Shape {
                what: "page_tokens",
                value: self.page_tokens,
                requirement: "a multiple of 16 from 16 to 1024",
            });
        }
        Ok(())
    }

    /// Bytes of K and V that one token adds over all layers and KV heads, pages being full.
    pub fn bytes_per_token(&self) -> u64 {
        self.tables() * self.plane_bytes(1)
    }

    /// Bytes of K and V of one page of one (layer, KV head).
    pub fn page_bytes(&self) -> u64 {
        self.plane_bytes(self.page_tokens)
    }

    /// Pages that `tokens` take over all layers and KV heads.
    pub fn pages_for(&self, tokens: usize) -> usize {
        usize::try_from(self.tables()).map_or(usize::MAX, |tables| {
            tables.saturating_mul(tokens.div_ceil(self.page_tokens))
        })
    }

    /// Bytes that `tokens` take over all layers and KV heads, in whole pages.
    pub fn bytes_for(&self, tokens: usize) -> u64 {
        (self.pages_for(tokens) as u64).saturating_mul(self.page_bytes())
    }

    /// The most tokens whose pages fit in `budget_bytes` when every layer holds them.
    pub fn tokens_for(&self, budget_bytes: u64) -> usize {
        let pages = budget_bytes / (self.tables() * self.page_bytes());
        usize::try_from(pages).map_or(usize::MAX, |pages| pages.saturating_mul(self.page_tokens))
    }

    /// Bytes of the keys of a page.
    pub(crate) fn key_plane_bytes(&self) -> u64 {
        self.key_format.plane_bytes(self.page_tokens, self.head_dim) as u64
    }

    /// Bytes of the values of a page.
    pub(crate) fn value_plane_bytes(&self) -> u64 {
        self.value_format.plane_bytes(self.page_tokens, self.head_dim) as u64
    }

    /// Page tables: one for each layer and KV head.
    pub(crate) fn tables(&self) -> u64 {
        self.layers as u64 * self.kv_heads as u64
    }

    fn plane_bytes(&self, tokens: usize) -> u64 {
        (self.key_format.plane_bytes(tokens, self.head_dim) + self.value_format.plane_bytes(tokens, self.head_dim))
            as u64
    }
}

/// The largest number up to `limit` for which `fits` holds, given that it holds for all smaller ones too; 0 if for none.
pub fn largest(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_fitting_number_is_found_exactly() {
        assert_eq!(largest(100, |n| n <= 37), 37);
        assert_eq!(largest(usize::MAX, |_| true), usize::MAX);
        assert_eq!(largest(100, |_| false), 0);
    }
}
