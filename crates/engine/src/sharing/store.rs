//! Beginnings in a store shared with other processes and machines: fetched into a sequence, published from it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use riffle_kv::{BlockStore, FetchRequest, SharedBlocks, SharedFetch, SharedOptions};
use serde::Serialize;

use crate::attention::lcm;
use crate::options::has_indexers;
use crate::sharing::beginning::{fillable_tokens, keeps_state, prefix_identity, prompt_grid, resume_state};
use crate::{Engine, EngineError, Sequence};

/// Bytes of pages taken from a fetch, or copied for publishing, per step.
pub(crate) const STEP_BYTES: usize = 32 << 20;

/// A store that shares beginnings with other processes and machines.
#[derive(Debug, Clone)]
pub struct SharedStoreOptions {
    /// The store.
    pub store: Arc<dyn BlockStore>,
    /// Options for the use of the store.
    pub use_as: SharedOptions,
    /// Also exchange pages with machines that round differently: with another instruction set, device or version.
    /// Answers are equally good, but not bit-equal.
    pub any_machine: bool,
}

/// The use of a shared store in a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SharedReport {
    /// Address of the store.
    pub address: String,
    /// Prompt tokens found in the store.
    pub found_tokens: usize,
    /// Milliseconds from the request to the arrival of the found tokens.
    pub load_ms: f64,
    /// Bytes received.
    pub fetched_bytes: u64,
    /// Damaged blocks; they were not used.
    pub bad_blocks: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Bytes written.
    pub published_bytes: u64,
    /// Size of these as unpacked pages, in bytes.
    pub published_raw_bytes: u64,
    /// Blocks not written because the store failed.
    pub dropped_blocks: u64,
    /// Lines for the operator: that the store failed, that it works again.
    pub notices: Vec<String>,
    /// Milliseconds that the run waited at its end for all writes.
    pub flush_ms: f64,
}

/// A shared store in use.
pub(crate) struct SharedPrefixes {
    pub(crate) blocks: SharedBlocks,
    any_machine: bool,
    report: SharedReport,
}

/// A beginning being loaded into a sequence.
pub(crate) struct SharedSearch {
    pub(crate) fetch: SharedFetch,
    began: Instant,
    /// The sequence's tokens in whole pages; it is truncated to them when the first block arrives.
    held: usize,
    is_cut: bool,
    /// Maximum number of tokens of the sequence.
    most: usize,
    /// True if nothing more will arrive.
    pub(crate) is_over: bool,
    early: Option<Early>,
}

/// A beginning that counts as read while its last layers are still loading.
struct Early {
    /// Number of tokens in the beginning.
    tokens: usize,
    /// Number of complete leading layers, cut to these tokens.
    layers: usize,
}

/// Progress of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetched {
    Some,
    NotYet,
    Over,
}

impl SharedPrefixes {
    pub(crate) fn open(options: &SharedStoreOptions) -> Result<Self, EngineError> {
        let blocks = SharedBlocks::open(Arc::clone(&options.store), options.use_as.clone())?;
        Ok(Self {
            report: SharedReport {
                address: blocks.address().to_owned(),
                ..SharedReport::default()
            },
            blocks,
            any_machine: options.any_machine,
        })
    }

    /// The report at the end of a run, with failures.
    pub(crate) fn into_report(self) -> SharedReport {
        SharedReport {
            notices: self.blocks.take_notices(),
            ..self.report()
        }
    }

    pub(crate) fn report(&self) -> SharedReport {
        let counts = self.blocks.counts();
        SharedReport {
            fetched_bytes: counts.fetched_bytes,
            bad_blocks: counts.bad_blocks,
            failures: counts.failures,
            published_bytes: counts.published_bytes,
            published_raw_bytes: counts.published_raw_bytes,
            dropped_blocks: counts.dropped,
            notices: Vec::new(),
            ..self.report.clone()
        }
    }

    /// Waits until all published data is written, at most `time`.
    pub(crate) fn flush(&mut self, time: Duration) -> bool {
        let began = Instant::now();
        let all = self.blocks.flush(time);
        self.report.flush_ms += began.elapsed().as_secs_f64() * 1e3;
        all
    }

    /// Fills a sequence with the store's part of `tokens`, and waits for it.
    pub(crate) fn fill(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), EngineError> {
        let mut search = begin_fetch(sequence, self, tokens)?;
        loop {
            match advance_fetch(sequence, self, &mut search, tokens)? {
                Fetched::Some => {}
                Fetched::NotYet => search.fetch.wait(Duration::from_millis(200)),
                Fetched::Over => return Ok(()),
            }
        }
    }

    /// Publishes a sequence's prompt. Waits while the queue is full, at most `time`.
    pub(crate) fn publish_all(&mut self, sequence: &Sequence, time: Duration) -> Result<(), EngineError> {
        let until = Instant::now() + time;
        let mut offered = 0;
        loop {
            let before = offered;
            offered = publish(sequence, self, offered)?;
            let left = until.saturating_duration_since(Instant::now());
            if offered + sequence.engine().options().cache.page_tokens > sequence.prefilled() {
                self.flush(left);
                return Ok(());
            }
            if offered == before && (left.is_zero() || !self.flush(left)) {
                return Ok(());
            }
        }
    }
}

impl SharedSearch {
    /// True if a step has work.
    pub(crate) fn has_arrived(&self) -> bool {
        !self.is_over && self.fetch.has_arrived()
    }
}

/// Begins to fetch the store's part of `tokens` without waiting. The sequence already holds the first of `tokens`.
pub(crate) fn begin_fetch(
    sequence: &Sequence,
    shared: &SharedPrefixes,
    tokens: &[u32],
) -> Result<SharedSearch, EngineError> {
    let identity = shared_identity(sequence, shared.any_machine)?;
    let step = lcm(sequence.engine().options().cache.page_tokens, prompt_grid(sequence));
    let held = sequence.tokens().len() / step * step;
    let [most, looked_at] = fillable_tokens(sequence, tokens.len());
    let fetch = shared.blocks.fetch(&FetchRequest {
        shape: *sequence.attention().cache.shape(),
        identity: &identity,
        tokens: &tokens[..looked_at.max(held).min(tokens.len())],
        held_tokens: held,
        wants_note: sequence.recurrence().is_recurrent(),
    });
    Ok(SharedSearch {
        fetch,
        began: Instant::now(),
        held,
        is_cut: false,
        most,
        is_over: false,
        early: None,
    })
}

/// Adds arrived blocks, in a bounded step. At the end the sequence is unchanged, or has more whole chunks of
/// `tokens`.
///
/// # Errors
/// The errors of an append; the fetch has then ended, and the sequence has whole pages of its earlier tokens.
pub(crate) fn advance_fetch(
    sequence: &mut Sequence,
    shared: &mut SharedPrefixes,
    search: &mut SharedSearch,
    tokens: &[u32],
) -> Result<Fetched, EngineError> {
    if !search.fetch.has_arrived() {
        return Ok(Fetched::NotYet);
    }
    if !search.is_cut && search.fetch.has_block() {
        search.is_cut = true;
        sequence.hold_prompt(search.held, search.held, &[]);
    }
    match search.fetch.fill(&mut sequence.attention_mut().cache, STEP_BYTES) {
        Ok(false) => Ok(Fetched::Some),
        Ok(true) => {
            let before = sequence.tokens().len();
            end_fetch(sequence, search, tokens)?;
            shared.report.found_tokens += sequence.tokens().len().saturating_sub(before);
            shared.report.load_ms += search.began.elapsed().as_secs_f64() * 1e3;
            Ok(Fetched::Over)
        }
        Err(error) => {
            drop_fetch(sequence, search);
            Err(error.into())
        }
    }
}

fn end_fetch(sequence: &mut Sequence, search: &mut SharedSearch, tokens: &[u32]) -> Result<(), EngineError> {
    if !search.is_cut {
        return Ok(());
    }
    let whole = search.fetch.whole_tokens(&sequence.attention().cache);
    if sequence.recurrence().is_recurrent() {
        match search.fetch.take_note().filter(|(noted, _)| *noted <= whole) {
            Some((noted, note)) => {
                sequence.hold_prompt(search.held, noted, tokens);
                resume_state(sequence, &note, noted)?;
            }
            None => drop(sequence.forget_all()),
        }
        return Ok(());
    }
    let grid = prompt_grid(sequence);
    sequence.hold_prompt(search.held, whole.min(search.most) / grid * grid, tokens);
    Ok(())
}

/// Counts a beginning as read when its first layers are complete, so that a pass can begin while the others are
/// loading: [`has_layer`](Self::has_layer) limits the pass. Returns false if it is too early, or something reads all
/// layers before a pass.
pub(crate) fn begin_early(sequence: &mut Sequence, search: &mut SharedSearch, tokens: &[u32]) -> bool {
    let looks_at_all = sequence.recurrence().is_recurrent()
        || has_indexers(sequence.engine().model().config())
        || sequence.attention().reader.may_keep_results()
        || sequence.options().window.is_some();
    let expected = search.fetch.expected_tokens().unwrap_or(0);
    let kept = expected.min(search.most) / prompt_grid(sequence) * prompt_grid(sequence);
    if looks_at_all
        || !search.is_cut
        || kept <= search.held
        || search.fetch.ready_layers(&sequence.attention().cache) == 0
    {
        return false;
    }
    sequence.hold_early(&tokens[search.held..kept]);
    search.early = Some(Early {
        tokens: kept,
        layers: 0,
    });
    true
}

/// Adds more of a beginning that a pass already continues from.
pub(crate) fn advance_early(sequence: &mut Sequence, search: &mut SharedSearch) {
    // Pages without room are missed when the pass needs them.
    search.is_over = search
        .fetch
        .fill(&mut sequence.attention_mut().cache, STEP_BYTES)
        .unwrap_or(true);
}

/// True if a pass may attend in a layer of the cache; `None` if the layer will never be complete.
pub(crate) fn has_layer(sequence: &mut Sequence, search: &mut SharedSearch, layer: usize) -> Option<bool> {
    let expected = search.fetch.expected_tokens().unwrap_or(0);
    let Some(early) = &mut search.early else {
        return Some(true);
    };
    while early.layers <= layer {
        if sequence.attention().cache.tokens(early.layers) < expected {
            return (!search.is_over).then_some(false);
        }
        let cache = &mut sequence.attention_mut().cache;
        for kv_head in 0..cache.shape().layer(early.layers).kv_heads {
            cache.truncate_head(early.layers, kv_head, early.tokens);
        }
        early.layers += 1;
    }
    Some(true)
}

/// Counts the tokens of a fetch from which a pass has continued. The fetch is complete, because the pass has read all
/// layers.
pub(crate) fn complete_early(shared: &mut SharedPrefixes, search: &SharedSearch) {
    if let Some(early) = &search.early {
        shared.report.found_tokens += early.tokens - search.held;
        shared.report.load_ms += search.began.elapsed().as_secs_f64() * 1e3;
    }
}

/// Returns to the completely arrived tokens, after a pass was abandoned because a layer did not arrive. The sequence
/// then has at most the tokens that were counted as read.
pub(crate) fn give_up_early(sequence: &mut Sequence, search: &SharedSearch) {
    let whole = search.fetch.whole_tokens(&sequence.attention().cache);
    let grid = prompt_grid(sequence);
    let held = whole.min(sequence.tokens().len()) / grid * grid;
    sequence.hold_prompt(held, held, &[]);
}

/// Removes the results of an abandoned fetch.
pub(crate) fn drop_fetch(sequence: &mut Sequence, search: &SharedSearch) {
    if search.is_cut {
        if sequence.recurrence().is_recurrent() {
            drop(sequence.forget_all())
        } else {
            sequence.hold_prompt(search.held, search.held, &[])
        }
    }
}

/// Copies pages of the prompt, from token `from` on, and the state of recurrent layers if known. Threads write the
/// copies to a shared store in the background. The step is bounded. Returns the number of tokens that need not be
/// offered again.
pub(crate) fn publish(sequence: &Sequence, shared: &SharedPrefixes, from: usize) -> Result<usize, EngineError> {
    let (attention, blocks) = (sequence.attention(), &shared.blocks);
    if !attention.is_whole() {
        return Ok(sequence.prefilled());
    }
    let identity = shared_identity(sequence, shared.any_machine)?;
    let read = &sequence.tokens()[..sequence.prefilled()];
    let offered = blocks.publish(&attention.cache, &identity, read, from, STEP_BYTES)?;
    if sequence.recurrence().is_recurrent() && offered == sequence.prefilled() && keeps_state(sequence) {
        let note = sequence.recurrence().state.to_bytes();
        if !blocks.publish_note(attention.cache.shape(), &identity, read, note) {
            return Ok(offered - sequence.engine().options().cache.page_tokens);
        }
    }
    Ok(offered)
}

fn shared_identity(sequence: &Sequence, any_machine: bool) -> Result<Vec<u8>, EngineError> {
    let mut identity = prefix_identity(sequence)?;
    if !any_machine {
        identity.extend_from_slice(machine(sequence.engine()).as_bytes());
    }
    Ok(identity)
}

/// The parts of a machine that affect the last bits of keys and values besides the model and its options: attention
/// sums follow its vector width, and angles come from the system's math library.
fn machine(engine: &Engine) -> String {
    let (architecture, instructions) = (std::env::consts::ARCH, riffle_attention::instruction_set());
    let is_musl = cfg!(target_env = "musl");
    let system = if is_musl { "musl" } else { std::env::consts::OS };
    let (device, version) = (engine.compute().name(), env!("CARGO_PKG_VERSION"));
    format!("machine\t{architecture} {instructions} {system} {device} {version}\n")
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::{EngineOptions, Session, prefix_cuts};

    fn prefill(session: &mut Session, tokens: &[u32]) {
        session.prefill(tokens, &mut |_| ControlFlow::Continue(())).unwrap();
    }

    #[test]
    fn logits_after_adopted_pages_are_those_of_reading_everything_to_the_bit() {
        for (model, prefill_policy, any_machine) in [
            ("model", "full", false),
            ("model", "full", true),
            ("model", "streaming", false),
            ("model-hybrid", "full", false),
        ] {
            let options = EngineOptions::default()
                .with_context_tokens(Some(1024))
                .with_batch_tokens(128)
                .with_chunk_tokens(64)
                .with_page_tokens(32)
                .with_prefill(prefill_policy.parse().unwrap());
            let engine = Engine::load(riffle_testing::fixture(model), options).unwrap();
            let store = riffle_testing::store::FakeStore::default();
            let open = || {
                SharedPrefixes::open(&SharedStoreOptions {
                    store: Arc::new(store.clone()),
                    use_as: SharedOptions::default(),
                    any_machine,
                })
                .unwrap()
            };
            let tokens: Vec<u32> = (0..600).map(|at| at * 7 % 200).collect();
            let (mut shared, mut reader) = (open(), Session::new(&engine).unwrap());
            for end in prefix_cuts(reader.sequence(), 600).into_iter().chain([600]) {
                let held = reader.tokens().len();
                prefill(&mut reader, &tokens[held..end]);
                shared.publish_all(reader.sequence(), Duration::from_secs(20)).unwrap();
            }
            for count in [600, 599, 577, 576, 513, 512, 300] {
                let other = [&tokens[..count], &[3, 1, 4]].concat();
                let mut expected = Session::new(&engine).unwrap();
                prefill(&mut expected, &other);
                let mut found = Session::new(&engine).unwrap();
                let mut shared = open();
                shared.fill(found.sequence_mut(), &other).unwrap();
                let adopted = found.tokens().len();
                // States are stored near the end of the read text.
                let is_some = adopted > 0 || count < 512;
                assert!(
                    is_some && adopted <= count,
                    "{model} {prefill_policy}: {adopted} of {count}"
                );
                prefill(&mut found, &other[adopted..]);
                assert_eq!(found.logits(), expected.logits(), "{model} {prefill_policy} {count}");
            }
        }
    }
}
