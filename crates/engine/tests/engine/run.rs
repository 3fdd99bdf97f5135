//! Threads of a run.

use riffle_engine::{EngineError, max_threads, with_threads};

#[test]
fn more_threads_than_a_machine_can_use_are_refused() {
    for threads in [0, max_threads() + 1, 100_000, usize::MAX] {
        let error = with_threads(Some(threads), || ()).unwrap_err();
        assert!(matches!(error, EngineError::Option { name: "threads", .. }), "{error}");
    }
    assert_eq!(with_threads(Some(3), rayon::current_num_threads).unwrap(), 3);
}
