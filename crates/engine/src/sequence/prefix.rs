//! Beginnings that were read before, by this process or another.

use std::path::PathBuf;
use std::time::Instant;

use riffle_kv::PrefixCache;
use riffle_model::RecurrentState;
use serde::Serialize;

use crate::origin::Origin;
use crate::sequence::sliding::lcm;
use crate::{EngineError, EngineOptions, Sequence};

/// Bytes a prefix cache's pages take at most unless the caller says.
pub const DEFAULT_PREFIX_CACHE_BYTES: u64 = 8 << 30;

/// Tokens after which the state of recurrent layers is kept on the way.
const STATE_TOKENS: usize = 16 << 10;

/// Tokens that recurrent layers take in together: batches of whole steps give the same bits however they are cut.
const RECURRENT_STEP: usize = 64;

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

    /// [`Sequence::fill_prefix`], measured.
    pub(crate) fn fill(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<usize, EngineError> {
        sequence.engine().fingerprint()?;
        let start = Instant::now();
        let damaged = sequence.fill_prefix(&self.cache, tokens)?;
        self.report.load_ms = start.elapsed().as_secs_f64() * 1e3;
        self.report.damaged_blocks = damaged;
        self.report.found_tokens = sequence.tokens().len();
        Ok(self.report.found_tokens)
    }

    /// [`Sequence::store_prefix`], measured.
    pub(crate) fn store(&mut self, sequence: &Sequence) -> Result<(), EngineError> {
        let start = Instant::now();
        let stored = sequence.store_prefix(&self.cache)?;
        self.report.store_ms = start.elapsed().as_secs_f64() * 1e3;
        // With a window only what was kept on the way is there.
        self.report.kept_tokens = self.report.kept_tokens.max(stored.0);
        self.report.bytes = stored.1;
        Ok(())
    }
}

impl Sequence {
    /// Fills an empty sequence with a beginning of `tokens` that the prefix cache keeps, at most all but the last token,
    /// so that reading the rest gives what reading all would have given. Returns how many damaged blocks were removed
    /// on the way.
    ///
    /// A model with recurrent layers finds the beginnings whose state was kept with them ([`Sequence::store_prefix`]).
    ///
    /// With a window ([`StreamWindow`](crate::StreamWindow)), and where layers have windows of their own that
    /// [`EngineOptions::keeps_beginnings`] does not keep whole, it finds at most what is read before the first page leaves.
    ///
    /// With full attention that holds to the bit. A sparse prefill policy finds only pages that it made itself, cut into
    /// the same chunks: as good as its own, and the same to the bit where its choices do not depend on where a prompt
    /// ends.
    ///
    /// # Errors
    /// [`EngineError::PrefixPolicy`] when a policy needs to have seen the queries; [`EngineError::Kv`].
    pub fn fill_prefix(&mut self, cache: &PrefixCache, tokens: &[u32]) -> Result<usize, EngineError> {
        let identity = self.prefix_identity()?;
        self.forget_all();
        let options = self.engine.options();
        let grid = grid(options);
        let most = tokens.len().saturating_sub(1).min(self.servable_tokens()) / grid * grid;
        if !self.recurrence.state.is_empty() {
            return self.fill_recurrent(cache, &identity, &tokens[..most]);
        }
        let looked_at = most.next_multiple_of(options.page_tokens).min(tokens.len());
        let looked_at = looked_at.min(self.servable_tokens());
        let found = cache.fill(&mut self.cache, &identity, &tokens[..looked_at])?;
        let kept = found.tokens.min(most) / grid * grid;
        self.cache.truncate(kept);
        self.tokens.extend_from_slice(&tokens[..kept]);
        self.prefilled = kept;
        Ok(found.damaged_blocks)
    }

    /// [`Sequence::fill_prefix`] of a model with recurrent layers: up to where their state is known.
    fn fill_recurrent(&mut self, cache: &PrefixCache, identity: &[u8], tokens: &[u32]) -> Result<usize, EngineError> {
        let (mut found, note) = cache.fill_with_note(&mut self.cache, identity, tokens)?;
        let Some(note) = note else {
            return Ok(found.damaged_blocks);
        };
        let state = RecurrentState::from_bytes(self.engine.model().config(), &note);
        match state {
            Ok(state) if state.tokens() == Some(found.tokens) => {
                self.recurrence.resume(state)?;
                self.tokens.extend_from_slice(&tokens[..found.tokens]);
                self.prefilled = found.tokens;
            }
            _ => {
                self.cache.clear();
                found.damaged_blocks += 1;
            }
        }
        Ok(found.damaged_blocks)
    }

    /// Keeps the whole pages of what was read as prompt. Returns the tokens kept and the bytes that all pages of the
    /// prefix cache take.
    ///
    /// Where a window, the sequence's or a layer's, has moved on nothing is kept any more
    /// ([`EngineOptions::keeps_beginnings`]). The state of recurrent layers is kept with the pages where the sequence holds whole pages of prompt and nothing else; a
    /// model with such layers keeps nothing elsewhere. So it is called on the way, at [`Sequence::prefix_cuts`].
    ///
    /// # Errors
    /// As [`Sequence::fill_prefix`].
    pub fn store_prefix(&self, cache: &PrefixCache) -> Result<(usize, u64), EngineError> {
        let identity = self.prefix_identity()?;
        let read = &self.tokens[..self.prefilled];
        let stored = match self.recurrence.state.is_empty() {
            _ if !self.placement.rolling.is_whole() || !self.placement.evicted.is_empty() => {
                cache.store(&self.cache, &identity, &[])?
            }
            true => cache.store(&self.cache, &identity, read)?,
            false if self.recurrence.state.tokens() == Some(read.len()) && self.is_at_page() => {
                cache.store_with_note(&self.cache, &identity, read, &self.recurrence.state.to_bytes())?
            }
            false => cache.store(&self.cache, &identity, &[])?,
        };
        Ok((stored.tokens, stored.bytes))
    }

    /// Lengths of a prompt of `tokens` tokens at which it is worth keeping what was read: before a window moves on, and the
    /// state of recurrent layers shortly before the end, where the next question about the same text will part from it,
    /// and now and then on the way. Empty for other models, whose pages say everything at the end.
    pub fn prefix_cuts(&self, tokens: usize) -> Vec<usize> {
        let whole = self.servable_tokens();
        if self.recurrence.state.is_empty() {
            let (page, grid) = (self.engine.options().page_tokens, grid(self.engine.options()));
            let cut = whole / lcm(page, grid) * lcm(page, grid);
            return Vec::from_iter((cut > self.tokens.len() && whole < tokens).then_some(cut));
        }
        let (page, grid) = (self.engine.options().page_tokens, grid(self.engine.options()));
        // Whole pages, whole chunks, and whole steps of the recurrent layers' own.
        let step = [page, grid, RECURRENT_STEP].into_iter().fold(1, lcm);
        let last = tokens.saturating_sub(1) / step;
        let near_end = [3, 1, 0].map(|before: usize| last.saturating_sub(before) * step);
        let on_the_way = (1..).map(|number| (number * STATE_TOKENS).next_multiple_of(step));
        let on_the_way = on_the_way.take_while(|cut| *cut < near_end[0]);
        let mut cuts: Vec<usize> = on_the_way
            .chain(near_end)
            .filter(|cut| *cut > self.tokens.len() && *cut <= whole)
            .collect();
        cuts.dedup();
        cuts
    }

    /// Tokens that a beginning may have.
    fn servable_tokens(&self) -> usize {
        let options = self.engine.options();
        let window = self
            .options
            .window
            .map(|window| window.whole_tokens(options.page_tokens));
        window.or(self.placement.sliding.whole_tokens()).unwrap_or(usize::MAX)
    }

    fn is_at_page(&self) -> bool {
        !self.tokens.is_empty() && self.tokens.len().is_multiple_of(self.engine.options().page_tokens)
    }

    /// Refuses policies that pages of another sequence cannot serve.
    pub(crate) fn check_prefix(&self) -> Result<(), EngineError> {
        let options = &self.options;
        let phases = [(&self.prefill, &options.prefill), (&self.decode, &options.decode)];
        for (policies, rules) in phases {
            if policies.iter().any(|policy| !policy.traits().follows_from_keys) {
                return Err(EngineError::PrefixPolicy(rules.to_string()));
            }
        }
        Ok(())
    }

    fn prefix_identity(&self) -> Result<Vec<u8>, EngineError> {
        self.check_prefix()?;
        let options = self.engine.options();
        let mut origin = Origin::of_pages(&self.engine, &self.options)?;
        if self.options.prefill.specs().any(|spec| !spec.info().traits.dense) {
            // What such a policy chooses depends on the chunk it is asked for.
            origin.add("-b -ub", format!("{} {}", options.batch_tokens, options.chunk_tokens));
        }
        Ok(origin.to_bytes())
    }
}

/// A prompt is cut into chunks at these places, whatever its length: to go on from there gives the same chunks.
pub(crate) fn grid(options: &EngineOptions) -> usize {
    if options.batch_tokens.is_multiple_of(options.chunk_tokens) {
        options.chunk_tokens
    } else {
        options.batch_tokens
    }
}
