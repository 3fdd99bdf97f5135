//! The set of held blocks, according to the events so far.

use std::collections::HashMap;

use crate::{Block, Event, Group, Medium};

/// The held blocks with their media. A publisher uses it for snapshots to late subscribers; a subscriber uses it for
/// routing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Picture {
    held: HashMap<(u64, Medium, Group), Block>,
}

impl Picture {
    /// Applies an event. Storing or removing a block twice has no further effect.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Stored { block, medium, group } => {
                self.held.insert((block.hash, *medium, *group), block.clone());
            }
            Event::Removed { hash, medium, group } => {
                self.held.remove(&(*hash, *medium, *group));
            }
            Event::Cleared => self.held.clear(),
        }
    }

    /// True if a block is held in this medium.
    pub fn holds(&self, hash: u64, medium: Medium, group: Group) -> bool {
        self.held.contains_key(&(hash, medium, group))
    }

    /// Number of blocks, counted once per medium.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True if nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Events that lead to this picture from any other: everything cleared, then every held block after its parent.
    pub fn snapshot(&self) -> Vec<Event> {
        let mut events = vec![Event::Cleared];
        let mut places: Vec<(Medium, Group)> = self.held.keys().map(|(_, medium, group)| (*medium, *group)).collect();
        places.sort_unstable();
        places.dedup();
        for (medium, group) in places {
            let blocks = || {
                let there = self.held.iter();
                let there = there.filter(move |((_, other, kind), _)| (*other, *kind) == (medium, group));
                there.map(|(_, block)| block)
            };
            // A block whose parent is elsewhere starts a new chain.
            let is_first = |block: &Block| block.parent.is_none_or(|parent| !self.holds(parent, medium, group));
            let mut children: HashMap<u64, Vec<&Block>> = HashMap::new();
            for block in blocks() {
                if let Some(parent) = block.parent {
                    children.entry(parent).or_default().push(block);
                }
            }
            let mut open: Vec<&Block> = blocks().filter(|block| is_first(block)).collect();
            while let Some(block) = open.pop() {
                open.extend(children.get(&block.hash).into_iter().flatten().copied());
                let block = block.clone();
                events.push(Event::Stored { block, medium, group });
            }
        }
        events
    }
}
