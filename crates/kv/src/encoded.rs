//! Appends tokens that are already encoded in the cache's formats.

use std::sync::Arc;

use riffle_attention::{AttendError, LANES, PageView, copy_keys, copy_values};

use crate::pool::{PageStore, PageVersion, PlaneKind};
use crate::{KvCache, KvError, LayerShape};

/// A KV head before an append.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadGrowth {
    /// Tokens in the head.
    pub held: usize,
    /// Versions of the pages for the new tokens. The first is the version of the last page, if it is not full.
    pub pages: Vec<PageVersion>,
}

impl KvCache {
    /// Appends `added` tokens to a layer as [`append`](Self::append) does, in planes of the cache's formats. When there
    /// is room, `encode` is called with the state of each KV head. It returns a view with the new tokens for each KV
    /// head. The view starts at the multiple of 16 at or below the head's token count. Only the new tokens are read.
    ///
    /// # Errors
    /// As [`append`](Self::append), [`KvError::Planes`] for planes of another shape, and errors of `encode`. The
    /// cache is then unchanged.
    pub fn append_encoded<'e, E: From<KvError>>(
        &mut self,
        layer: usize,
        added: usize,
        encode: impl FnOnce(&[HeadGrowth]) -> Result<Vec<PageView<'e>>, E>,
    ) -> Result<(), E> {
        self.check_layer(layer)?;
        let tables = self.shape().tables_of(layer);
        let shape = self.shape().layer(layer);
        let held = self.tokens[tables.clone()].to_vec();
        let pool = Arc::clone(&self.pool);
        let store = &mut *pool.write();
        self.take_pages(store, layer, added)?;
        let growth = tables.clone().zip(&held).map(|(table, held)| {
            let pages = &self.tables[table].pages()[held / pool.shape.page_tokens..];
            HeadGrowth {
                held: *held,
                pages: pages.iter().map(|page| store.version(*page)).collect(),
            }
        });
        let growth: Vec<HeadGrowth> = growth.collect();
        let copied = encode(&growth).and_then(|encoded| {
            let fits = encoded.len() == tables.len()
                && encoded
                    .iter()
                    .zip(&held)
                    .all(|(view, held)| view.start == held / LANES * LANES && view.start + view.tokens == held + added);
            let copied = fits.then(|| {
                let mut heads = tables.clone().zip(&encoded);
                heads.try_for_each(|(table, view)| self.copy_tokens(store, (table, shape), added, view))
            });
            match copied {
                Some(Ok(())) => Ok(()),
                _ => Err(KvError::Planes { layer }.into()),
            }
        });
        for (table, held) in tables.zip(held) {
            match &copied {
                Ok(()) => self.set_tokens(store, table, held + added),
                Err(_) => {
                    let first = held.div_ceil(pool.shape.page_tokens);
                    self.tables[table].set_cut(!held.is_multiple_of(pool.shape.page_tokens));
                    self.drain_pages_in(store, table..table + 1, first, usize::MAX);
                }
            }
        }
        copied
    }

    /// Copies the last `added` tokens of a view after the tokens of a table.
    fn copy_tokens(
        &self,
        store: &mut PageStore,
        (table, shape): (usize, LayerShape),
        added: usize,
        view: &PageView<'_>,
    ) -> Result<(), AttendError> {
        let page_tokens = self.shape().page_tokens;
        let (mut token, end) = (self.tokens[table], self.tokens[table] + added);
        while token < end {
            let (slot, from) = (token % page_tokens, token - view.start);
            let page = self.tables[table].pages()[token / page_tokens];
            let count = (page_tokens - slot).min(end - token);
            copy_keys(
                &mut store.plane_mut(page, PlaneKind::Keys),
                slot,
                &view.keys,
                from,
                count,
                shape.key_width,
            )?;
            if !shape.is_latent {
                copy_values(
                    &mut store.plane_mut(page, PlaneKind::Values),
                    slot,
                    &view.values,
                    from,
                    count,
                    shape.value_width,
                )?;
            }
            token += count;
        }
        Ok(())
    }
}
