//! How fast this machine reads memory, measured beside what is compared with it.

use riffle_attention::ceiling::read_gigabytes_per_second;

/// Values each thread reads: more than the caches hold.
const PART: usize = 32 << 20;

/// Memory to read, a part for each thread: one thread's reads must not fill the shared cache for another's.
pub(crate) struct ReadCeiling {
    memory: Vec<f32>,
}

impl ReadCeiling {
    pub(crate) fn new() -> ReadCeiling {
        ReadCeiling {
            memory: vec![1.0; PART * rayon::current_num_threads()],
        }
    }

    /// GB/s of all threads of the pool together.
    pub(crate) fn gigabytes_per_s(&self) -> f64 {
        let part = |index: usize| &self.memory[index * PART..][..PART];
        let rates = rayon::broadcast(|thread| read_gigabytes_per_second(part(thread.index())));
        rates.into_iter().sum()
    }
}
