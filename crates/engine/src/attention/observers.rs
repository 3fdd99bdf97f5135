//! Observers of the queries of a sequence.

use std::any::Any;

use riffle_attention::Partial;
use riffle_kv::KvCache;

use crate::EngineError;
use crate::attention::Chosen;

/// Observes every query of the layers that see the whole sequence, without changing the sequence.
pub(crate) trait QueryObserver: Any + Send + Sync {
    /// Receives the queries of a chunk whose keys are in the cache. `partials` are the results of the reads; `None`
    /// if they stay on a device.
    fn observe(
        &mut self,
        cache: &mut KvCache,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError>;
}

/// The observers of one sequence, in the order of registration.
#[derive(Default)]
pub(crate) struct Observers(Vec<Box<dyn QueryObserver>>);

impl Observers {
    /// Adds an observer.
    pub(crate) fn add(&mut self, observer: impl QueryObserver) {
        self.0.push(Box::new(observer));
    }

    /// Removes and returns the first observer of a type.
    pub(crate) fn take<T: QueryObserver>(&mut self) -> Option<T> {
        let is_wanted = |observer: &dyn QueryObserver| (observer as &dyn Any).is::<T>();
        let place = self.0.iter().position(|observer| is_wanted(&**observer))?;
        let observer: Box<dyn Any> = self.0.remove(place);
        observer.downcast::<T>().ok().map(|observer| *observer)
    }

    /// Shows a chunk to all.
    pub(crate) fn observe(
        &mut self,
        cache: &mut KvCache,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError> {
        let mut observers = self.0.iter_mut();
        observers.try_for_each(|observer| observer.observe(cache, chosen, partials))
    }
}
