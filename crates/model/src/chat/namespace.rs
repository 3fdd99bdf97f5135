//! The namespaces of a template, and the registry of all its mutable values.
//!
//! A mutable value may contain any value, including itself. Values to print or compare are walked first and refused
//! beyond a depth. A [`Registry`] holds all mutable values until the render has ended, then empties them one by one.
//! This avoids recursion on drop.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object};
use minijinja::{Error, ErrorKind, Value};

/// Jinja's `namespace`.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    attributes: Mutex<BTreeMap<String, Value>>,
}

/// A mutable value.
pub(super) trait Holder: std::fmt::Debug + Send + Sync {
    /// Moves the holder's contents into `values`.
    fn empty(&self, values: &mut Vec<Value>);
}

/// All namespaces, lists and maps of a render.
#[derive(Debug, Default)]
pub(super) struct Registry {
    holders: Mutex<Vec<Arc<dyn Holder>>>,
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.locked(|attributes| attributes.get(key.as_str()?).cloned())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.locked(|attributes| attributes.keys().map(Value::from).collect()))
    }
}

impl Namespace {
    fn locked<T>(&self, work: impl FnOnce(&mut BTreeMap<String, Value>) -> T) -> T {
        work(&mut self.attributes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Registry {
    /// A namespace with the attributes of a map.
    pub(super) fn namespace(&self, attributes: &Value) -> Value {
        let namespace = Arc::new(Namespace::default());
        let pairs = attributes.as_object().and_then(|object| object.try_iter_pairs());
        let pairs = pairs.into_iter().flatten();
        namespace.locked(|own| own.extend(pairs.map(|(name, value)| (name.to_string(), value))));
        self.keep(Arc::clone(&namespace) as Arc<dyn Holder>);
        Value::from_dyn_object(namespace)
    }

    /// Holds a value until the render has ended.
    pub(super) fn keep(&self, holder: Arc<dyn Holder>) {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner).push(holder);
    }

    /// Empties all values. Call it after the template has stopped.
    pub(super) fn clear(&self) {
        let holders = std::mem::take(&mut *self.holders.lock().unwrap_or_else(PoisonError::into_inner));
        // Values are dropped after none of them refers to another: dropping a chain would recurse.
        let mut held = Vec::new();
        holders.iter().for_each(|holder| holder.empty(&mut held));
        drop(held);
    }
}

impl Holder for Namespace {
    fn empty(&self, values: &mut Vec<Value>) {
        values.extend(self.locked(std::mem::take).into_values());
    }
}

/// `{% set namespace.name = value %}`
pub(super) fn set_attribute(namespace: &Value, name: &str, value: Value) -> Result<(), Error> {
    let Some(namespace) = namespace.downcast_object_ref::<Namespace>() else {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("can only assign to namespaces, not {}", namespace.kind()),
        ));
    };
    let former = namespace.locked(|attributes| attributes.insert(name.to_owned(), value));
    drop(former);
    Ok(())
}
