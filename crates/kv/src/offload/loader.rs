//! Threads that bring pages into slots of the device's memory.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use crate::disk::PlaneId;
use crate::store::Source;
use crate::{DeviceMemory, KvError};

/// A slot to be filled; it travels to a thread and comes back.
pub(super) struct Load<K> {
    pub(super) key: K,
    pub(super) memory: Box<dyn DeviceMemory>,
    pub(super) planes: Vec<LoadPlane>,
}

pub(super) struct LoadPlane {
    pub(super) id: PlaneId,
    pub(super) source: Source,
    /// Where the plane begins in the slot.
    pub(super) at: usize,
    /// Bytes of the plane.
    pub(super) bytes: usize,
}

/// A slot that came back.
pub(super) struct Loaded<K> {
    pub(super) key: K,
    pub(super) memory: Box<dyn DeviceMemory>,
    pub(super) result: Result<(), KvError>,
}

/// The threads; they end when this is dropped.
pub(super) struct Loaders<K> {
    ask: Option<Sender<Load<K>>>,
    loaded: Arc<LoadedSlots<K>>,
    threads: Vec<JoinHandle<()>>,
}

/// Slots that came back and were not taken yet.
struct LoadedSlots<K> {
    waiting: Mutex<Waiting<K>>,
    enough: Condvar,
}

struct Waiting<K> {
    slots: Vec<Loaded<K>>,
    /// How many the other side waits for: it is woken once for all of them.
    wanted: usize,
}

impl<K: Send + 'static> Loaders<K> {
    pub(super) fn start(threads: usize) -> Result<Self, KvError> {
        let (ask, asked) = channel::<Load<K>>();
        let asked = Arc::new(Mutex::new(asked));
        let loaded = Arc::new(LoadedSlots {
            waiting: Mutex::new(Waiting {
                slots: Vec::new(),
                wanted: 0,
            }),
            enough: Condvar::new(),
        });
        let start = |number: usize| {
            let (asked, loaded) = (Arc::clone(&asked), Arc::clone(&loaded));
            let thread = thread::Builder::new().name(format!("riffle-kv-load-{number}"));
            thread.spawn(move || {
                while let Some(load) = next(&asked) {
                    loaded.give(fill(load));
                }
            })
        };
        let threads: Result<Vec<_>, _> = (0..threads).map(start).collect();
        Ok(Self {
            ask: Some(ask),
            loaded,
            threads: threads.map_err(|source| KvError::Thread { source })?,
        })
    }

    pub(super) fn ask(&self, load: Load<K>) {
        let ask = self.ask.as_ref().expect("open until dropped");
        ask.send(load).expect("the threads live as long as the sender");
    }

    /// Waits until `count` of the slots that were asked for have come back, and takes all that have.
    pub(super) fn wait(&self, count: usize) -> Vec<Loaded<K>> {
        let mut waiting = self.loaded.lock();
        waiting.wanted = count;
        while waiting.slots.len() < count {
            waiting = self
                .loaded
                .enough
                .wait(waiting)
                .expect("no thread panics while it gives");
        }
        std::mem::take(&mut waiting.slots)
    }
}

impl<K> LoadedSlots<K> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting<K>> {
        self.waiting.lock().expect("no thread panics while it gives")
    }

    fn give(&self, loaded: Loaded<K>) {
        let mut waiting = self.lock();
        waiting.slots.push(loaded);
        if waiting.slots.len() >= waiting.wanted {
            self.enough.notify_one();
        }
    }
}

impl<K> Drop for Loaders<K> {
    fn drop(&mut self) {
        self.ask = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing to clean up.
            thread.join().ok();
        }
    }
}

fn next<K>(asked: &Mutex<Receiver<Load<K>>>) -> Option<Load<K>> {
    asked.lock().ok()?.recv().ok()
}

fn fill<K>(load: Load<K>) -> Loaded<K> {
    let Load {
        key,
        mut memory,
        planes,
    } = load;
    let result = planes.iter().try_for_each(|plane| {
        let range = plane.at..plane.at + plane.bytes;
        plane.source.read(plane.id, &mut memory.bytes_mut()[range.clone()])?;
        memory.loaded(range);
        Ok(())
    });
    Loaded { key, memory, result }
}
