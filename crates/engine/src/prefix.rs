//! Beginnings that were read before, by this process or another.

use std::path::PathBuf;
use std::time::Instant;

use riffle_kv::PrefixCache;
use serde::Serialize;

use crate::origin::Origin;
use crate::{EngineError, EngineOptions, Session};

/// Bytes a prefix cache's pages take at most unless the caller says.
pub const DEFAULT_PREFIX_CACHE_BYTES: u64 = 8 << 30;

/// A folder of beginnings.
#[derive(Debug, Clone)]
pub struct PrefixCacheOptions {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
    /// Bytes its pages take at most.
    pub budget_bytes: u64,
}

/// What a prefix cache did in a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PrefixReport {
    /// Its folder.
    pub folder: String,
    /// Tokens of the prompt that came from it.
    pub found_tokens: usize,
    /// Milliseconds that took.
    pub load_ms: f64,
    /// Pages of tokens that had changed on disk and were removed; they were read from the prompt again.
    pub damaged_blocks: usize,
    /// Tokens of the prompt that it keeps now.
    pub kept_tokens: usize,
    /// Milliseconds it took to keep them.
    pub store_ms: f64,
    /// Bytes its pages take now.
    pub bytes: u64,
}

/// The prefix cache of a run.
pub(crate) struct RunPrefix {
    cache: PrefixCache,
    pub(crate) report: PrefixReport,
}

impl RunPrefix {
    pub(crate) fn open(options: &PrefixCacheOptions) -> Result<Self, EngineError> {
        Ok(Self {
            cache: PrefixCache::open(&options.folder, options.budget_bytes)?,
            report: PrefixReport {
                folder: options.folder.display().to_string(),
                ..PrefixReport::default()
            },
        })
    }

    /// [`Session::fill_prefix`], measured.
    pub(crate) fn fill(&mut self, session: &mut Session, tokens: &[u32]) -> Result<usize, EngineError> {
        session.engine().fingerprint()?;
        let start = Instant::now();
        let damaged = session.fill_prefix(&self.cache, tokens)?;
        self.report.load_ms = start.elapsed().as_secs_f64() * 1e3;
        self.report.damaged_blocks = damaged;
        self.report.found_tokens = session.tokens().len();
        Ok(self.report.found_tokens)
    }

    /// [`Session::store_prefix`], measured.
    pub(crate) fn store(&mut self, session: &Session) -> Result<(), EngineError> {
        let start = Instant::now();
        let stored = session.store_prefix(&self.cache)?;
        self.report.store_ms = start.elapsed().as_secs_f64() * 1e3;
        (self.report.kept_tokens, self.report.bytes) = stored;
        Ok(())
    }
}

impl Session {
    /// Fills an empty session with a beginning of `tokens` that the prefix cache keeps, at most all but the last token,
    /// so that reading the rest gives what reading all would have given. Returns how many damaged blocks were removed
    /// on the way.
    ///
    /// With full attention that holds to the bit. A sparse prefill policy finds only pages that it made itself, cut into
    /// the same chunks: as good as its own, and the same to the bit where its choices do not depend on where a prompt
    /// ends.
    ///
    /// # Errors
    /// [`EngineError::PrefixPolicy`] when a policy needs to have seen the queries; [`EngineError::PrefixRecurrent`];
    /// [`EngineError::Kv`].
    pub fn fill_prefix(&mut self, cache: &PrefixCache, tokens: &[u32]) -> Result<usize, EngineError> {
        let identity = self.prefix_identity()?;
        self.truncate(0)?;
        let options = self.engine.options();
        let grid = grid(options);
        let most = tokens.len().saturating_sub(1) / grid * grid;
        let looked_at = most.next_multiple_of(options.page_tokens).min(tokens.len());
        let found = cache.fill(&mut self.cache, &identity, &tokens[..looked_at])?;
        let kept = found.tokens.min(most) / grid * grid;
        self.cache.truncate(kept);
        self.tokens.extend_from_slice(&tokens[..kept]);
        self.prefilled = kept;
        Ok(found.damaged_blocks)
    }

    /// Keeps the whole pages of what was read as prompt. Returns the tokens kept and the bytes that all pages of the
    /// prefix cache take.
    ///
    /// # Errors
    /// As [`Session::fill_prefix`].
    pub fn store_prefix(&self, cache: &PrefixCache) -> Result<(usize, u64), EngineError> {
        let identity = self.prefix_identity()?;
        let stored = cache.store(&self.cache, &identity, &self.tokens[..self.prefilled])?;
        Ok((stored.tokens, stored.bytes))
    }

    fn prefix_identity(&self) -> Result<Vec<u8>, EngineError> {
        if !self.recurrence.state.is_empty() {
            return Err(EngineError::PrefixRecurrent);
        }
        let options = self.engine.options();
        if options.window.is_some() {
            let requirement = "a window forgets the beginning that it would keep: leave one of the two out";
            return Err(EngineError::option(
                "--prefix-cache",
                "given with --window-size",
                requirement,
            ));
        }
        let phases = [(&self.prefill, &options.prefill), (&self.decode, &options.decode)];
        for (policies, rules) in phases {
            if policies.iter().any(|policy| !policy.follows_from_keys()) {
                return Err(EngineError::PrefixPolicy(rules.to_string()));
            }
        }
        let mut origin = Origin::of_pages(&self.engine)?;
        if options.prefill.specs().any(|spec| spec.name() != "full") {
            // What such a policy chooses depends on the chunk it is asked for.
            origin.add("-b -ub", format!("{} {}", options.batch_tokens, options.chunk_tokens));
        }
        Ok(origin.to_bytes())
    }
}

/// A prompt is cut into chunks at these places, whatever its length: to go on from there gives the same chunks.
fn grid(options: &EngineOptions) -> usize {
    if options.batch_tokens.is_multiple_of(options.chunk_tokens) {
        options.chunk_tokens
    } else {
        options.batch_tokens
    }
}
