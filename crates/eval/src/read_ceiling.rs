//! How fast this machine reads memory, measured beside what is compared with it.

use memmap2::MmapMut;
use riffle_attention::ceiling::read_gigabytes_per_second;

/// Values each thread reads: more than the caches hold.
const PART: usize = 32 << 20;

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

    /// GB/s of all threads of the pool together.
    pub(crate) fn gigabytes_per_s(&self) -> f64 {
        let memory: &[f32] = match &self.memory {
            Memory::Mapping(mapping) => bytemuck::cast_slice(mapping),
            Memory::Heap(values) => values,
        };
        let part = |index: usize| &memory[index * PART..][..PART];
        let rates = rayon::broadcast(|thread| read_gigabytes_per_second(part(thread.index())));
        rates.into_iter().sum()
    }
}
