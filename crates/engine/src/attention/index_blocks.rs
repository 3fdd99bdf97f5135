//! Keys of the complete blocks of indexers that rank blocks. They follow from the cached keys of tokens, so forks and
//! stored sequences do not hold them.

use riffle_attention::{LANES, PageView, Plane, PlaneMut, read_keys, write_keys};
use riffle_kv::KvCache;
use riffle_model::{BlockKeys, IndexerShape};

use crate::EngineError;
use crate::attention::ByHead;
use crate::attention::by_head::FollowsTokens;

/// The keys of a sequence's blocks, by cache layer. An indexer has one head.
pub(crate) type IndexBlocks = ByHead<LayerBlocks>;

/// The keys of one layer's complete blocks.
#[derive(Default)]
pub(crate) struct LayerBlocks {
    /// Tokens of a block.
    block: usize,
    width: usize,
    blocks: usize,
    /// `LANES` blocks each, in a page's layout of keys.
    pages: Vec<Vec<f32>>,
}

impl IndexBlocks {
    /// Adds the blocks that the cached tokens complete, up to slot `tokens`.
    pub(super) fn extend(
        &mut self,
        cache: &KvCache,
        (cache_layer, shape): (usize, &IndexerShape),
        rule: &BlockKeys,
        tokens: usize,
    ) -> Result<(), EngineError> {
        let layer = self.get_or([cache_layer, 0, 0], || LayerBlocks {
            block: shape.block,
            width: shape.width,
            ..LayerBlocks::default()
        });
        let (first, end) = (layer.blocks, tokens / layer.block);
        if first >= end {
            return Ok(());
        }
        cache.with_keys(cache_layer, 0, first * layer.block, |pages| {
            layer.add(pages, rule, end);
        })?;
        Ok(())
    }

    /// The blocks of a layer as pages, whose tokens are blocks.
    pub(super) fn pages(&self, cache_layer: usize) -> Vec<PageView<'_>> {
        let layer = self.get([cache_layer, 0, 0]);
        layer.map(LayerBlocks::views).unwrap_or_default()
    }

    /// Bytes of the blocks of one indexer for a context.
    pub(crate) fn planned_bytes(shape: &IndexerShape, context_tokens: usize) -> u64 {
        if shape.block == 1 {
            return 0;
        }
        let blocks = (context_tokens / shape.block).next_multiple_of(LANES);
        (blocks * shape.width * size_of::<f32>()) as u64
    }
}

impl FollowsTokens for LayerBlocks {
    fn tokens(&self) -> usize {
        self.blocks * self.block
    }

    fn truncate(&mut self, tokens: usize) {
        self.blocks = self.blocks.min(tokens / self.block);
        self.pages.truncate(self.blocks.div_ceil(LANES));
    }
}

impl LayerBlocks {
    /// Adds blocks up to `end` from the pages with their tokens' keys.
    fn add(&mut self, pages: &[PageView<'_>], rule: &BlockKeys, end: usize) {
        const SOUND: &str = "pages hold the tokens they say, of the indexer's width";
        let width = self.width;
        let mut keys = vec![0.0; self.block * width];
        let mut key = vec![0.0; width];
        let mut pages = pages.iter().peekable();
        while self.blocks < end {
            let tokens = self.blocks * self.block..(self.blocks + 1) * self.block;
            let mut token = tokens.start;
            while token < tokens.end {
                let Some(page) = pages.peek() else { return };
                let count = (page.start + page.tokens).min(tokens.end).saturating_sub(token);
                if count > 0 {
                    let out = &mut keys[(token - tokens.start) * width..][..count * width];
                    read_keys(&page.keys, width, token - page.start, count, out, width).expect(SOUND);
                    token += count;
                }
                if token < tokens.end {
                    pages.next();
                }
            }
            rule.write(&keys, tokens.start, &mut key);
            if self.blocks.is_multiple_of(LANES) {
                self.pages.push(vec![0.0; LANES * width]);
            }
            if let Some(page) = self.pages.last_mut() {
                let slot = self.blocks % LANES;
                write_keys(&mut PlaneMut::F32(page), width, slot, 1, &*key, width).expect(SOUND);
            }
            self.blocks += 1;
        }
    }

    fn views(&self) -> Vec<PageView<'_>> {
        let pages = self.pages.iter().enumerate();
        let views = pages.map(|(number, keys)| PageView {
            start: number * LANES,
            tokens: LANES.min(self.blocks - number * LANES),
            keys: Plane::F32(keys),
            values: Plane::F32(&[]),
        });
        views.collect()
    }
}
