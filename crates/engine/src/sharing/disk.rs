//! Beginnings on disk, read earlier by this process or another.

use riffle_kv::PrefixCache;

use super::beginning::{fillable_tokens, keepable_tokens, keeps_state, prefix_identity, prompt_grid, resume_state};
use crate::attention::lcm;
use crate::{EngineError, Sequence};

/// A beginning in a prefix cache with which a sequence is being filled.
pub(crate) struct PrefixSearch {
    identity: Vec<u8>,
    /// Number of tokens that the sequence will have.
    tokens: usize,
    /// The recurrent layers' state after these tokens.
    state: Option<Vec<u8>>,
    /// Number of blocks and notes that were removed because their files had changed.
    pub(crate) damaged_blocks: usize,
}

/// Fills an empty sequence with a beginning of `tokens` from the prefix cache, at most all but the last token. Reading
/// the rest then gives the same result as reading all. Returns the number of damaged blocks that were removed. With
/// dense attention, an earlier text is found to its last token.
///
/// A model with recurrent layers finds the beginnings stored with their state ([`store_prefix`]).
///
/// With a window ([`StreamWindow`](crate::StreamWindow)), or layers with windows whose pages
/// [`CacheOptions::keeps_beginnings`](crate::CacheOptions::keeps_beginnings) does not keep, it finds at most the
/// tokens before the first dropped page.
///
/// With full attention the result has the same bits. A sparse prefill policy finds only pages computed under the same
/// policy and chunks. They are as good as its own, and have the same bits if its selections do not depend on the end
/// of a prompt.
///
/// # Errors
/// [`EngineError::PrefixPolicy`] if a policy needs to see the queries; [`EngineError::Kv`].
pub fn fill_prefix(sequence: &mut Sequence, cache: &PrefixCache, tokens: &[u32]) -> Result<usize, EngineError> {
    prefix_identity(sequence)?;
    sequence.forget_all();
    sequence.turn_for(tokens.len());
    let mut search = find_prefix(sequence, cache, tokens)?;
    while fill_next(sequence, cache, tokens, &mut search, usize::MAX)? {}
    Ok(search.damaged_blocks)
}

/// Finds the part of `tokens` in the prefix cache. Reads no page.
pub(crate) fn find_prefix(
    sequence: &Sequence,
    cache: &PrefixCache,
    tokens: &[u32],
) -> Result<PrefixSearch, EngineError> {
    let identity = prefix_identity(sequence)?;
    let (shape, grid) = (*sequence.attention().cache.shape(), prompt_grid(sequence));
    let [most, looked_at] = fillable_tokens(sequence, tokens.len());
    let mut search = PrefixSearch {
        identity,
        tokens: 0,
        state: None,
        damaged_blocks: 0,
    };
    if sequence.recurrence().is_recurrent() {
        let found = cache.note(&shape, &search.identity, &tokens[..most])?;
        search.damaged_blocks = found.damaged;
        search.tokens = found.tokens;
        search.state = found.note;
    } else {
        let known = cache.known_tokens(&shape, &search.identity, &tokens[..looked_at])?;
        search.tokens = known.min(most) / grid * grid;
    }
    Ok(search)
}

/// Loads up to `step_tokens` more tokens of a search result. The sequence already holds the first of `tokens`. Returns
/// false at the end; the sequence has whole chunks of `tokens` after every step.
pub(crate) fn fill_next(
    sequence: &mut Sequence,
    cache: &PrefixCache,
    tokens: &[u32],
    search: &mut PrefixSearch,
    step_tokens: usize,
) -> Result<bool, EngineError> {
    if search.tokens <= sequence.tokens().len() {
        return Ok(false);
    }
    let (page, grid) = (sequence.engine().options().cache.page_tokens, prompt_grid(sequence));
    let step = lcm(page, grid);
    // A partial page is filled again.
    let held = sequence.tokens().len() / step * step;
    sequence.hold_prompt(held, held, &[]);
    let to = held.saturating_add((step_tokens / step).max(1).saturating_mul(step));
    let end = if to < search.tokens {
        to
    } else {
        search.tokens.next_multiple_of(page).min(tokens.len())
    };
    let found = match cache.fill(&mut sequence.attention_mut().cache, &search.identity, &tokens[..end]) {
        Ok(found) => found,
        Err(error) => {
            // Pages without the state of recurrent layers cannot be continued.
            if search.state.is_some() {
                sequence.forget_all();
            }
            return Err(error.into());
        }
    };
    search.damaged_blocks += found.damaged_blocks;
    let kept = match (found.tokens.min(search.tokens), &search.state) {
        (kept, Some(_)) => kept,
        (kept, None) => kept / grid * grid,
    };
    sequence.hold_prompt(held, kept, tokens);
    if kept < to.min(search.tokens) {
        // A page was damaged: only the tokens before it are available.
        if search.state.is_some() {
            sequence.forget_all();
        }
        return Ok(false);
    }
    if kept < search.tokens {
        return Ok(true);
    }
    if let Some(note) = search.state.take() {
        search.damaged_blocks += usize::from(!resume_state(sequence, &note, kept)?);
    }
    Ok(false)
}

/// Stores the prompt: whole pages, and the tokens of a partly filled page. Returns the number of stored tokens and
/// the bytes of all pages in the prefix cache.
///
/// With sparse prefill policies, the last page is stored up to the last whole chunk; with recurrent layers, only
/// whole pages are stored. Nothing is stored after a window, the sequence's or a layer's, has moved
/// ([`CacheOptions::keeps_beginnings`](crate::CacheOptions::keeps_beginnings)). The state of recurrent layers is
/// stored with the pages if the sequence is exactly whole pages of prompt; otherwise such a model stores nothing. So
/// call it during reading, at [`prefix_cuts`](crate::prefix_cuts).
///
/// # Errors
/// As [`fill_prefix`].
pub fn store_prefix(sequence: &Sequence, cache: &PrefixCache) -> Result<(usize, u64), EngineError> {
    store_prefix_up_to(sequence, cache, usize::MAX)
}

/// [`store_prefix`] for the first `most_tokens` tokens, so that a long beginning can be stored in steps. Use steps of
/// whole pages, so that no partial pages are stored in between.
pub(crate) fn store_prefix_up_to(
    sequence: &Sequence,
    cache: &PrefixCache,
    most_tokens: usize,
) -> Result<(usize, u64), EngineError> {
    let identity = prefix_identity(sequence)?;
    let read = &sequence.tokens()[..keepable_tokens(sequence).min(most_tokens)];
    let (attention, state) = (sequence.attention(), &sequence.recurrence().state);
    let is_kept = attention.is_whole() && (state.is_empty() || keeps_state(sequence));
    let read = if is_kept { read } else { &[] };
    let stored = if is_kept && !state.is_empty() && read.len() == sequence.prefilled() {
        cache.store_with_note(&attention.cache, &identity, read, &state.to_bytes())?
    } else {
        cache.store(&attention.cache, &identity, read)?
    };
    Ok((stored.tokens, stored.bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;
    use std::path::Path;
    use std::sync::Arc;

    use tempfile::TempDir;

    use super::*;
    use crate::{Engine, EngineOptions, Session};

    /// An engine of a fixture, a prefix cache in an empty folder, and a text.
    fn set_up(fixture: &str, options: EngineOptions) -> (Arc<Engine>, TempDir, PrefixCache, Vec<u32>) {
        let model = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fixtures")
            .join(fixture);
        let engine = Engine::load(model, options.with_context_tokens(Some(1024))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
        (engine, folder, cache, (0..400).map(|at| at * 7 % 200).collect())
    }

    #[test]
    fn a_prefix_cache_that_fails_half_way_leaves_no_pages_without_their_recurrent_state() {
        let options = EngineOptions::default()
            .with_batch_tokens(64)
            .with_chunk_tokens(64)
            .with_page_tokens(32);
        let (engine, folder, cache, tokens) = set_up("model-hybrid", options);
        let mut session = Session::new(&engine).unwrap();
        session
            .prefill(&tokens[..384], &mut |_| ControlFlow::Continue(()))
            .unwrap();
        assert_eq!(store_prefix(session.sequence(), &cache).unwrap().0, 384);

        let mut session = Session::new(&engine).unwrap();
        let mut search = find_prefix(session.sequence(), &cache, &tokens).unwrap();
        assert!(fill_next(session.sequence_mut(), &cache, &tokens, &mut search, 64).unwrap());
        assert_eq!(session.tokens().len(), 64);
        let index = folder.path().join("index.redb");
        fs::remove_file(&index).unwrap();
        fs::create_dir(&index).unwrap();
        assert!(fill_next(session.sequence_mut(), &cache, &tokens, &mut search, 64).is_err());
        assert_eq!((session.tokens().len(), session.sequence().usage().tokens), (0, 0));
    }

    #[test]
    fn a_beginning_from_disk_is_in_the_index_of_signs_before_it_is_read() {
        let options = EngineOptions::default()
            .with_page_tokens(64)
            .with_decode("signs:from=0".parse().unwrap());
        let (engine, _folder, cache, tokens) = set_up("model", options);
        let mut reader = Session::new(&engine).unwrap();
        reader.prefill(&tokens, &mut |_| ControlFlow::Continue(())).unwrap();
        store_prefix(reader.sequence(), &cache).unwrap();
        let mut filled = Session::new(&engine).unwrap();
        fill_prefix(filled.sequence_mut(), &cache, &tokens).unwrap();
        let held = filled.tokens().len();
        assert!(held > 320);
        let indexes = &filled.sequence().attention().signs;
        assert!(indexes.iter().count() > 0 && indexes.iter().all(|(_, keys)| keys.tokens() == held));
        // The same bits as of a text that was read.
        reader.truncate(held).unwrap();
        let both = [&filled, &reader].map(|session| session.sequence().attention().signs.to_records());
        assert_eq!(both[0], both[1]);
    }
}
