//! Query-agnostic compression of the KV cache: evicts the KV pairs that later queries need least.
//!
//! The cache can be compressed before the question is known.
//!
//! ```text
//! options ─▶ scratch sequence reads ─▶ observer sees its queries ─▶ a score for every pair ─▶ kept slots ─▶ eviction
//! ```
//!
//! For [`CompressMethod::Echo`] a sequence can score its pairs while it reads its text. Pairs without such scores need a
//! second reading, by a scratch sequence. It is a fork for [`CompressMethod::KvZip`], and empty for the other methods.
//! The sequence itself changes only after all scores are known.

mod budget;
mod compression;
mod echo;
mod expected;
mod kvzip;
mod moments;
mod options;
mod reconstruction;
mod repeat;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use serde::Serialize;

use crate::options::has_indexers;
use crate::sequence::check_room;
use crate::{EngineError, PrefillProgress, Runner, Sequence};
pub(crate) use compression::{CompressStep, Compression};
pub use options::{CompressMethod, CompressOptions, Spread};
pub use repeat::RepeatPrompt;

/// Pairs and bytes before and after a compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Compressed {
    /// Tokens of the sequence.
    pub tokens: usize,
    /// KV pairs before, over all layers that see the whole sequence and their KV heads.
    pub pairs_before: usize,
    /// Pairs now.
    pub pairs: usize,
    /// Bytes of the sequence's pages before the compression, in all tiers.
    pub bytes_before: u64,
    /// Bytes now.
    pub bytes: u64,
}

/// Receives the progress of the reading; may stop it.
type Observe<'a> = dyn FnMut(PrefillProgress) -> ControlFlow<()> + 'a;

/// The pairs of one (layer of the cache, KV head), oldest first.
struct HeadScores {
    layer: usize,
    kv_head: usize,
    /// Slots before those with a score, which stay: an earlier compression kept them.
    before: usize,
    /// Expected need of later queries for each pair; [`f32::INFINITY`] for a pair that must stay.
    scores: Vec<f32>,
}

/// Keeps the KV pairs of every head that later queries will need most, and frees the pages of the others.
///
/// A sequence that has grown since its last compression can be compressed again. If all layers see the whole text,
/// [`CompressMethod::KvZip`] and [`CompressMethod::Echo`] keep a share of the tokens read since then, and every pair kept
/// before. So a text can be compressed by parts, and is never held whole. [`CompressMethod::Expected`] keeps a share of
/// all pairs held.
///
/// The choice depends on neither a question nor the number of threads. Layers with a sliding window and recurrent
/// layers are unchanged. Afterwards the sequence can be continued, forked, saved and restored as before. It can
/// return within the latest tokens that every head keeps; going back further requires reading its text again. Its
/// pages cannot be shared as another sequence's beginning.
///
/// A second sequence reads tokens that have no scores yet: with farther tiers, set [`MachineOptions::sequences`] to 2
/// to leave room for its pages.
///
/// [`MachineOptions::sequences`]: crate::MachineOptions::sequences
///
/// # Errors
/// [`EngineError::Option`] for an invalid share, [`EngineError::NotCompressible`], [`EngineError::ContextExceeded`]
/// if the context has no room for the additional reading, [`EngineError::Interrupted`]: the sequence is then
/// unchanged. [`EngineError::Kv`] if there is no room for copies of shared pages: some heads are then not compressed.
/// If a page fails while tokens move, the sequence is empty.
pub fn compress_sequence(
    sequence: &mut Sequence,
    runner: &mut Runner,
    options: &CompressOptions,
    observe: &mut Observe<'_>,
) -> Result<Compressed, EngineError> {
    let mut compression = Compression::begin(sequence, options)?;
    loop {
        match compression.advance(sequence)? {
            CompressStep::Read(scratch, tokens) => {
                let mut tell = |read| observe(compression.progress(read));
                let scratch = read(*scratch, runner, &tokens, &mut tell)?;
                compression.take_back(scratch, tokens.len());
            }
            CompressStep::Worked => {}
            CompressStep::Done(compressed) => return Ok(compressed),
        }
    }
}

pub(super) fn check_compressible(sequence: &Sequence, options: &CompressOptions) -> Result<(), EngineError> {
    if let Some(selection) = sequence.engine().options().model.token_selection {
        return Err(selection.refuse("a compression looks at the queries of every token in every layer"));
    }
    if sequence.tokens().is_empty() {
        return Err(EngineError::NotCompressible("it holds no text yet; read one first"));
    }
    if sequence.options().window.is_some() {
        return Err(EngineError::NotCompressible(
            "it was read with `window`, which keeps a window of the text alone; read the text without it",
        ));
    }
    if has_indexers(sequence.engine().model().config()) {
        return Err(EngineError::NotCompressible(
            "the indexer of its model ranks every token; keep the whole text",
        ));
    }
    let mut policies = sequence.attention().policies.decode.iter();
    if policies.any(|policy| policy.traits().evicts) {
        return Err(EngineError::NotCompressible(
            "its `decode` policy evicts tokens by itself; use one that does not, such as full",
        ));
    }
    if whole_heads(sequence).is_empty() {
        return Err(EngineError::NotCompressible(
            "no layer of its model keeps the keys of the whole text, so there is nothing to make smaller",
        ));
    }
    if !matches!(options.method, CompressMethod::Expected { .. }) {
        check_grown(sequence, options.recent_tokens)?;
    }
    Ok(())
}

/// Checks that a compressed sequence has further text since its compression.
fn check_grown(sequence: &Sequence, recent_tokens: usize) -> Result<(), EngineError> {
    let since = whole_since(sequence);
    if since == 0 {
        return Ok(());
    }
    if whole_heads(sequence).len() < sequence.attention().cache.shape().tables() {
        return Err(EngineError::NotCompressible(
            "it is compressed already, and some layers of its model see a window; use the method expected, or compress the session of the whole text",
        ));
    }
    if sequence.tokens().len() <= since + recent_tokens {
        return Err(EngineError::NotCompressible(
            "it is compressed already; read more text first, or use the method expected to make it smaller",
        ));
    }
    Ok(())
}

/// The first token of the part of the text that no head has evicted tokens of.
fn whole_since(sequence: &Sequence) -> usize {
    let pairs = whole_heads(sequence).len() * sequence.tokens().len();
    if whole_pairs(sequence) == pairs {
        0
    } else {
        sequence.attention().evicted.since
    }
}

/// Checks that the context has room for a second sequence of `tokens` tokens beside this one.
pub(super) fn check_room_beside(sequence: &Sequence, what: &'static str, tokens: usize) -> Result<(), EngineError> {
    let page_tokens = sequence.attention().cache.shape().page_tokens;
    let held = sequence.tokens().len();
    let begun = held.next_multiple_of(page_tokens) - held;
    check_room(sequence, what, begun + tokens.next_multiple_of(page_tokens))
}

/// Number of KV pairs in the layers that see the whole sequence.
pub(super) fn whole_pairs(sequence: &Sequence) -> usize {
    let cache = &sequence.attention().cache;
    let heads = whole_heads(sequence).into_iter();
    heads.map(|(layer, kv_head)| cache.head_tokens(layer, kv_head)).sum()
}

/// Each (layer, KV head) of the cache that sees the whole sequence.
fn whole_heads(sequence: &Sequence) -> Vec<(usize, usize)> {
    let shape = sequence.attention().cache.shape();
    let layers = sequence.engine().whole_layers().into_iter();
    let of_layer = |(_, layer): (usize, usize)| (0..shape.layer(layer).kv_heads).map(move |kv_head| (layer, kv_head));
    layers.flat_map(of_layer).collect()
}

/// The pairs of the text since the last compression, by head. `scores` receives the layer and the KV head, the number of
/// slots before this text, and its tokens.
fn head_scores(sequence: &Sequence, scores: impl Fn([usize; 2], usize, usize) -> Vec<f32>) -> Vec<HeadScores> {
    let tokens = sequence.tokens().len() - whole_since(sequence);
    let of_head = |(layer, kv_head): (usize, usize)| {
        let before = sequence.attention().cache.head_tokens(layer, kv_head) - tokens;
        HeadScores {
            layer,
            kv_head,
            before,
            scores: scores([layer, kv_head], before, tokens),
        }
    };
    whole_heads(sequence).into_iter().map(of_head).collect()
}

/// Reads `tokens` as a prompt into a scratch sequence and returns it. `observe` receives the progress.
fn read(
    mut scratch: Sequence,
    runner: &mut Runner,
    tokens: &[u32],
    observe: &mut dyn FnMut(f64) -> ControlFlow<()>,
) -> Result<Sequence, EngineError> {
    let again = scratch.begin_prompt(tokens, 0)?;
    debug_assert!(again.is_empty(), "what is measured turns as its text");
    runner.read(&mut scratch, tokens, observe)?;
    Ok(scratch)
}
