//! Options of the KV cache.

use riffle_attention::Format;
use riffle_kv::KvTiers;

use crate::EngineError;
use crate::attention::Rotation;
use crate::error::require;

/// Options of the KV cache: the format of its pages, their places, and how many tokens they hold.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CacheOptions {
    /// Tokens in a page of the KV cache: a multiple of 16.
    pub page_tokens: usize,
    /// Element format of cached keys.
    pub key_format: Format,
    /// Element format of cached values.
    pub value_format: Format,
    /// Rotate heads before they are cached ([`riffle_attention::rotate_heads`]): both planes, none, or for `None` those
    /// in a 4-bit format, which lose least so.
    pub rotate: Option<bool>,
    /// Places where KV pages may lie. The use of the cache ([`KvTiers::outlook`]) and a budget of RAM that is not given
    /// follow from the model and from the memory there is.
    pub kv_tiers: KvTiers,
    /// Tokens that all sequences together may hold, shared ones counted once; `None` is one context full.
    pub pool_tokens: Option<usize>,
    /// Keep every page of layers with a sliding window, so that whole beginnings can be kept for other sequences: set for
    /// [`store_prefix`](crate::store_prefix) and [`share_prefix`](crate::share_prefix).
    /// Otherwise these layers hold their windows alone.
    pub keeps_beginnings: bool,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            page_tokens: riffle_kv::DEFAULT_PAGE_TOKENS,
            key_format: Format::F16,
            value_format: Format::F16,
            rotate: None,
            kv_tiers: KvTiers::memory(None),
            pool_tokens: None,
            keeps_beginnings: false,
        }
    }
}

impl CacheOptions {
    /// Checks these options by themselves.
    pub(super) fn validate(&self) -> Result<(), EngineError> {
        let tiers = &self.kv_tiers;
        require(tiers.slots > 0, "slots", 0, "at least 1 page has to be on its way")?;
        let Some(folder) = tiers.disk.as_ref().map(|disk| &disk.folder) else {
            return Ok(());
        };
        let requirement = "there is no such folder: create it, or choose another";
        require(folder.is_dir(), "disk.folder", folder.display(), requirement)
    }

    /// The planes that hold rotated heads.
    pub(crate) fn rotation(&self) -> Rotation {
        let rotates = |format: Format| self.rotate.unwrap_or_else(|| format.gains_by_rotation());
        Rotation {
            keys: rotates(self.key_format),
            values: rotates(self.value_format),
        }
    }
}
