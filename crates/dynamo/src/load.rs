//! Reports the current load in the form of Dynamo's router.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dynamo_backend_common::{ComponentSnapshot, SnapshotPublisher};

/// Counts the blocks of the current requests, and tells Dynamo's publisher when their number changes.
///
/// A block counts once for each request that uses it, including waiting ones. Blocks of idle sequences do not count,
/// because new requests may take their place.
#[derive(Default)]
pub(crate) struct Load(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    publisher: Option<Arc<SnapshotPublisher>>,
    page_tokens: u64,
    total_blocks: u64,
    used_blocks: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
}

/// A request with counted blocks. Dropping it removes them from the count.
pub(crate) struct CountedRequest {
    load: Arc<Load>,
    tokens: u64,
}

impl Load {
    /// Starts to count for a cache of this many blocks.
    pub(crate) fn begin(&self, page_tokens: usize, total_blocks: u64) {
        let mut counts = self.counts();
        counts.page_tokens = page_tokens as u64;
        counts.total_blocks = total_blocks;
    }

    /// Sets the publisher that receives the load at each change.
    pub(crate) fn set_publisher(&self, publisher: Arc<SnapshotPublisher>) {
        let mut counts = self.counts();
        counts.publisher = Some(publisher);
        counts.publish();
    }

    /// Drops the publisher.
    pub(crate) fn end(&self) {
        self.counts().publisher = None;
    }

    /// Counts a request with a prompt of this many tokens.
    pub(crate) fn count_request(self: &Arc<Self>, prompt_tokens: usize) -> CountedRequest {
        self.change(0, prompt_tokens as u64);
        CountedRequest {
            load: Arc::clone(self),
            tokens: prompt_tokens as u64,
        }
    }

    /// Counts the cached part of a prompt.
    pub(crate) fn count_prompt(&self, prompt_tokens: usize, cached_tokens: usize) {
        let mut counts = self.counts();
        counts.prompt_tokens += prompt_tokens as u64;
        counts.cached_tokens += cached_tokens as u64;
    }

    /// Changes a request's number of tokens.
    fn change(&self, before: u64, after: u64) {
        let mut counts = self.counts();
        let page = counts.page_tokens.max(1);
        let (before, after) = (before.div_ceil(page), after.div_ceil(page));
        if before != after {
            counts.used_blocks = (counts.used_blocks + after).saturating_sub(before);
            counts.publish();
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn snapshot(&self) -> ComponentSnapshot {
        let share = |part: u64, whole: u64| (part as f64 / whole as f64) as f32;
        // Requests that share a beginning, or wait, may count more blocks than exist.
        let used = self.used_blocks.min(self.total_blocks);
        ComponentSnapshot {
            kv_used_blocks: used,
            kv_total_blocks: self.total_blocks,
            gpu_cache_usage: share(used, self.total_blocks.max(1)),
            kv_cache_hit_rate: (self.prompt_tokens > 0).then(|| share(self.cached_tokens, self.prompt_tokens)),
            dp_rank: 0,
        }
    }

    fn publish(&self) {
        if let Some(publisher) = &self.publisher {
            publisher.publish(0, self.snapshot());
        }
    }
}

impl CountedRequest {
    /// Counts a generated token.
    pub(crate) fn grow(&mut self) {
        self.load.change(self.tokens, self.tokens + 1);
        self.tokens += 1;
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.load.change(self.tokens, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_as_long_as_their_request_is_under_way() {
        let load = Arc::new(Load::default());
        load.begin(16, 10);
        let used = || load.counts().snapshot().kv_used_blocks;
        let mut first = load.count_request(32);
        assert_eq!(used(), 2);
        first.grow();
        assert_eq!(used(), 3);
        let second = load.count_request(1);
        assert_eq!(used(), 4);
        drop(first);
        assert_eq!(used(), 1);
        let many = load.count_request(16 * 100);
        assert_eq!(used(), 10);
        drop((second, many));
        assert_eq!(used(), 0);
        assert_eq!(load.counts().snapshot().kv_cache_hit_rate, None);
        load.count_prompt(64, 16);
        assert_eq!(load.counts().snapshot().kv_cache_hit_rate, Some(0.25));
    }
}
