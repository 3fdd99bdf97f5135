//! Observers of the attention of a sequence.

use std::ops::Range;

use crate::attention::{AttentionState, AttentionWatch};
use crate::{AuditedQuery, Engine, EngineError};

/// Adds observers to the attention of a [`Sequence`](crate::Sequence). Answers keep the same bits.
pub struct SequenceObservers<'a> {
    pub(super) attention: &'a mut AttentionState,
    pub(super) engine: &'a Engine,
}

impl SequenceObservers<'_> {
    /// Passes every query audited from now on to `observer`, with the exact mass of every key. This needs a second
    /// pass over the keys for each query.
    ///
    /// # Errors
    /// [`EngineError::Option`] if [`SequenceOptions::audit`](crate::SequenceOptions::audit) is off.
    pub fn audit(self, observer: impl FnMut(&AuditedQuery<'_>) + Send + Sync + 'static) -> Result<(), EngineError> {
        self.attention.observe_audit(Box::new(observer))
    }

    /// From now on, sums the attention of every query in those of `layers` that see the whole sequence, until
    /// [`take_watch`](Self::take_watch). Each watched layer reads its keys once more.
    ///
    /// Tokens are identified by cache slots: use it only for sequences without evicted tokens.
    pub fn watch(self, layers: Range<usize>) {
        let whole = self.engine.whole_layers().into_iter();
        let watched = whole.filter(|(layer, _)| layers.contains(layer));
        let watched = watched.map(|(layer, cache_layer)| (cache_layer, layer));
        self.attention.observers.add(AttentionWatch::new(watched.collect()));
    }

    /// Ends the watch. `None` if there was none.
    pub fn take_watch(self) -> Option<AttentionWatch> {
        self.attention.observers.take()
    }
}
