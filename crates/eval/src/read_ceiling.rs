//! How fast this machine reads memory, measured beside what is compared with it.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use riffle_attention::ceiling::read_once;

/// Values each thread reads: more than the caches hold.
const PART: usize = 32 << 20;
/// Values a thread reads between two looks at the clock, some 30 µs.
const PIECE: usize = 1 << 18;
/// How long all threads read side by side, and how often; the fastest counts, for other programs only slow it down.
const WINDOW: Duration = Duration::from_millis(40);
const WINDOWS: usize = 4;

/// Memory to read, a part for each thread: one thread's reads must not fill the shared cache for another's.
pub(crate) struct ReadCeiling {
    memory: Memory,
}

/// As weights and keys are held: in huge pages where the system grants them.
enum Memory {
    Mapping(MmapMut),
    Heap(Vec<f32>),
}

impl ReadCeiling {
    pub(crate) fn new() -> ReadCeiling {
        let values = PART * rayon::current_num_threads();
        let memory = match MmapMut::map_anon(size_of::<f32>() * values) {
            Ok(mut mapping) => {
                #[cfg(target_os = "linux")]
                let _ = mapping.advise(memmap2::Advice::HugePage);
                mapping.fill(1);
                Memory::Mapping(mapping)
            }
            Err(_) => Memory::Heap(vec![1.0; values]),
        };
        ReadCeiling { memory }
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
            let pieces = memory[thread.index() * PART..][..PART].chunks_exact(PIECE).cycle();
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
