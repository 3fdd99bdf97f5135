//! Sums the attention of a sequence's queries for each token.

use riffle_attention::Partial;
use riffle_kv::KvCache;

use crate::EngineError;
use crate::attention::{Chosen, QueryObserver, reading};

/// Sums the attention mass that queries of chosen layers give each token. It only observes: reads, draws and stored
/// data keep the same bits.
#[derive(Debug, Clone, Default)]
pub struct AttentionWatch {
    /// Watched layers of the cache, each with its index among the model's layers.
    layers: Vec<(usize, usize)>,
    heads: Vec<WatchedHead>,
    queries: usize,
}

/// The mass that the queries of one KV head's group gave each token.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchedHead {
    /// The model's layer.
    pub layer: usize,
    /// The KV head.
    pub kv_head: usize,
    /// Mass by position; the total is the number of queries times the heads of the group.
    pub mass: Vec<f32>,
}

impl AttentionWatch {
    /// Watches layers of the cache, each given with its index among the model's layers.
    pub(crate) fn new(layers: Vec<(usize, usize)>) -> Self {
        Self {
            layers,
            ..Self::default()
        }
    }

    /// Watched heads by layer and KV head.
    pub fn heads(&self) -> &[WatchedHead] {
        &self.heads
    }

    /// Number of observed queries per head.
    pub fn queries(&self) -> usize {
        self.queries
    }
}

impl QueryObserver for AttentionWatch {
    /// Adds the queries of a chunk of one layer: their mass under their selections, or, if this stays on a device,
    /// under full attention.
    fn observe(
        &mut self,
        cache: &mut KvCache,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError> {
        let chunk = &chosen.chunk;
        let Some(watched) = self.layers.iter().position(|(layer, _)| *layer == chunk.layer) else {
            return Ok(());
        };
        let masses = match partials {
            Some(partials) => reading::read_masses(cache, chunk, chosen.phases(), partials)?,
            None => reading::exact_masses(cache, chunk)?,
        };
        if watched == 0 {
            self.queries += chunk.tokens.len();
        }
        let layer = self.layers[watched].1;
        for (kv_head, mass) in masses.into_iter().enumerate() {
            let known = self
                .heads
                .iter_mut()
                .find(|head| (head.layer, head.kv_head) == (layer, kv_head));
            let Some(head) = known else {
                self.heads.push(WatchedHead { layer, kv_head, mass });
                continue;
            };
            head.mass.resize(head.mass.len().max(mass.len()), 0.0);
            head.mass.iter_mut().zip(&mass).for_each(|(total, mass)| *total += mass);
        }
        Ok(())
    }
}
