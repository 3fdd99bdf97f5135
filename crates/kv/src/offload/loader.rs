//! Threads that load pages into slots of the device's memory.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use crate::disk::{PlaneFile, PlaneId, PlaneRead};
use crate::pool::Source;
use crate::{DeviceMemory, KvError};

/// A slot to fill. It moves to a thread and returns.
pub(super) struct Load<K> {
    pub(super) key: K,
    pub(super) memory: Box<dyn DeviceMemory>,
    /// Keys and values, if wanted.
    pub(super) planes: [Option<LoadPlane>; 2],
}

pub(super) struct LoadPlane {
    pub(super) id: PlaneId,
    pub(super) source: Source,
    /// The offset of the plane in the slot.
    pub(super) at: usize,
    /// Bytes of the plane.
    pub(super) bytes: usize,
}

/// A filled slot.
pub(super) struct Loaded<K> {
    pub(super) key: K,
    pub(super) memory: Box<dyn DeviceMemory>,
    pub(super) result: Result<(), KvError>,
}

/// The threads; they end on drop.
pub(super) struct Loaders<K> {
    ask: Option<Sender<Vec<Load<K>>>>,
    loaded: Arc<LoadedSlots<K>>,
    threads: Vec<JoinHandle<()>>,
}

/// Filled slots that the caller has not taken yet.
struct LoadedSlots<K> {
    waiting: Mutex<Waiting<K>>,
    enough: Condvar,
}

struct Waiting<K> {
    slots: Vec<Loaded<K>>,
    /// Number of slots that the caller waits for: one wake-up for all of them.
    wanted: usize,
}

impl<K: Send + 'static> Loaders<K> {
    pub(super) fn start(threads: usize) -> Result<Self, KvError> {
        let (ask, asked) = channel::<Vec<Load<K>>>();
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
                while let Some(loads) = next(&asked) {
                    loaded.give(fill(loads));
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

    /// Requests slots that one thread fills together.
    pub(super) fn ask(&self, loads: Vec<Load<K>>) {
        expect(&loads);
        let ask = self.ask.as_ref().expect("open until dropped");
        ask.send(loads).expect("the threads live as long as the sender");
    }

    /// Waits until `count` requested slots are filled, and takes all filled slots.
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

    fn give(&self, loaded: Vec<Loaded<K>>) {
        let mut waiting = self.lock();
        waiting.slots.extend(loaded);
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

fn next<K>(asked: &Mutex<Receiver<Vec<Load<K>>>>) -> Option<Vec<Load<K>>> {
    asked.lock().ok()?.recv().ok()
}

/// Announces the reads to the disk.
fn expect<K>(loads: &[Load<K>]) {
    for kind in 0..2 {
        let planes = loads.iter().filter_map(|load| load.planes[kind].as_ref());
        let places = planes.filter_map(|plane| match &plane.source {
            Source::Disk(file, slot) => Some((file, *slot)),
            Source::Ram(..) => None,
        });
        let mut places: Vec<(&Arc<PlaneFile>, u32)> = places.collect();
        places.sort_unstable_by_key(|(file, slot)| (Arc::as_ptr(file), *slot));
        for run in places.chunk_by(|a, b| Arc::ptr_eq(a.0, b.0) && a.1 + 1 == b.1) {
            run[0].0.expect(run[0].1, run.len());
        }
    }
}

fn fill<K>(mut loads: Vec<Load<K>>) -> Vec<Loaded<K>> {
    let mut results: Vec<Result<(), KvError>> = loads.iter().map(|_| Ok(())).collect();
    for kind in 0..2 {
        fill_planes(&mut loads, kind, &mut results);
    }
    let loaded = loads.into_iter().zip(results).map(|(load, result)| {
        let Load { key, memory, .. } = load;
        Loaded { key, memory, result }
    });
    loaded.collect()
}

/// Fills keys or values of all slots; adjacent planes on disk are read together.
fn fill_planes<K>(loads: &mut [Load<K>], kind: usize, results: &mut [Result<(), KvError>]) {
    let mut on_disk = Vec::new();
    for (number, load) in loads.iter_mut().enumerate() {
        let Some(plane) = &load.planes[kind] else { continue };
        let target = &mut load.memory.bytes_mut()[plane.at..plane.at + plane.bytes];
        match &plane.source {
            Source::Ram(..) => keep_error(&mut results[number], plane.source.read(plane.id, target)),
            Source::Disk(file, slot) => {
                let (slot, id) = (*slot, plane.id);
                on_disk.push((number, file, PlaneRead { slot, id, target }));
            }
        }
    }
    on_disk.sort_unstable_by_key(|(_, file, plane)| (Arc::as_ptr(file), plane.slot));
    let mut planes = on_disk.into_iter().peekable();
    while let Some((number, file, plane)) = planes.next() {
        let (mut numbers, mut run) = (vec![number], vec![plane]);
        let mut end = run[0].slot + 1;
        while let Some((number, _, plane)) = planes.next_if(|(_, f, p)| Arc::ptr_eq(f, file) && p.slot == end) {
            numbers.push(number);
            run.push(plane);
            end += 1;
        }
        if file.read_run(&mut run).is_err() {
            // Reads one by one, to find the plane that failed.
            for (number, plane) in numbers.into_iter().zip(run) {
                keep_error(&mut results[number], file.read(plane.slot, plane.id, plane.target));
            }
        }
    }
    for load in loads {
        if let Some(plane) = &load.planes[kind] {
            load.memory.loaded(plane.at..plane.at + plane.bytes);
        }
    }
}

/// Keeps the first error.
fn keep_error(result: &mut Result<(), KvError>, new: Result<(), KvError>) {
    if result.is_ok() {
        *result = new;
    }
}
