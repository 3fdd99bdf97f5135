//! How fast this machine reads memory, measured beside what is compared with it.

use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use riffle_attention::ceiling::read_once;
use riffle_system::memory::{last_cache_bytes, prefer_huge_pages};

/// Bytes each thread reads at least. With a large last cache it is more, so that the cache does not hold them all.
const LEAST_PART_BYTES: usize = 128 << 20;
/// A large last cache makes all threads together read no more than this.
const MOST_BYTES: usize = 1 << 30;
/// Bytes that all threads read where a short measurement will do.
const SHORT_BYTES: usize = 256 << 20;
/// Values a thread reads between two looks at the clock, some 30 µs.
const PIECE: usize = 1 << 18;
/// How long all threads read side by side, and how often; the fastest counts, for other programs only slow it down.
const WINDOW: Duration = Duration::from_millis(40);
const WINDOWS: usize = 4;

/// Memory to read, a part for each thread: one thread's reads must not fill the shared cache for another's.
pub(crate) struct ReadCeiling {
    memory: Memory,
    /// Values each thread reads.
    part: usize,
}

/// As weights and keys are held: in huge pages where the system grants them.
enum Memory {
    Mapping(MmapMut),
    Heap(Vec<f32>),
}

/// Rate at which all cores together read memory, in bytes a second: measured once in a process, in about a quarter of a second and
/// 256 MiB. With many cores and large caches it is an upper bound.
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

    /// Memory of which each thread reads `part_bytes`.
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

    /// GB/s of all threads of the pool together: what they read in the same stretch of time, for a thread alone would be
    /// given what the others leave.
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
                // A piece that ends after the window was not read in it.
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
