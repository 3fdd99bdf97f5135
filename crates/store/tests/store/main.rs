//! Clients of stores against correct and faulty servers.

#[cfg(feature = "s3")]
mod bucket;
mod valkey;

use std::time::{Duration, Instant};

use riffle_kv::{BlockStore, StoreError};

/// An environment without variables.
fn nothing(_: &str) -> Option<String> {
    None
}

fn soon(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}

/// Checks the behaviour that every store must have.
fn keeps_what_it_is_given(store: &dyn BlockStore) {
    let until = || soon(5000);
    let names: Vec<String> = (0..40).map(|number| format!("{number:032x}.{number}.0")).collect();
    assert_eq!(store.contains(&names, until()).unwrap(), vec![false; 40]);
    assert_eq!(store.get(&names[0], 1 << 20, until()).unwrap(), None);
    let bytes = |number: usize| {
        (0..number * 9973 + 1)
            .map(|at| (at * 7 + number) as u8)
            .collect::<Vec<u8>>()
    };
    for number in (0..40).step_by(3) {
        store.put(&names[number], bytes(number), until()).unwrap();
    }
    let there = store.contains(&names, until()).unwrap();
    assert!(
        there
            .iter()
            .enumerate()
            .all(|(number, there)| *there == number.is_multiple_of(3))
    );
    for number in (0..40).step_by(3) {
        assert!(
            store.get(&names[number], 1 << 20, until()).unwrap() == Some(bytes(number)),
            "{number}"
        );
    }
    store.put(&names[0], vec![9; 100], until()).unwrap();
    assert_eq!(store.get(&names[0], 100, until()).unwrap(), Some(vec![9; 100]));
    // An answer longer than requested is refused.
    let refused = store.get(&names[0], 99, until());
    assert!(matches!(refused, Err(StoreError::Wrong(_))), "{refused:?}");
    let mut listed = Vec::new();
    store.list(until(), &mut |item| listed.push(item)).unwrap();
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(listed.len(), 14);
    assert_eq!((listed[0].name.as_str(), listed[0].bytes), (names[0].as_str(), 100));
    assert!(listed.iter().all(|item| item.age < Duration::from_secs(60)));
    store.remove(&names[..20], until()).unwrap();
    let there = store.contains(&names, until()).unwrap();
    assert_eq!(there.iter().filter(|there| **there).count(), 7);
}

/// Checks that an operation ends by its limit, for any behaviour of the server; returns its error.
fn failure_of<T: std::fmt::Debug>(ask: impl FnOnce(Instant) -> Result<T, StoreError>) -> StoreError {
    let began = Instant::now();
    let answer = ask(soon(400));
    let took = began.elapsed();
    assert!(took < Duration::from_millis(900), "it took {took:?}");
    answer.unwrap_err()
}
