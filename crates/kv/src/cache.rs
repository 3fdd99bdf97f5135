use riffle_attention::{PageView, write_keys, write_values};

use crate::arena::{Arena, Slot};
use crate::{CacheShape, KvError, KvUsage, TierBytes};

/// Keys and values of one sequence, in pages of (layer, KV head).
pub struct KvCache {
    shape: CacheShape,
    budget_bytes: Option<u64>,
    pub(crate) keys: Arena,
    pub(crate) values: Arena,
    /// `[layers, kv_heads]` page tables.
    tables: Vec<Vec<PageEntry>>,
    /// `[layers]`
    tokens: Vec<usize>,
    pages: usize,
}

/// Keys and values have slots of their own, so that they can part ways.
#[derive(Clone, Copy)]
struct PageEntry {
    keys: Slot,
    values: Slot,
}

impl KvCache {
    /// An empty cache, which takes no page memory before tokens arrive and never more than `budget_bytes`.
    ///
    /// # Errors
    /// [`KvError::Shape`].
    pub fn new(shape: CacheShape, budget_bytes: Option<u64>) -> Result<Self, KvError> {
        shape.validate()?;
        Ok(Self {
            shape,
            budget_bytes,
            keys: Arena::new(shape.key_format, shape.page_tokens, shape.head_dim),
            values: Arena::new(shape.value_format, shape.page_tokens, shape.head_dim),
            tables: vec![Vec::new(); shape.layers * shape.kv_heads],
            tokens: vec![0; shape.layers],
            pages: 0,
        })
    }

    /// The cache's shape.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Tokens in a layer; 0 for a layer that does not exist.
    pub fn tokens(&self, layer: usize) -> usize {
        self.tokens.get(layer).copied().unwrap_or(0)
    }

    /// Appends tokens to a layer. Keys and values are `[tokens, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::Length`], [`KvError::Budget`] (before anything is allocated) and
    /// [`KvError::Memory`]; the cache holds what it held before.
    pub fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), KvError> {
        let CacheShape {
            layers,
            kv_heads,
            head_dim,
            page_tokens,
            ..
        } = self.shape;
        if layer >= layers {
            return Err(KvError::Layer { layer, layers });
        }
        let width = kv_heads * head_dim;
        if keys.len() != values.len() || !keys.len().is_multiple_of(width) {
            return Err(KvError::Length {
                keys: keys.len(),
                values: values.len(),
                width,
            });
        }
        let held = self.tokens[layer];
        let added = keys.len() / width;
        self.take_pages(layer, held + added)?;

        for kv_head in 0..kv_heads {
            let table = &self.tables[layer * kv_heads + kv_head];
            let mut token = 0;
            while token < added {
                let slot = (held + token) % page_tokens;
                let count = (page_tokens - slot).min(added - token);
                let at = token * width + kv_head * head_dim;
                let entry = table[(held + token) / page_tokens];
                let plane = &mut self.keys.plane_mut(entry.keys);
                write_keys(plane, head_dim, slot, count, &keys[at..], width).expect("lengths are checked");
                let plane = &mut self.values.plane_mut(entry.values);
                write_values(plane, head_dim, slot, count, &values[at..], width).expect("lengths are checked");
                token += count;
            }
        }
        self.tokens[layer] = held + added;
        Ok(())
    }

    /// The pages of a (layer, KV head) in order; none for a layer or head that does not exist.
    pub fn pages(&self, layer: usize, kv_head: usize) -> impl ExactSizeIterator<Item = PageView<'_>> {
        let page_tokens = self.shape.page_tokens;
        let tokens = self.tokens(layer);
        let exists = layer < self.shape.layers && kv_head < self.shape.kv_heads;
        let table: &[PageEntry] = if exists {
            &self.tables[layer * self.shape.kv_heads + kv_head]
        } else {
            &[]
        };
        table.iter().enumerate().map(move |(number, entry)| PageView {
            start: number * page_tokens,
            tokens: page_tokens.min(tokens - number * page_tokens),
            keys: self.keys.plane(entry.keys),
            values: self.values.plane(entry.values),
        })
    }

    /// Forgets everything after the first `tokens` tokens, in every layer; freed pages go back to the operating
    /// system.
    pub fn truncate(&mut self, tokens: usize) {
        for held in &mut self.tokens {
            *held = tokens.min(*held);
        }
        self.drain_pages(tokens.div_ceil(self.shape.page_tokens), usize::MAX);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// What the cache holds.
    pub fn usage(&self) -> KvUsage {
        let tables: usize = self
            .tables
            .iter()
            .map(|table| table.capacity() * size_of::<PageEntry>())
            .sum();
        let records =
            self.tables.capacity() * size_of::<Vec<PageEntry>>() + self.tokens.capacity() * size_of::<usize>();
        let arenas = self.keys.bookkeeping_bytes() + self.values.bookkeeping_bytes();
        KvUsage {
            tokens: self.tokens.iter().copied().max().unwrap_or(0),
            pages: self.pages,
            bytes_by_tier: TierBytes {
                ram: self.pages as u64 * self.shape.page_bytes(),
                ..TierBytes::default()
            },
            bookkeeping_bytes: (tables + records + arenas) as u64,
        }
    }

    /// Bytes of memory mapped for pages: at least the pages' own, at most the budget.
    pub fn mapped_bytes(&self) -> u64 {
        (self.keys.mapped_bytes() + self.values.mapped_bytes()) as u64
    }

    /// Where a page that exists lies, and how many tokens it holds.
    pub(crate) fn page_slots(&self, layer: usize, kv_head: usize, page: usize) -> (Slot, Slot, usize) {
        let entry = self.tables[layer * self.shape.kv_heads + kv_head][page];
        let tokens = (self.tokens[layer] - page * self.shape.page_tokens).min(self.shape.page_tokens);
        (entry.keys, entry.values, tokens)
    }

    pub(crate) fn set_tokens(&mut self, layer: usize, tokens: usize) {
        self.tokens[layer] = tokens;
    }

    /// Takes `pages` entries from entry `first` on out of every table and frees their slots.
    pub(crate) fn drain_pages(&mut self, first: usize, pages: usize) {
        let (mut key_slots, mut value_slots) = (Vec::new(), Vec::new());
        for table in &mut self.tables {
            let end = first.saturating_add(pages).min(table.len());
            for entry in table.drain(first.min(end)..end) {
                key_slots.push(entry.keys);
                value_slots.push(entry.values);
            }
            table.shrink_to(2 * table.len());
        }
        if !key_slots.is_empty() {
            self.pages -= key_slots.len();
            self.keys.free(&mut key_slots);
            self.values.free(&mut value_slots);
        }
    }

    /// Extends an empty layer to `tokens` whose content is still to be filled in.
    pub(crate) fn extend_unfilled(&mut self, layer: usize, tokens: usize) -> Result<(), KvError> {
        self.take_pages(layer, tokens)?;
        self.tokens[layer] = tokens;
        Ok(())
    }

    /// Extends the layer's tables to `tokens`, or changes nothing.
    fn take_pages(&mut self, layer: usize, tokens: usize) -> Result<(), KvError> {
        let CacheShape {
            kv_heads, page_tokens, ..
        } = self.shape;
        let tables = layer * kv_heads..(layer + 1) * kv_heads;
        let held = self.tables[tables.start].len();
        let new_pages = tokens.div_ceil(page_tokens) - held;
        let most_pages = self.most_pages();
        let free = most_pages - self.pages;
        if new_pages > free / kv_heads {
            return Err(KvError::Budget {
                budget_bytes: self.budget_bytes.unwrap_or(u64::MAX),
                fitting_tokens: self.shape.tokens_for(self.budget_bytes.unwrap_or(u64::MAX)),
                layer,
                layer_tokens: (held + free / kv_heads) * page_tokens,
                wanted_tokens: tokens,
            });
        }
        let slots = new_pages * kv_heads;
        self.keys.reserve(slots, most_pages)?;
        if let Err(error) = self.values.reserve(slots, most_pages) {
            self.keys.free(&mut []);
            return Err(error);
        }
        for table in &mut self.tables[tables] {
            table.extend((0..new_pages).map(|_| PageEntry {
                keys: self.keys.take(),
                values: self.values.take(),
            }));
        }
        self.pages += slots;
        Ok(())
    }

    fn most_pages(&self) -> usize {
        let pages = self
            .budget_bytes
            .map_or(u64::MAX, |bytes| bytes / self.shape.page_bytes());
        usize::try_from(pages).unwrap_or(usize::MAX)
    }
}
