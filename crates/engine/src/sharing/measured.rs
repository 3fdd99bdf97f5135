//! A prefix cache on disk with statistics of its use.

use std::path::PathBuf;
use std::time::Instant;

use riffle_kv::{KvError, PrefixCache};
use serde::Serialize;

use super::disk::store_prefix_up_to;
use crate::{EngineError, Sequence};

/// Default limit of a prefix cache's pages, in bytes.
pub const DEFAULT_PREFIX_CACHE_BYTES: u64 = 8 << 30;

/// A folder of beginnings.
#[derive(Debug, Clone)]
pub struct PrefixCacheOptions {
    /// The folder, which is created if necessary.
    pub folder: PathBuf,
    /// Maximum number of bytes of pages in the cache.
    pub budget_bytes: u64,
}

/// The use of a prefix cache in a run.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct PrefixReport {
    /// Folder of the cache.
    pub folder: String,
    /// Prompt tokens found in the cache.
    pub found_tokens: usize,
    /// Milliseconds for loading the found tokens.
    pub load_ms: f64,
    /// Pages that had changed on disk and were removed; their tokens were read from the prompt again.
    pub damaged_blocks: usize,
    /// Prompt tokens stored now.
    pub kept_tokens: usize,
    /// Milliseconds for storing tokens.
    pub store_ms: f64,
    /// Bytes of all pages in the cache now.
    pub bytes: u64,
    /// Notices for the user: that the cache was started again, or why it stores nothing.
    pub notices: Vec<String>,
}

/// A prefix cache with statistics.
pub(crate) struct MeasuredPrefixCache {
    pub(crate) cache: PrefixCache,
    pub(crate) report: PrefixReport,
    /// True after the folder failed: it is not used again.
    is_lost: bool,
}

impl MeasuredPrefixCache {
    pub(crate) fn open(options: &PrefixCacheOptions) -> Result<Self, EngineError> {
        Ok(Self {
            cache: PrefixCache::open(&options.folder, options.budget_bytes)?,
            report: PrefixReport {
                folder: options.folder.display().to_string(),
                ..PrefixReport::default()
            },
            is_lost: false,
        })
    }

    /// Measures `load`, which fills a sequence from the cache. `load` returns its own result and the number of damaged
    /// blocks that it removed.
    pub(crate) fn load<T>(
        &mut self,
        sequence: &mut Sequence,
        load: impl FnOnce(&mut Sequence, &PrefixCache) -> Result<(T, usize), EngineError>,
    ) -> Result<T, EngineError> {
        // The weights are hashed once per engine, which is not a part of loading.
        sequence.engine().fingerprint()?;
        let (began, held_tokens) = (Instant::now(), sequence.tokens().len());
        let loaded = load(sequence, &self.cache);
        self.report.notices.extend(self.cache.take_notice());
        let (loaded, damaged_blocks) = loaded?;
        self.report.found_tokens += sequence.tokens().len().saturating_sub(held_tokens);
        self.report.damaged_blocks += damaged_blocks;
        self.report.load_ms += began.elapsed().as_secs_f64() * 1e3;
        Ok(loaded)
    }

    /// [`store`](Self::store) without limit. After a failure the run continues, and the report gives the reason.
    pub(crate) fn store_if_possible(&mut self, sequence: &Sequence) {
        if !self.is_lost
            && let Err(error) = self.store(sequence, usize::MAX)
        {
            self.lose_folder(format!("what was read could not be kept: {error}"));
        }
    }

    /// Continues without the folder after an error of [`load`](Self::load); the report gives the reason.
    ///
    /// # Errors
    /// Errors unrelated to the folder are returned.
    pub(crate) fn lose(&mut self, error: EngineError) -> Result<(), EngineError> {
        match error {
            EngineError::Kv(error @ (KvError::File { .. } | KvError::Index { .. } | KvError::Busy { .. })) => {
                self.lose_folder(format!("what was read is neither looked up nor kept: {error}"));
                Ok(())
            }
            error => Err(error),
        }
    }

    fn lose_folder(&mut self, notice: String) {
        self.is_lost = true;
        self.report.notices.push(notice);
    }

    /// Measures [`store_prefix_up_to`]. Returns the number of these tokens in the cache.
    pub(crate) fn store(&mut self, sequence: &Sequence, most_tokens: usize) -> Result<usize, EngineError> {
        let began = Instant::now();
        let stored = store_prefix_up_to(sequence, &self.cache, most_tokens);
        self.report.notices.extend(self.cache.take_notice());
        let (kept_tokens, bytes) = stored?;
        // With a window, less is stored at the end than during reading.
        self.report.kept_tokens = self.report.kept_tokens.max(kept_tokens);
        self.report.bytes = bytes;
        self.report.store_ms += began.elapsed().as_secs_f64() * 1e3;
        Ok(kept_tokens)
    }
}
