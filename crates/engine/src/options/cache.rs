//! Options of the KV cache.

use riffle_attention::Format;
use riffle_kv::KvTiers;

use crate::EngineError;
use crate::attention::Rotation;
use crate::error::require;

/// Options of the KV cache: the format of its pages, their tiers, and the number of tokens.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CacheOptions {
    /// Tokens in a page of the KV cache: a multiple of 16.
    pub page_tokens: usize,
    /// Element format of cached keys.
    pub key_format: Format,
    /// Element format of cached values.
    pub value_format: Format,
    /// Rotate heads before they are cached ([`riffle_attention::rotate_heads`]): both planes, or none. `None` rotates
    /// planes in a 4-bit format, which profit most.
    pub rotate: Option<bool>,
    /// Tiers for KV pages. The expected use ([`KvTiers::outlook`]) and a missing RAM budget follow from the model and
    /// the available memory.
    pub kv_tiers: KvTiers,
    /// Maximum number of tokens of all sequences together, shared ones counted once; `None` means one full context.
    pub pool_tokens: Option<usize>,
    /// Keep every page of layers with a sliding window, so that complete beginnings can serve other sequences, for
    /// [`store_prefix`](crate::store_prefix) and [`share_prefix`](crate::share_prefix). Otherwise these layers store
    /// only their windows.
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
    /// Checks these options without the model and the machine.
    pub(super) fn validate(&self) -> Result<(), EngineError> {
        let tiers = &self.kv_tiers;
        require(tiers.slots > 0, "slots", 0, "at least 1 page has to be on its way")?;
        let Some(folder) = tiers.disk.as_ref().map(|disk| &disk.folder) else {
            return Ok(());
        };
        let requirement = "there is no such folder: create it, or choose another";
        require(folder.is_dir(), "disk.folder", folder.display(), requirement)
    }

    /// The planes that store rotated heads.
    pub(crate) fn rotation(&self) -> Rotation {
        let rotates = |format: Format| self.rotate.unwrap_or_else(|| format.gains_by_rotation());
        Rotation {
            keys: rotates(self.key_format),
            values: rotates(self.value_format),
        }
    }
}
