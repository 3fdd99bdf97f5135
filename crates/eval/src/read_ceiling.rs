//! Memory read rate of this machine, measured together with the compared rates.

use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use riffle_attention::ceiling::read_once;
use riffle_system::memory::{last_cache_bytes, prefer_huge_pages};

/// Minimum bytes for each thread. A large last-level cache raises it, so that the cache cannot hold all of them.
const LEAST_PART_BYTES: usize = 128 << 20;
/// With a large last cache, all threads together read no more than this.
const MOST_BYTES: usize = 1 << 30;
/// Bytes that all threads read in a short measurement.
const SHORT_BYTES: usize = 256 << 20;
/// Values that a thread reads between two checks of the clock, some 30 µs.
const PIECE: usize = 1 << 18;
/// Duration of one simultaneous read, and the number of reads. The fastest counts, because other programs only slow
/// it down.
const WINDOW: Duration = Duration::from_millis(40);
const WINDOWS: usize = 4;

/// Memory to read, with a part for each thread: one thread must not load the shared cache for another.
pub(crate) struct ReadCeiling {
    memory: Memory,
    /// Values each thread reads.
    part: usize,
}

/// Memory that is allocated like weights and keys: in huge pages if the system grants them.
enum Memory {
    Mapping(MmapMut),
    Heap(Vec<f32>),
}

/// Memory read rate of all cores together, in bytes per second. One measurement per process takes about a quarter of
/// a second and 256 MiB. With many cores and large caches it is an upper bound.
pub fn memory_read_rate() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let part = (SHORT_BYTES / rayon::current_num_threads()).max(PIECE);
        ReadCeiling::of_parts(part).gigabytes_per_s() * 1e9
    })
}

impl ReadCeiling {
    pub(crate) fn new() -> ReadCeiling {
        let wanted = (2 * last_cache_bytes().unwrap_or(0)).min(MOST_BYTES) / rayon::current_num_threads();
        Self::of_parts(wanted.max(LEAST_PART_BYTES))
    }

    /// Memory with `part_bytes` for each thread.
    fn of_parts(part_bytes: usize) -> ReadCeiling {
        let threads = rayon::current_num_threads();
        let part = (part_bytes / size_of::<f32>()).next_multiple_of(PIECE);
        let values = part * threads;
        let memory = match MmapMut::map_anon(size_of::<f32>() * values) {
            Ok(mut mapping) => {
                prefer_huge_pages(&mapping);
                mapping.fill(1);
                Memory::Mapping(mapping)
            }
            Err(_) => Memory::Heap(vec![1.0; values]),
        };
        ReadCeiling { memory, part }
    }

    /// GB/s of all threads of the pool in the same time window. A single thread would get the bandwidth that others
    /// leave.
    pub(crate) fn gigabytes_per_s(&self) -> f64 {
        (0..WINDOWS).map(|_| self.window()).fold(0.0, f64::max)
    }

    fn window(&self) -> f64 {
        let memory: &[f32] = match &self.memory {
            Memory::Mapping(mapping) => bytemuck::cast_slice(mapping),
            Memory::Heap(values) => values,
        };
        let begin = Barrier::new(rayon::current_num_threads());
        let bytes = rayon::broadcast(|thread| {
            let pieces = memory[thread.index() * self.part..][..self.part]
                .chunks_exact(PIECE)
                .cycle();
            begin.wait();
            let start = Instant::now();
            let mut bytes = 0;
            for piece in pieces {
                read_once(piece);
                // A piece that ends after the window does not count.
                if start.elapsed() > WINDOW {
                    break;
                }
                bytes += size_of_val(piece);
            }
            bytes
        });
        bytes.into_iter().sum::<usize>() as f64 / WINDOW.as_secs_f64() / 1e9
    }
}
