//! Estimates of the time left, and the threads of a run.

use riffle_engine::{EngineError, TimeLeft, max_threads, with_threads};

fn after(observations: impl Fn(f64) -> f64) -> TimeLeft {
    let mut left = TimeLeft::default();
    for n in 1..=10 {
        let n = f64::from(n) * 100.0;
        left.record(n, observations(n));
    }
    left
}

#[test]
fn nothing_is_claimed_before_the_first_observation() {
    assert_eq!(TimeLeft::default().seconds(0.0, 100.0), None);
}

#[test]
fn constant_cost_gives_a_straight_line() {
    let seconds = after(|n| 0.002 * n).seconds(1000.0, 5000.0).unwrap();
    assert!((seconds - 8.0).abs() < 1e-6, "{seconds}");
}

#[test]
fn growing_cost_is_carried_forward() {
    let seconds = after(|n| 0.001 * n + 1e-6 * n * n).seconds(1000.0, 10_000.0).unwrap();
    assert!((seconds - (9.0 + 99.0)).abs() < 1e-3, "{seconds}");
}

#[test]
fn falling_cost_never_gives_a_negative_time() {
    let seconds = after(|n| n.sqrt()).seconds(1000.0, 100_000.0).unwrap();
    assert!(seconds > 0.0);
}

#[test]
fn more_threads_than_a_machine_can_use_are_refused() {
    for threads in [0, max_threads() + 1, 100_000, usize::MAX] {
        let error = with_threads(Some(threads), || ()).unwrap_err();
        assert!(matches!(error, EngineError::Option { name: "threads", .. }), "{error}");
    }
    assert_eq!(with_threads(Some(3), rayon::current_num_threads).unwrap(), 3);
}
