//! Remembers which blocks the store has, so that this process need not ask again.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Blocks remembered at most.
const MOST: usize = 1 << 17;
/// Time for which the knowledge of a block is valid, because others remove blocks.
const FRESH: Duration = Duration::from_secs(600);

/// State of a block in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The store has the block, or the block waits to be written.
    There,
    /// The stored block is damaged or incomplete: it is overwritten without asking.
    Bad,
}

#[derive(Debug, Default)]
pub(super) struct KnownBlocks {
    blocks: HashMap<u128, (Standing, Instant)>,
    /// Keys in the order in which they were learned.
    order: VecDeque<u128>,
}

impl KnownBlocks {
    pub(super) fn get(&self, key: u128) -> Option<Standing> {
        let (standing, since) = self.blocks.get(&key)?;
        (since.elapsed() < FRESH).then_some(*standing)
    }

    pub(super) fn set(&mut self, key: u128, standing: Standing) {
        if self.blocks.insert(key, (standing, Instant::now())).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > MOST {
            if let Some(oldest) = self.order.pop_front() {
                self.blocks.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_blocks_are_forgotten_beyond_the_most() {
        let mut known = KnownBlocks::default();
        (0..MOST as u128 + 10).for_each(|key| known.set(key, Standing::There));
        assert_eq!((known.blocks.len(), known.order.len()), (MOST, MOST));
        assert_eq!(known.get(9), None);
        assert_eq!(known.get(10), Some(Standing::There));
        known.set(10, Standing::Bad);
        assert_eq!((known.get(10), known.order.len()), (Some(Standing::Bad), MOST));
    }
}
