//! Lengths at which sequences can continue from one another, and policies that allow it.

use riffle_model::RecurrentState;

use crate::attention::lcm;
use crate::origin::{CHUNKS, Origin};
use crate::sequence::common_prefix;
use crate::{EngineError, EngineOptions, Sequence};

/// Interval in tokens at which recurrent states are stored.
const STATE_TOKENS: usize = 16 << 10;

/// Tokens that recurrent layers process together: batches of whole steps give the same bits for any split.
const RECURRENT_STEP: usize = 64;

/// Lengths at which a prompt of `tokens` tokens should be stored before all of it has been read. In a model with
/// recurrent layers: shortly before the end, where the next question about the same text will differ, and at
/// intervals. With a window, of the sequence or of a layer, that the prompt outgrows: before it moves. Otherwise
/// empty, because pages at the end are enough.
pub fn prefix_cuts(sequence: &Sequence, tokens: usize) -> Vec<usize> {
    let whole = servable_tokens(sequence);
    if !sequence.recurrence().is_recurrent() {
        let (page, grid) = (sequence.engine().options().cache.page_tokens, prompt_grid(sequence));
        let cut = whole / lcm(page, grid) * lcm(page, grid);
        return Vec::from_iter((cut > sequence.tokens().len() && whole < tokens).then_some(cut));
    }
    let step = state_step(sequence);
    let last = tokens.saturating_sub(1) / step;
    let near_end = [3, 1, 0].map(|before: usize| last.saturating_sub(before) * step);
    let on_the_way = (1..).map(|number| (number * STATE_TOKENS).next_multiple_of(step));
    let on_the_way = on_the_way.take_while(|cut| *cut < near_end[0]);
    let mut cuts: Vec<usize> = on_the_way
        .chain(near_end)
        .filter(|cut| *cut > sequence.tokens().len() && *cut <= whole)
        .collect();
    cuts.dedup();
    cuts
}

/// Recurrent states are stored at multiples of this many tokens: whole pages, whole chunks, and whole steps of these
/// layers.
pub(crate) fn state_step(sequence: &Sequence) -> usize {
    let steps = [
        sequence.engine().options().cache.page_tokens,
        prompt_grid(sequence),
        RECURRENT_STEP,
    ];
    steps.into_iter().fold(1, lcm)
}

/// A prompt may be continued at multiples of this length with the same result as in one reading. With dense attention
/// this is any length, because rows are independent; other policies select for whole chunks.
pub(crate) fn prompt_grid(sequence: &Sequence) -> usize {
    if sequence.options().prefill.is_dense() {
        1
    } else {
        chunk_grid(sequence.engine().options())
    }
}

/// Beginnings are shared in multiples of this many tokens.
pub(crate) fn beginning_step(sequence: &Sequence) -> usize {
    if sequence.recurrence().is_recurrent() {
        state_step(sequence)
    } else {
        prompt_grid(sequence)
    }
}

/// Maximum number of tokens that a shared beginning may have.
pub(crate) fn servable_tokens(sequence: &Sequence) -> usize {
    let options = sequence.engine().options();
    let window = sequence.options().window;
    let window = window.map(|window| window.whole_tokens(options.cache.page_tokens));
    let whole = window.or(sequence.attention().sliding.whole_tokens());
    whole.unwrap_or(usize::MAX)
}

/// Of the first `tokens` tokens of a prompt: the number that may fill a sequence, and the number to look up. Without a
/// recurrent state the last page may be used in part, so the second number may be larger.
pub(super) fn fillable_tokens(sequence: &Sequence, tokens: usize) -> [usize; 2] {
    let (grid, servable) = (prompt_grid(sequence), servable_tokens(sequence));
    let most = tokens.saturating_sub(1).min(servable) / grid * grid;
    if sequence.recurrence().is_recurrent() {
        return [most, most];
    }
    let page = sequence.engine().options().cache.page_tokens;
    [most, most.next_multiple_of(page).min(tokens).min(servable)]
}

/// Restores a recurrent state stored with the first `tokens` tokens, which the sequence holds. Returns false if it is
/// damaged; the sequence is then empty.
pub(super) fn resume_state(sequence: &mut Sequence, kept: &[u8], tokens: usize) -> Result<bool, EngineError> {
    match RecurrentState::from_bytes(sequence.engine().model().config(), kept) {
        Ok(state) if state.tokens() == Some(tokens) => sequence.recurrence_mut().resume(state).map(|()| true),
        _ => {
            sequence.forget_all();
            Ok(false)
        }
    }
}

/// Number of leading prompt tokens worth storing on disk: all whole pages, and the part of the last page up to a
/// length from which another sequence can continue. A model with recurrent layers stores only whole pages, with its
/// state.
pub(crate) fn keepable_tokens(sequence: &Sequence) -> usize {
    let (read, page) = (sequence.prefilled(), sequence.engine().options().cache.page_tokens);
    let pages = read / page * page;
    if sequence.recurrence().is_recurrent() {
        return pages;
    }
    let grid = prompt_grid(sequence);
    pages.max(read / grid * grid)
}

/// True if the recurrent state belongs to whole pages of prompt.
pub(super) fn keeps_state(sequence: &Sequence) -> bool {
    let (page, held) = (sequence.engine().options().cache.page_tokens, sequence.tokens().len());
    let is_at_page = held > 0 && held.is_multiple_of(page);
    sequence.recurrence().state.tokens() == Some(sequence.prefilled()) && is_at_page
}

/// True if other sequences can use the prompt's pages.
pub(crate) fn can_share(sequence: &Sequence) -> bool {
    sequence.options().window.is_none() && check_prefix(sequence).is_ok()
}

/// True if other sequences can use tokens that the sequence has read.
pub(crate) fn serves_others(sequence: &Sequence) -> bool {
    sequence.prefilled() > 0 && !has_evicted(sequence) && can_share(sequence)
}

/// True if the sequence's pages lost tokens by eviction.
pub(crate) fn has_evicted(sequence: &Sequence) -> bool {
    !sequence.attention().evicted.is_empty()
}

/// True if the sequence can return to its first `tokens` tokens without reading anything again.
pub(crate) fn goes_back_to(sequence: &Sequence, tokens: usize) -> bool {
    sequence.attention().reaches(tokens)
        && sequence.attention().windows_reach(tokens)
        && sequence.recurrence().knows(tokens)
}

/// The longest beginning of `tokens` that the sequence read as a prompt and from which another sequence may continue.
/// It leaves at least the last token to be read. None after evictions, because other sequences would read more tokens.
pub(crate) fn known_beginning(sequence: &Sequence, tokens: &[u32]) -> usize {
    if has_evicted(sequence) || sequence.turn().is_other(sequence.engine(), tokens.len()) {
        return 0;
    }
    let shared = common_prefix(sequence.tokens(), tokens)
        .min(sequence.prefilled())
        .min(tokens.len() - 1);
    let grid = prompt_grid(sequence);
    sequence.recurrence().latest_known(shared / grid * grid)
}

/// Refuses policies that cannot use pages of another sequence.
pub(crate) fn check_prefix(sequence: &Sequence) -> Result<(), EngineError> {
    if let Some(selection) = sequence.engine().options().model.token_selection {
        let problem = "the keys that it leaves depend on a prompt's end, so no other prompt can use them";
        return Err(selection.refuse(problem));
    }
    let options = sequence.options();
    let policies = &sequence.attention().policies;
    let phases = [
        (&policies.prefill, &options.prefill),
        (&policies.decode, &options.decode),
    ];
    for (policies, rules) in phases {
        if policies.iter().any(|policy| !policy.traits().follows_from_keys) {
            return Err(EngineError::PrefixPolicy(rules.to_string()));
        }
    }
    Ok(())
}

pub(crate) fn prefix_identity(sequence: &Sequence) -> Result<Vec<u8>, EngineError> {
    check_prefix(sequence)?;
    let options = sequence.engine().options();
    let mut origin = Origin::of_pages(sequence.engine(), sequence.options())?;
    if sequence.turn().length() > 0 {
        origin.add("rotation", "of long sequences".to_owned());
    }
    if !sequence.options().prefill.is_dense() {
        // The selections of such a policy depend on the chunk.
        let (batch, chunk) = (options.machine.batch_tokens, options.machine.chunk_tokens);
        origin.add(CHUNKS, format!("{batch} {chunk}"));
    }
    Ok(origin.to_bytes())
}

/// A prompt is split into chunks at multiples of this length, for any prompt length: continuing there gives the same
/// chunks.
fn chunk_grid(options: &EngineOptions) -> usize {
    let (batch, chunk) = (options.machine.batch_tokens, options.machine.chunk_tokens);
    if batch.is_multiple_of(chunk) { chunk } else { batch }
}
