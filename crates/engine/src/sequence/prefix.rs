//! Beginnings that were read before, by this process or another.

use riffle_kv::PrefixCache;
use riffle_model::RecurrentState;

use crate::origin::Origin;
use crate::sequence::sliding::lcm;
use crate::{EngineError, EngineOptions, Sequence};

/// Tokens after which the state of recurrent layers is kept on the way.
const STATE_TOKENS: usize = 16 << 10;

/// Tokens that recurrent layers take in together: batches of whole steps give the same bits however they are cut.
const RECURRENT_STEP: usize = 64;

/// A beginning that a prefix cache keeps and a sequence is being filled with.
pub(crate) struct PrefixSearch {
    identity: Vec<u8>,
    /// Tokens that the sequence will hold.
    tokens: usize,
    /// The recurrent layers' state after these.
    state: Option<Vec<u8>>,
    /// Blocks and notes that had changed on disk and were removed.
    pub(crate) damaged_blocks: usize,
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
        self.prefix_identity()?;
        self.forget_all();
        let mut search = self.find_prefix(cache, tokens)?;
        while self.fill_next(cache, tokens, &mut search, usize::MAX)? {}
        Ok(search.damaged_blocks)
    }

    /// What the prefix cache keeps of `tokens`. Reads no page.
    pub(crate) fn find_prefix(&self, cache: &PrefixCache, tokens: &[u32]) -> Result<PrefixSearch, EngineError> {
        let identity = self.prefix_identity()?;
        let (shape, page) = (*self.cache.shape(), self.engine.options().page_tokens);
        let grid = self.prompt_grid();
        let most = tokens.len().saturating_sub(1).min(self.servable_tokens()) / grid * grid;
        let mut search = PrefixSearch {
            identity,
            tokens: 0,
            state: None,
            damaged_blocks: 0,
        };
        match self.is_recurrent() {
            true => {
                let found = cache.note(&shape, &search.identity, &tokens[..most])?;
                search.damaged_blocks = found.damaged;
                search.tokens = found.tokens;
                search.state = found.note;
            }
            false => {
                let looked_at = most
                    .next_multiple_of(page)
                    .min(tokens.len())
                    .min(self.servable_tokens());
                let known = cache.known_tokens(&shape, &search.identity, &tokens[..looked_at])?;
                search.tokens = known.min(most) / grid * grid;
            }
        }
        Ok(search)
    }

    /// Fills in up to `step_tokens` more tokens of what a search has found, beyond those that the sequence holds, which are the first
    /// of `tokens`. False when there is no more to fill in; the sequence holds whole chunks of `tokens` after every step.
    pub(crate) fn fill_next(
        &mut self,
        cache: &PrefixCache,
        tokens: &[u32],
        search: &mut PrefixSearch,
        step_tokens: usize,
    ) -> Result<bool, EngineError> {
        if search.tokens <= self.tokens.len() {
            return Ok(false);
        }
        let (page, grid) = (self.engine.options().page_tokens, self.prompt_grid());
        let step = lcm(page, grid);
        // A page that is held in part is filled anew.
        let held = self.tokens.len() / step * step;
        self.cut_prompt(held);
        let to = held.saturating_add((step_tokens / step).max(1).saturating_mul(step));
        let end = match to < search.tokens {
            true => to,
            false => search.tokens.next_multiple_of(page).min(tokens.len()),
        };
        let found = match cache.fill(&mut self.cache, &search.identity, &tokens[..end]) {
            Ok(found) => found,
            Err(error) => {
                // Pages without the state of recurrent layers are no beginning to go on from.
                if search.state.is_some() {
                    self.forget_all();
                }
                return Err(error.into());
            }
        };
        search.damaged_blocks += found.damaged_blocks;
        let kept = match (found.tokens.min(search.tokens), &search.state) {
            (kept, Some(_)) => kept,
            (kept, None) => kept / grid * grid,
        };
        self.cache.truncate(kept);
        self.tokens.extend_from_slice(&tokens[held..kept]);
        self.prefilled = kept;
        if kept < to.min(search.tokens) {
            // A page was damaged: what lies before it is all there is.
            if search.state.is_some() {
                self.forget_all();
            }
            return Ok(false);
        }
        if kept < search.tokens {
            return Ok(true);
        }
        if let Some(note) = search.state.take() {
            match RecurrentState::from_bytes(self.engine.model().config(), &note) {
                Ok(state) if state.tokens() == Some(kept) => self.recurrence.resume(state)?,
                _ => {
                    self.forget_all();
                    search.damaged_blocks += 1;
                }
            }
        }
        Ok(false)
    }

    /// Forgets what was read as prompt beyond `tokens`, where nothing else has been read.
    pub(crate) fn cut_prompt(&mut self, tokens: usize) {
        self.cache.truncate(tokens);
        self.tokens.truncate(tokens);
        self.prefilled = tokens;
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
        self.store_prefix_up_to(cache, usize::MAX)
    }

    /// [`Sequence::store_prefix`] of the first `most_tokens` tokens, so that a long beginning can be kept in steps.
    pub(crate) fn store_prefix_up_to(
        &self,
        cache: &PrefixCache,
        most_tokens: usize,
    ) -> Result<(usize, u64), EngineError> {
        let identity = self.prefix_identity()?;
        let read = &self.tokens[..self.prefilled.min(most_tokens)];
        let is_whole = self.placement.rolling.is_whole() && self.placement.evicted.is_empty();
        let stored = match &self.recurrence.state {
            _ if !is_whole => cache.store(&self.cache, &identity, &[])?,
            state if state.is_empty() => cache.store(&self.cache, &identity, read)?,
            state if self.keeps_state() && read.len() == self.prefilled => {
                cache.store_with_note(&self.cache, &identity, read, &state.to_bytes())?
            }
            _ if self.keeps_state() => cache.store(&self.cache, &identity, read)?,
            _ => cache.store(&self.cache, &identity, &[])?,
        };
        Ok((stored.tokens, stored.bytes))
    }

    /// Whether the recurrent state is that after the whole pages of what was read as prompt.
    pub(crate) fn keeps_state(&self) -> bool {
        self.recurrence.state.tokens() == Some(self.prefilled) && self.is_at_page()
    }

    /// Lengths of a prompt of `tokens` tokens at which it is worth keeping what was read: before a window moves on, and the
    /// state of recurrent layers shortly before the end, where the next question about the same text will part from it,
    /// and now and then on the way. Empty for other models, whose pages say everything at the end.
    pub fn prefix_cuts(&self, tokens: usize) -> Vec<usize> {
        let whole = self.servable_tokens();
        if self.recurrence.state.is_empty() {
            let (page, grid) = (self.engine.options().page_tokens, self.prompt_grid());
            let cut = whole / lcm(page, grid) * lcm(page, grid);
            return Vec::from_iter((cut > self.tokens.len() && whole < tokens).then_some(cut));
        }
        let step = self.state_step();
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

    /// The state of recurrent layers is worth keeping at multiples of so many tokens: whole pages, whole chunks, and whole steps of
    /// these layers' own.
    pub(crate) fn state_step(&self) -> usize {
        let steps = [self.engine.options().page_tokens, self.prompt_grid(), RECURRENT_STEP];
        steps.into_iter().fold(1, lcm)
    }

    /// A prompt may be gone on with from these places: then it is read as if it had been read at once. Under dense attention
    /// that holds anywhere, since no row depends on what is read beside it; other policies choose for whole chunks.
    pub(crate) fn prompt_grid(&self) -> usize {
        match self.options.prefill.is_dense() {
            true => 1,
            false => chunk_grid(self.engine.options()),
        }
    }

    /// Beginnings are shared in multiples of so many tokens.
    pub(crate) fn beginning_step(&self) -> usize {
        match self.is_recurrent() {
            true => self.state_step(),
            false => self.prompt_grid(),
        }
    }

    /// Tokens that a beginning may have.
    pub(crate) fn servable_tokens(&self) -> usize {
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
        if let Some(selection) = self.engine.options().token_selection {
            return Err(
                selection.refuse("the keys that it leaves depend on a prompt's end, so no other prompt can use them")
            );
        }
        let options = &self.options;
        let phases = [(&self.prefill, &options.prefill), (&self.decode, &options.decode)];
        for (policies, rules) in phases {
            if policies.iter().any(|policy| !policy.traits().follows_from_keys) {
                return Err(EngineError::PrefixPolicy(rules.to_string()));
            }
        }
        Ok(())
    }

    pub(crate) fn prefix_identity(&self) -> Result<Vec<u8>, EngineError> {
        self.check_prefix()?;
        let options = self.engine.options();
        let mut origin = Origin::of_pages(&self.engine, &self.options)?;
        if !self.options.prefill.is_dense() {
            // What such a policy chooses depends on the chunk it is asked for.
            origin.add("-b -ub", format!("{} {}", options.batch_tokens, options.chunk_tokens));
        }
        Ok(origin.to_bytes())
    }
}

/// A prompt is cut into chunks at these places, whatever its length: to go on from there gives the same chunks.
fn chunk_grid(options: &EngineOptions) -> usize {
    if options.batch_tokens.is_multiple_of(options.chunk_tokens) {
        options.chunk_tokens
    } else {
        options.batch_tokens
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;
    use std::path::Path;

    use super::*;
    use crate::{Engine, Session};

    #[test]
    fn a_prefix_cache_that_fails_half_way_leaves_no_pages_without_their_recurrent_state() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/model-hybrid");
        let options = EngineOptions {
            context_tokens: Some(1024),
            batch_tokens: 64,
            chunk_tokens: 64,
            page_tokens: 32,
            ..EngineOptions::default()
        };
        let engine = Engine::load(model, options).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
        let tokens: Vec<u32> = (0..400).map(|at| at * 7 % 200).collect();
        let mut session = Session::new(&engine).unwrap();
        session
            .prefill(&tokens[..384], &mut |_| ControlFlow::Continue(()))
            .unwrap();
        assert_eq!(session.store_prefix(&cache).unwrap().0, 384);

        let mut session = Session::new(&engine).unwrap();
        let mut search = session.find_prefix(&cache, &tokens).unwrap();
        assert!(session.fill_next(&cache, &tokens, &mut search, 64).unwrap());
        assert_eq!(session.tokens().len(), 64);
        let index = folder.path().join("index.redb");
        fs::remove_file(&index).unwrap();
        fs::create_dir(&index).unwrap();
        assert!(session.fill_next(&cache, &tokens, &mut search, 64).is_err());
        assert_eq!((session.tokens().len(), session.usage().tokens), (0, 0));
    }
}
