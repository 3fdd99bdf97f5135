//! Where the attention of a sequence's queries went, token by token.

use std::ops::Range;

use riffle_attention::{AttendOptions, Partial};
use riffle_kv::KvCache;

use crate::compress::QueryObserver;
use crate::pass::chunk::Chosen;
use crate::pass::reading;
use crate::{EngineError, Sequence};

/// Sums up the attention mass that queries of chosen layers give each token. It only looks: what is read, drawn and kept does not change
/// by a bit.
#[derive(Debug, Clone, Default)]
pub struct AttentionWatch {
    /// Watched layers of the cache, and the number of each among the model's layers.
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
    /// By position; the sum over all tokens is the number of queries times the heads of the group.
    pub mass: Vec<f32>,
}

impl AttentionWatch {
    /// By layer and KV head.
    pub fn heads(&self) -> &[WatchedHead] {
        &self.heads
    }

    /// Queries of each head that were seen.
    pub fn queries(&self) -> usize {
        self.queries
    }

    /// Takes in the queries of a chunk of one layer: their mass under what they read, or, where that stays on a device, under full
    /// attention.
    pub(crate) fn observe(
        &mut self,
        cache: &mut KvCache,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
        options: &AttendOptions<'_>,
    ) -> Result<(), EngineError> {
        let chunk = &chosen.chunk;
        let Some(watched) = self.layers.iter().position(|(layer, _)| *layer == chunk.layer) else {
            return Ok(());
        };
        let masses = match partials {
            Some(partials) => reading::read_masses(cache, chunk, chosen.phases(), partials, options)?,
            None => reading::exact_masses(cache, chunk, options)?,
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

impl Sequence {
    /// From now on, sums up where the attention of every query goes in those of the model's `layers` that see the whole sequence, until
    /// [`Sequence::take_watched_attention`]. Answers do not change by a bit; each watched layer reads its keys once more.
    ///
    /// Tokens are told apart by their places in the cache: the watch is for sequences from which no token has been evicted.
    pub fn watch_attention(&mut self, layers: Range<usize>) {
        let whole = self.whole_layers().into_iter();
        let watched = whole.filter(|(layer, _)| layers.contains(layer));
        self.statistics.observer = Some(QueryObserver::Watch(AttentionWatch {
            layers: watched.map(|(layer, cache_layer)| (cache_layer, layer)).collect(),
            ..AttentionWatch::default()
        }));
    }

    /// Ends the watch. `None` where there was none.
    pub fn take_watched_attention(&mut self) -> Option<AttentionWatch> {
        match self.statistics.observer.take() {
            Some(QueryObserver::Watch(watch)) => Some(watch),
            other => {
                self.statistics.observer = other;
                None
            }
        }
    }
}
