//! A store in memory with injected faults.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use riffle_kv::{BlockStore, StoreError, StoredItem};

/// Fault of one operation.
#[derive(Debug, Clone)]
pub enum Fault {
    /// No fault.
    None,
    /// The operation takes this long, or until its timeout.
    Slow(Duration),
    /// The operation fails.
    Fails,
    /// The data is truncated.
    Cut(usize),
    /// A bit of the bytes flips.
    Flipped(usize),
    /// The operation returns the bytes of another name.
    Other(String),
}

/// An operation of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Asks which names exist.
    Contains,
    /// Reads the bytes of a name.
    Get,
    /// Stores bytes under a name.
    Put,
    /// List everything.
    List,
    /// Remove names.
    Remove,
}

type Faults = dyn Fn(Operation, &str) -> Fault + Send + Sync;

#[derive(Default)]
struct State {
    items: BTreeMap<String, (Vec<u8>, Instant)>,
    faults: Option<Arc<Faults>>,
    operations: HashMap<Operation, usize>,
    names_per_question: usize,
}

/// A store in memory.
#[derive(Clone, Default)]
pub struct FakeStore(Arc<Mutex<State>>);

impl fmt::Debug for FakeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeStore")
    }
}

impl FakeStore {
    /// Sets the faults of later operations.
    pub fn set_faults(&self, faults: impl Fn(Operation, &str) -> Fault + Send + Sync + 'static) {
        self.0.lock().unwrap().faults = Some(Arc::new(faults));
    }

    /// Limits the names of one question.
    pub fn ask_few_at_a_time(&self, names: usize) {
        self.0.lock().unwrap().names_per_question = names;
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().items.keys().cloned().collect()
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> u64 {
        let state = self.0.lock().unwrap();
        state.items.values().map(|(bytes, _)| bytes.len() as u64).sum()
    }

    /// Operations of a kind so far.
    pub fn count(&self, operation: Operation) -> usize {
        self.0.lock().unwrap().operations.get(&operation).copied().unwrap_or(0)
    }

    /// Changes the bytes of a name.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.0.lock().unwrap().items.get_mut(name).unwrap().0);
    }

    /// All entries.
    pub fn copy(&self) -> BTreeMap<String, (Vec<u8>, Instant)> {
        self.0.lock().unwrap().items.clone()
    }

    /// Keeps exactly these.
    pub fn restore(&self, items: &BTreeMap<String, (Vec<u8>, Instant)>) {
        self.0.lock().unwrap().items.clone_from(items);
    }

    /// Removes an existing name.
    pub fn remove_one(&self, name: &str) {
        self.0.lock().unwrap().items.remove(name).unwrap();
    }

    /// Makes the entries for which `is_old` is true older by `age`.
    pub fn grow_older(&self, age: Duration, is_old: impl Fn(&str) -> bool) {
        let mut state = self.0.lock().unwrap();
        for (_, (_, written)) in state.items.iter_mut().filter(|(name, _)| is_old(name)) {
            *written = written.checked_sub(age).unwrap();
        }
    }

    fn begin(&self, operation: Operation, name: &str, until: Instant) -> Result<Fault, StoreError> {
        let faults = {
            let mut state = self.0.lock().unwrap();
            *state.operations.entry(operation).or_default() += 1;
            state.faults.clone()
        };
        match faults.map_or(Fault::None, |faults| faults(operation, name)) {
            Fault::Slow(time) => {
                let left = until.saturating_duration_since(Instant::now());
                thread::sleep(time.min(left));
                if time > left {
                    Err(StoreError::TimedOut(time))
                } else {
                    Ok(Fault::None)
                }
            }
            Fault::Fails => Err(StoreError::Unreachable("the plug is out".to_owned())),
            fault => Ok(fault),
        }
    }

    fn read(&self, name: &str, fault: Fault) -> Option<Vec<u8>> {
        let state = self.0.lock().unwrap();
        let name = match &fault {
            Fault::Other(other) => other,
            _ => name,
        };
        state.items.get(name).map(|(bytes, _)| spoiled(bytes.clone(), &fault))
    }
}

fn spoiled(mut bytes: Vec<u8>, fault: &Fault) -> Vec<u8> {
    match fault {
        Fault::Cut(length) => bytes.truncate(*length),
        Fault::Flipped(at) => {
            let at = at % bytes.len();
            bytes[at] ^= 4;
        }
        _ => {}
    }
    bytes
}

impl BlockStore for FakeStore {
    fn address(&self) -> &str {
        "fake://store"
    }

    fn names_per_question(&self) -> usize {
        self.0.lock().unwrap().names_per_question.max(1)
    }

    fn contains(&self, names: &[String], until: Instant) -> Result<Vec<bool>, StoreError> {
        self.begin(Operation::Contains, &names[0], until)?;
        let state = self.0.lock().unwrap();
        Ok(names.iter().map(|name| state.items.contains_key(name)).collect())
    }

    fn get(&self, name: &str, most_bytes: usize, until: Instant) -> Result<Option<Vec<u8>>, StoreError> {
        let fault = self.begin(Operation::Get, name, until)?;
        let bytes = self.read(name, fault);
        match &bytes {
            Some(bytes) if bytes.len() > most_bytes => Err(StoreError::Wrong(format!("{} bytes", bytes.len()))),
            _ => Ok(bytes),
        }
    }

    fn put(&self, name: &str, bytes: Vec<u8>, until: Instant) -> Result<(), StoreError> {
        let fault = self.begin(Operation::Put, name, until)?;
        let bytes = spoiled(bytes, &fault);
        let mut state = self.0.lock().unwrap();
        state.items.insert(name.to_owned(), (bytes, Instant::now()));
        Ok(())
    }

    fn list(&self, until: Instant, each: &mut dyn FnMut(StoredItem)) -> Result<(), StoreError> {
        self.begin(Operation::List, "", until)?;
        for (name, (bytes, written)) in &self.0.lock().unwrap().items {
            each(StoredItem {
                name: name.clone(),
                bytes: bytes.len() as u64,
                age: written.elapsed(),
            });
        }
        Ok(())
    }

    fn remove(&self, names: &[String], until: Instant) -> Result<(), StoreError> {
        self.begin(Operation::Remove, &names[0], until)?;
        let mut state = self.0.lock().unwrap();
        names.iter().for_each(|name| drop(state.items.remove(name)));
        Ok(())
    }
}
