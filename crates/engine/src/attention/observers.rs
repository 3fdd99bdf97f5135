//! Observers of the queries of a sequence.

use std::any::Any;

use riffle_attention::Partial;
use riffle_kv::KvCache;

use crate::EngineError;
use crate::attention::Chosen;

/// Looks at every query of the layers that see the whole sequence. It changes nothing of the sequence.
pub(crate) trait QueryObserver: Any + Send + Sync {
    /// Takes in the queries of a chunk, whose keys the cache holds. `partials` come from the keys that were read; `None` where they stay
    /// on a device.
    fn observe(
        &mut self,
        cache: &mut KvCache,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError>;
}

/// The observers of one sequence, in the order in which they came.
#[derive(Default)]
pub(crate) struct Observers(Vec<Box<dyn QueryObserver>>);

impl Observers {
    /// Lets one more look on.
    pub(crate) fn add(&mut self, observer: impl QueryObserver) {
        self.0.push(Box::new(observer));
    }

    /// Takes the first observer of a type back; it looks on no more.
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
