//! Keeps threads awake between the small pieces of a token's work.
//!
//! A token needs hundreds of products and attention calls of some ten microseconds. Waking a sleeping thread can take
//! longer than its share of the work.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rayon::Yield;

/// Time that a thread without work looks for some before it sleeps.
const PATIENCE: Duration = Duration::from_micros(200);
/// Pauses of the processor between two checks.
const PAUSES: usize = 8;

/// Number of threads that were asked to stay awake and are still looking.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Asks the other threads of the pool to look for work until none has come for [`PATIENCE`], unless they already do.
pub(crate) fn keep_threads_awake() {
    let threads = rayon::current_num_threads();
    if threads == 1
        || ASKED
            .compare_exchange(0, threads, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
    {
        return;
    }
    let caller = rayon::current_thread_index();
    rayon::spawn_broadcast(move |thread| {
        // The caller has the work that the other threads look for.
        if Some(thread.index()) != caller {
            look_for_work();
        }
        ASKED.fetch_sub(1, Ordering::Relaxed);
    });
}

/// The time is bounded, because this may be on the stack above work that others wait for.
fn look_for_work() {
    let mut idle_since = Instant::now();
    while idle_since.elapsed() < PATIENCE {
        match rayon::yield_now() {
            Some(Yield::Executed) => idle_since = Instant::now(),
            _ => (0..PAUSES).for_each(|_| spin_loop()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_stay_awake_do_the_work_they_are_given() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for _ in 0..50 {
            let sum: usize = pool.install(|| {
                keep_threads_awake();
                let (one, others) = rayon::join(|| 1, || rayon::join(|| 2, || 3));
                one + others.0 + others.1
            });
            assert_eq!(sum, 6);
        }
    }

    #[test]
    fn threads_without_work_stop_looking_for_it() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        assert_eq!(pool.broadcast(|_| look_for_work()).len(), 3);
    }
}
