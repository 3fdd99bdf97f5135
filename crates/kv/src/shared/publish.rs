//! Publishes blocks: copies them into a bounded queue, from which threads write them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::envelope::{BlockName, layers_of, seal_note, seal_slice, slices};
use super::known::Standing;
use super::sweep::SweepClock;
use super::{Inner, SharedBlocks, blocks_of, lock};
use crate::prefix::note_key;
use crate::{CacheShape, KvCache, KvError};

/// Number of writing threads.
const THREADS: usize = 2;
/// Number of tries per block.
const TRIES: u32 = 3;
/// Slowest acceptable write rate of a store, in bytes per second, besides the time of an operation.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;
/// Interval at which `flush` checks that the store works.
const FLUSH_LOOK: Duration = Duration::from_millis(50);
/// Interval at which an idle thread checks for due work.
const LOOK: Duration = Duration::from_secs(5);

/// The jobs waiting to be written.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    /// Bytes of the jobs that wait or are being written.
    bytes: usize,
    ended: bool,
}

struct Job {
    block: BlockName,
    shape: CacheShape,
    content: Content,
    /// True if the store is first asked whether it already has the content.
    asks: bool,
    tries: u32,
}

enum Content {
    /// Planes of each slice.
    Slices(Vec<Vec<u8>>),
    Note(Vec<u8>),
}

impl Job {
    fn bytes(&self) -> usize {
        match &self.content {
            Content::Slices(slices) => slices.iter().map(Vec::len).sum(),
            Content::Note(note) => note.len(),
        }
    }

    /// The name written last: if it exists, so does the whole job.
    fn last_name(&self) -> String {
        match &self.content {
            Content::Slices(slices) => self.block.slice(slices.len() - 1),
            Content::Note(_) => self.block.note(),
        }
    }

    /// The key under which the block's state is remembered.
    fn known_key(&self) -> u128 {
        match &self.content {
            Content::Slices(_) => self.block.key,
            Content::Note(_) => note_key(self.block.key),
        }
    }
}

impl Queue {
    pub(super) fn bytes(&self) -> usize {
        lock(&self.state).bytes
    }

    /// True if a job of `bytes` may wait. An empty queue accepts any job.
    fn has_room(&self, bytes: usize, most_bytes: usize) -> bool {
        let state = lock(&self.state);
        state.bytes == 0 || state.bytes + bytes <= most_bytes
    }

    fn push(&self, job: Job) {
        let mut state = lock(&self.state);
        state.bytes += job.bytes();
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_all();
    }

    /// The next job; `None` if there is none for a while, an error if there will be no more.
    fn pop(&self) -> Result<Option<Job>, ()> {
        let state = lock(&self.state);
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, LOOK, |state| state.jobs.is_empty() && !state.ended)
            .unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            Err(())
        } else {
            Ok(state.jobs.pop_front())
        }
    }

    fn retry(&self, job: Job) {
        lock(&self.state).jobs.push_front(job);
        self.changed.notify_all();
    }

    fn done(&self, bytes: usize) {
        lock(&self.state).bytes -= bytes;
        self.changed.notify_all();
    }

    fn sleep(&self, time: Duration) {
        let state = lock(&self.state);
        drop(self.changed.wait_timeout_while(state, time, |state| !state.ended));
    }
}

/// Ends the publishing threads on drop.
pub(super) struct Publishers(Arc<Inner>);

impl Publishers {
    pub(super) fn start(inner: &Arc<Inner>) -> Result<Self, KvError> {
        let publishers = Self(Arc::clone(inner));
        for number in 0..THREADS {
            let inner = Arc::clone(inner);
            let started = thread::Builder::new()
                .name("riffle-publish".to_owned())
                .spawn(move || publish_all(&inner, number == 0));
            started.map_err(|source| KvError::Thread { source })?;
        }
        Ok(publishers)
    }
}

impl Drop for Publishers {
    fn drop(&mut self) {
        lock(&self.0.queue.state).ended = true;
        self.0.queue.changed.notify_all();
    }
}

impl SharedBlocks {
    /// Copies whole pages of the first `tokens.len()` tokens of a cache, from token `from` on. Threads write the copies
    /// to the store in the background. It takes about `most_bytes` at most, and no more than the queue has room for.
    /// Returns the number of leading tokens whose pages were taken or are known to be in the store.
    ///
    /// # Errors
    /// Any error of reading a page.
    pub fn publish(
        &self,
        cache: &KvCache,
        identity: &[u8],
        tokens: &[u32],
        from: usize,
        most_bytes: usize,
    ) -> Result<usize, KvError> {
        let (shape, page) = (*cache.shape(), cache.shape().page_tokens);
        let held = (0..shape.layers.count())
            .map(|layer| cache.tokens(layer))
            .min()
            .unwrap_or(0);
        let tokens = &tokens[..tokens.len().min(held)];
        let block_bytes = usize::try_from(shape.bytes_for(page)).unwrap_or(usize::MAX);
        let (mut copied, mut end) = (0, from / page * page);
        for block in blocks_of(&shape, identity, tokens).into_iter().skip(from / page) {
            if lock(&self.inner.known).get(block.key) != Some(Standing::There) {
                let most = self.inner.options.publish_bytes;
                if copied >= most_bytes || !self.inner.queue.has_room(block_bytes, most) {
                    break;
                }
                let content = Content::Slices(copy(cache, &shape, block.depth)?);
                copied += block_bytes;
                self.push(block, shape, content);
            }
            end += page;
        }
        Ok(end)
    }

    /// Queues a note for a later fetch that finds exactly these tokens, which must be whole pages. The note holds
    /// state that keys and values alone cannot restore. False if the queue has no room.
    pub fn publish_note(&self, shape: &CacheShape, identity: &[u8], tokens: &[u32], note: Vec<u8>) -> bool {
        let Some(block) = blocks_of(shape, identity, tokens).pop() else {
            return true;
        };
        let has_room = self.inner.queue.has_room(note.len(), self.inner.options.publish_bytes);
        if has_room && tokens.len().is_multiple_of(shape.page_tokens) {
            self.push(block, *shape, Content::Note(note));
        }
        has_room
    }

    /// True if pages can be published now: the queue has room, and the store is not paused.
    pub fn can_publish(&self, shape: &CacheShape) -> bool {
        let block_bytes = usize::try_from(shape.bytes_for(shape.page_tokens)).unwrap_or(usize::MAX);
        let has_room = self.inner.queue.has_room(block_bytes, self.inner.options.publish_bytes);
        has_room && !lock(&self.inner.breaker).is_paused(Instant::now())
    }

    /// Waits until everything published is in the store or dropped. False if this takes longer than `time`, or the
    /// store keeps failing.
    pub fn flush(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = lock(&self.inner.queue.state);
        while state.bytes > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || lock(&self.inner.breaker).failures() > 1 {
                return false;
            }
            let waited = self.inner.queue.changed.wait_timeout(state, left.min(FLUSH_LOOK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn push(&self, block: BlockName, shape: CacheShape, content: Content) {
        let mut job = Job {
            block,
            shape,
            content,
            asks: false,
            tries: 0,
        };
        let mut known = lock(&self.inner.known);
        let standing = known.get(job.known_key());
        if standing == Some(Standing::There) {
            return;
        }
        job.asks = standing.is_none();
        known.set(job.known_key(), Standing::There);
        drop(known);
        self.inner.queue.push(job);
    }
}

/// The planes of a page of all layers, slice by slice.
fn copy(cache: &KvCache, shape: &CacheShape, number: usize) -> Result<Vec<Vec<u8>>, KvError> {
    let slice = |slice| {
        let layers = layers_of(shape, slice);
        let mut planes = Vec::with_capacity(super::envelope::raw_bytes(shape, slice));
        for table in layers.flat_map(|layer| shape.tables_of(layer)) {
            let store = cache.pool.read();
            let (keys, values, _) = cache.pages_in(&store).planes(table, number)?;
            planes.extend_from_slice(&keys);
            planes.extend_from_slice(&values);
        }
        Ok(planes)
    };
    (0..slices(shape)).map(slice).collect()
}

/// The work of a publishing thread until the queue closes.
fn publish_all(inner: &Inner, sweeps: bool) {
    let mut clock = SweepClock::default();
    while let Ok(job) = inner.queue.pop() {
        if let Some(job) = job {
            clock.note_published();
            publish(inner, job);
        }
        if sweeps && clock.is_due(&inner.options) {
            // Blocks that cannot be listed now are swept later; other uses of the store report its failure.
            drop(super::sweep::sweep(&*inner.store, &inner.options));
        }
    }
}

/// Writes a job, postpones it, or drops it.
fn publish(inner: &Inner, mut job: Job) {
    let paused_until = lock(&inner.breaker).paused_until();
    if let Some(pause) = paused_until.and_then(|until| until.checked_duration_since(Instant::now())) {
        inner.queue.sleep(pause);
    }
    let bytes = job.bytes();
    if write(inner, &job).is_some() {
        return inner.queue.done(bytes);
    }
    job.tries += 1;
    if job.tries < TRIES {
        return inner.queue.retry(job);
    }
    inner.counts.dropped.add(1);
    lock(&inner.known).set(job.known_key(), Standing::Bad);
    inner.queue.done(bytes);
}

/// Writes the content that the store lacks; `None` on failure.
fn write(inner: &Inner, job: &Job) -> Option<()> {
    let time = |bytes: usize| inner.options.operation_time + Duration::from_secs(bytes as u64 / SLOWEST_BYTES_PER_S);
    if job.asks && job.tries == 0 {
        let last = [job.last_name()];
        let there = inner.ask(time(0), |store, until| store.contains(&last, until))?;
        if there.first() == Some(&true) {
            inner.counts.already_there.add(1);
            return Some(());
        }
    }
    let put = |name: String, sealed: Vec<u8>, raw_bytes: usize| {
        let bytes = sealed.len();
        inner.ask(time(bytes), |store, until| store.put(&name, sealed, until))?;
        inner.counts.count_published(bytes, raw_bytes);
        Some(())
    };
    match &job.content {
        Content::Note(note) => put(job.last_name(), seal_note(&job.block, note), note.len()),
        Content::Slices(slices) => slices.iter().enumerate().try_for_each(|(slice, planes)| {
            let sealed = seal_slice(&job.shape, &job.block, slice, planes);
            put(job.block.slice(slice), sealed, planes.len())
        }),
    }
}
