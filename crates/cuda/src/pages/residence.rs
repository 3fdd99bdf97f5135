//! Which pages lie on the device, and where.

use riffle_kv::CacheShape;

/// A page of one (layer, KV head) on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resident {
    pub(super) slot: usize,
    /// Tokens that have been brought.
    pub(super) tokens: usize,
}

/// The pages of every (layer, KV head) that lie in a fixed number of slots. The first page and the newest of each stay;
/// where there is no room, the oldest of those between leave for good, as in the tiers of a cache: whoever reads
/// everything would gain nothing from another order, and what is chosen rarely is chosen again comes through the ring.
#[derive(Debug)]
pub(super) struct Residence {
    kv_heads: usize,
    // [layers, kv_heads][pages]
    tables: Vec<Vec<Option<Resident>>>,
    // for each table the first page behind page 0 that may lie on the device
    frontiers: Vec<usize>,
    free: Vec<usize>,
    slots: usize,
}

impl Residence {
    pub(super) fn new(shape: &CacheShape, slots: usize) -> Self {
        let tables = shape.layers * shape.kv_heads;
        Self {
            kv_heads: shape.kv_heads,
            tables: vec![Vec::new(); tables],
            frontiers: vec![1; tables],
            free: (0..slots).rev().collect(),
            slots,
        }
    }

    /// Slots that hold nothing.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Slots in use.
    pub(super) fn used(&self) -> usize {
        self.slots - self.free.len()
    }

    pub(super) fn find(&self, layer: usize, kv_head: usize, page: usize) -> Option<Resident> {
        *self.tables[layer * self.kv_heads + kv_head].get(page)?
    }

    /// Notes that a resident page holds this many tokens now.
    pub(super) fn extend(&mut self, layer: usize, kv_head: usize, page: usize, tokens: usize) {
        let table = &mut self.tables[layer * self.kv_heads + kv_head];
        if let Some(Some(resident)) = table.get_mut(page) {
            resident.tokens = tokens;
        }
    }

    /// A slot for a page that is to stay, or `None` where it has no place. `keep` says of a page whether it is being read,
    /// which keeps its slot from another's hands.
    pub(super) fn place(
        &mut self,
        layer: usize,
        kv_head: usize,
        page: usize,
        keep: impl Fn(usize, usize, usize) -> bool,
    ) -> Option<usize> {
        let number = layer * self.kv_heads + kv_head;
        if page > 0 && page < self.frontiers[number] {
            return None;
        }
        if self.free.is_empty() {
            self.send_away(number, page, keep)?;
        }
        let slot = self.free.pop()?;
        let table = &mut self.tables[number];
        table.resize(table.len().max(page + 1), None);
        table[page] = Some(Resident { slot, tokens: 0 });
        Some(slot)
    }

    /// Frees the slot of the oldest page behind a frontier, older than `page` of table `newer`.
    fn send_away(&mut self, newer: usize, page: usize, keep: impl Fn(usize, usize, usize) -> bool) -> Option<()> {
        let oldest = |table: &Vec<Option<Resident>>, frontier: usize| {
            (frontier..table.len()).find(|page| table[*page].is_some())
        };
        let candidates = self.tables.iter().zip(&self.frontiers).enumerate();
        let candidates = candidates.filter_map(|(number, (table, frontier))| {
            let found = oldest(table, *frontier)?;
            // The newest page of a table is written to.
            let free = found + 1 < table.len() && !keep(number / self.kv_heads, number % self.kv_heads, found);
            free.then_some((found, number))
        });
        let (found, number) = candidates.min()?;
        if (found, number) >= (page, newer) {
            return None;
        }
        let resident = self.tables[number][found].take()?;
        self.frontiers[number] = found + 1;
        self.free.push(resident.slot);
        Some(())
    }

    /// Forgets what lies behind the first `tokens` tokens of every table.
    pub(super) fn truncate(&mut self, tokens: usize, page_tokens: usize) {
        for number in 0..self.tables.len() {
            self.cut(number, tokens, page_tokens);
        }
    }

    /// Forgets what lies behind the first `tokens` tokens of one (layer, KV head).
    pub(super) fn truncate_head(&mut self, layer: usize, kv_head: usize, tokens: usize, page_tokens: usize) {
        self.cut(layer * self.kv_heads + kv_head, tokens, page_tokens);
    }

    fn cut(&mut self, number: usize, tokens: usize, page_tokens: usize) {
        let (table, frontier) = (&mut self.tables[number], &mut self.frontiers[number]);
        let pages = tokens.div_ceil(page_tokens).min(table.len());
        let cut = table.drain(pages..).flatten();
        self.free.extend(cut.map(|resident| resident.slot));
        if let Some(Some(last)) = table.last_mut() {
            let start = (pages - 1) * page_tokens;
            last.tokens = last.tokens.min(tokens - start);
        }
        *frontier = (*frontier).min(table.len().max(1));
    }
}

#[cfg(test)]
mod tests {
    use riffle_attention::Format;

    use super::*;

    fn shape() -> CacheShape {
        CacheShape {
            layers: 2,
            kv_heads: 2,
            head_dim: 32,
            page_tokens: 64,
            key_format: Format::F16,
            value_format: Format::F16,
        }
    }

    #[test]
    fn the_first_and_the_newest_pages_stay_within_the_slots() {
        let mut residence = Residence::new(&shape(), 10);
        for page in 0..8 {
            for table in 0..4 {
                residence.place(table / 2, table % 2, page, |_, _, _| false);
                assert!(residence.used() <= 10);
            }
        }
        for table in 0..4 {
            let held: Vec<bool> = (0..8)
                .map(|page| residence.find(table / 2, table % 2, page).is_some())
                .collect();
            assert!(held[0] && held[7], "table {table}: {held:?}");
        }
    }

    #[test]
    fn what_is_cut_off_frees_its_slots_and_is_brought_again() {
        let mut residence = Residence::new(&shape(), 16);
        for page in 0..3 {
            let slot = residence.place(1, 0, page, |_, _, _| false).unwrap();
            residence.extend(1, 0, page, 64);
            assert_eq!(residence.find(1, 0, page), Some(Resident { slot, tokens: 64 }));
        }
        residence.truncate(70, 64);
        assert_eq!(residence.used(), 2);
        assert_eq!(residence.find(1, 0, 1).map(|page| page.tokens), Some(6));
        assert_eq!(residence.find(1, 0, 2), None);
        residence.truncate(0, 64);
        assert_eq!(residence.used(), 0);
    }
}
