//! Documents that a worker holds, the one used longest ago leaving first.

use std::collections::{BTreeMap, HashMap};

pub(super) struct Held {
    most: usize,
    uses: u64,
    /// When each document was used last.
    used: HashMap<usize, u64>,
    by_use: BTreeMap<u64, usize>,
}

impl Held {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            uses: 0,
            used: HashMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    pub(super) fn has(&self, document: usize) -> bool {
        self.used.contains_key(&document)
    }

    /// Notes that a document is used; returns the one that leaves for it.
    pub(super) fn put(&mut self, document: usize) -> Option<usize> {
        if self.most == 0 {
            return Some(document);
        }
        self.uses += 1;
        if let Some(before) = self.used.insert(document, self.uses) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, document);
        if self.used.len() <= self.most {
            return None;
        }
        let (_, oldest) = self.by_use.pop_first()?;
        self.used.remove(&oldest);
        Some(oldest)
    }
}
