//! Servers and connections that fail.

use std::fs;
use std::time::Instant;

use crate::{pull_named, refused};
use riffle_testing::hub::{Fault, Hub, bytes, sum};

const FILE: &str = "m-Q4_0.gguf";

fn hub() -> (Hub, Vec<u8>, tempfile::TempDir) {
    let weights = bytes(400_000, 1);
    let hub = Hub::start(&[(FILE, weights.clone())]);
    (hub, weights, tempfile::tempdir().expect("a folder"))
}

#[test]
fn cut_connections_are_taken_up_where_they_ended() {
    let (hub, weights, cache) = hub();
    hub.faults(|asked, _| asked.is_for(FILE).then_some(Fault::Cut(90_000)));
    let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(fs::read(pulled.path).expect("a file"), weights);
    assert_eq!(pulled.bytes_downloaded, 400_000, "no byte comes twice");
    let ranges: Vec<Option<String>> = hub
        .asked_for(FILE)
        .iter()
        .map(|asked| asked.header("range").map(str::to_owned))
        .collect();
    let expected =
        ["bytes=90000-", "bytes=180000-", "bytes=270000-", "bytes=360000-"].map(|range| Some(range.to_owned()));
    assert_eq!(ranges, [&[None], &expected[..]].concat());
}

#[test]
fn cut_lists_are_asked_for_again() {
    let (hub, _, cache) = hub();
    hub.faults(|asked, number| (asked.path.contains("/api/") && number % 2 == 0).then_some(Fault::Cut(20)));
    pull_named(&hub, cache.path(), "owner/model").expect("pulled");
}

#[test]
fn a_connection_that_brings_nothing_is_given_up_after_some_tries() {
    for fault in [Fault::Cut(0), Fault::Noise, Fault::Status(503, Vec::new())] {
        let (hub, _, cache) = hub();
        let given = fault.clone();
        hub.faults(move |asked, _| asked.is_for(FILE).then(|| given.clone()));
        let message = refused(&hub, cache.path(), "owner/model");
        assert!(
            message.contains("4 times in a row") && message.contains("kept"),
            "{fault:?}: {message}"
        );
        assert_eq!(hub.asked_for(FILE).len(), 4, "{fault:?}");
        hub.faults(|_, _| None);
        pull_named(&hub, cache.path(), "owner/model").expect("pulled afterwards");
    }
}

#[test]
fn silence_counts_as_a_cut() {
    let (hub, weights, cache) = hub();
    let mut silent = true;
    hub.faults(move |asked, _| {
        let now = asked.is_for(FILE) && std::mem::take(&mut silent);
        now.then_some(Fault::Silence(100_000))
    });
    let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(fs::read(pulled.path).expect("a file"), weights);
    assert_eq!(hub.asked_for(FILE)[1].header("range"), Some("bytes=100000-"));
}

#[test]
fn a_body_that_drips_is_given_up_after_some_tries() {
    let (hub, _, cache) = hub();
    // A byte every ten milliseconds: thirty in a window.
    hub.faults(|asked, _| asked.is_for(FILE).then_some(Fault::Slow(1)));
    let message = refused(&hub, cache.path(), "owner/model");
    assert!(
        message.contains("fewer than 1000 bytes came in 0.3 s, 4 times in a row"),
        "{message}"
    );
    let asked = hub.asked_for(FILE);
    assert_eq!(asked.len(), 4);
    assert!(asked[3].header("range").is_some(), "what came is kept");
    for list in ["/revision/", "/tree/"] {
        hub.faults(move |asked, _| asked.path.contains(list).then_some(Fault::Slow(1)));
        let message = refused(&hub, cache.path(), "owner/model");
        assert!(message.contains("fewer than 1000 bytes"), "{list}: {message}");
    }
}

#[test]
fn tries_that_bring_a_few_bytes_each_are_not_repeated_for_ever() {
    let (hub, _, cache) = hub();
    hub.faults(|asked, _| asked.is_for(FILE).then_some(Fault::Cut(10)));
    let message = refused(&hub, cache.path(), "owner/model");
    assert!(message.contains("4 times in a row"), "{message}");
    assert_eq!(hub.asked_for(FILE).len(), 4);
}

#[test]
fn a_slow_connection_that_keeps_the_lowest_rate_is_read_to_the_end() {
    let weights = bytes(100_000, 1);
    let hub = Hub::start(&[(FILE, weights.clone())]);
    let cache = tempfile::tempdir().expect("a folder");
    // The file takes about three windows of 30,000 bytes each.
    hub.faults(|asked, _| asked.is_for(FILE).then_some(Fault::Slow(1000)));
    let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(fs::read(pulled.path).expect("a file"), weights);
    assert_eq!(hub.asked_for(FILE).len(), 1);
}

#[test]
fn a_file_with_a_wrong_sum_is_refused_and_removed() {
    for seed in [1, 2] {
        // One file stored by Git LFS, one by Git itself.
        let content = bytes(if seed == 1 { 400_000 } else { 900 }, seed);
        let hub = Hub::start(&[(FILE, content.clone())]);
        let cache = tempfile::tempdir().expect("a folder");
        hub.faults(|asked, _| asked.is_for(FILE).then_some(Fault::OtherBytes));
        let message = refused(&hub, cache.path(), "owner/model");
        assert!(
            message.contains(FILE) && message.contains(&sum(&content)) && message.contains("removed"),
            "{message}"
        );
        let blobs = cache.path().join("models--owner--model/blobs");
        assert_eq!(fs::read_dir(blobs).expect("a folder").count(), 0);
        hub.faults(|_, _| None);
        pull_named(&hub, cache.path(), "owner/model").expect("pulled afterwards");
    }
}

#[test]
fn damage_in_what_an_earlier_pull_left_costs_the_download_and_not_the_file() {
    let (hub, weights, cache) = hub();
    let blobs = cache.path().join("models--owner--model/blobs");
    fs::create_dir_all(&blobs).expect("a folder");
    for left in [vec![0; 300_000], vec![0; 400_000], vec![0; 500_000]] {
        let partial = blobs.join(format!("{}.incomplete", sum(&weights)));
        fs::write(&partial, left).expect("a file");
        let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
        assert_eq!(fs::read(&pulled.path).expect("a file"), weights);
        assert!(!partial.exists());
        let file = fs::canonicalize(&pulled.path).expect("a file");
        fs::remove_file(file).expect("removed");
    }
}

#[test]
fn servers_that_ignore_ranges_begin_the_file_anew() {
    let (hub, weights, cache) = hub();
    let mut cut = true;
    hub.faults(move |asked, _| {
        let fault = if std::mem::take(&mut cut) && asked.is_for(FILE) {
            Fault::Cut(90_000)
        } else {
            Fault::NoRange
        };
        cut |= asked.path.contains("/api/");
        asked.is_for(FILE).then_some(fault)
    });
    let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(fs::read(pulled.path).expect("a file"), weights);
    assert_eq!(pulled.bytes_downloaded, 490_000);
}

#[test]
fn a_part_that_was_not_asked_for_is_not_written() {
    let (hub, weights, cache) = hub();
    let mut faults = vec![Fault::Cut(1000), Fault::OtherRange(500), Fault::Cut(1000)];
    hub.faults(move |asked, _| {
        if asked.is_for(FILE) && !faults.is_empty() {
            Some(faults.remove(0))
        } else {
            None
        }
    });
    let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(fs::read(pulled.path).expect("a file"), weights);
}

#[test]
fn lengths_that_lie_are_refused() {
    for length in [399_999, 400_001, 0] {
        let (hub, _, cache) = hub();
        hub.faults(move |asked, _| asked.is_for(FILE).then_some(Fault::OtherLength(length)));
        let message = refused(&hub, cache.path(), "owner/model");
        assert!(
            message.contains(&format!("{length} bytes long there, and 400000")),
            "{message}"
        );
    }
}

#[test]
fn a_server_that_asks_to_wait_is_waited_for() {
    let (hub, _, cache) = hub();
    let limit = |seconds: &str| Fault::Status(429, vec![("Retry-After", seconds.to_owned())]);
    let mut faults = vec![limit("1"), Fault::Status(429, Vec::new())];
    hub.faults(move |_, _| {
        if faults.is_empty() {
            None
        } else {
            Some(faults.remove(0))
        }
    });
    let start = Instant::now();
    pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert!(start.elapsed().as_secs_f64() >= 1.0, "the server asked for a second");

    let cache = tempfile::tempdir().expect("a folder");
    hub.faults(move |_, _| Some(Fault::Status(429, vec![("Retry-After", "3600".to_owned())])));
    let message = refused(&hub, cache.path(), "owner/model");
    assert!(message.contains("3600 s") && message.contains("token"), "{message}");
    hub.faults(move |_, _| Some(Fault::Status(429, vec![("RateLimit", "\"api\";r=0;t=500".to_owned())])));
    let message = refused(&hub, cache.path(), "owner/model");
    assert!(message.contains("500 s"), "{message}");
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let (hub, weights, cache) = hub();
    let storage = Hub::start(&[(FILE, weights.clone())]);
    hub.state().storage = Some(storage.url());
    storage.faults(|_, number| (number == 0).then_some(Fault::Cut(100_000)));
    let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(fs::read(pulled.path).expect("a file"), weights);
    let (of_hub, of_storage) = (hub.state().log.clone(), storage.state().log.clone());
    assert_eq!((of_hub.len(), of_storage.len()), (4, 2));
    for asked in of_hub {
        assert_eq!(
            asked.header("authorization"),
            Some("Bearer hf_secret"),
            "{}",
            asked.path
        );
    }
    for asked in of_storage {
        assert_eq!(asked.header("authorization"), None, "{}", asked.path);
    }
}

#[test]
fn links_to_storage_that_no_longer_hold_are_asked_for_again() {
    let (hub, weights, cache) = hub();
    let storage = Hub::start(&[(FILE, weights)]);
    hub.state().storage = Some(storage.url());
    storage.faults(|_, number| (number < 2).then(|| Fault::Status(403, Vec::new())));
    pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(hub.asked_for(FILE).len(), 3);
}

#[test]
fn redirects_on_the_hub_are_followed_with_the_token_and_not_for_ever() {
    let (hub, _, cache) = hub();
    let moved = |to: &str| Fault::Status(307, vec![("Location", to.to_owned())]);
    hub.faults(move |asked, _| {
        asked
            .path
            .starts_with("/api/models/owner/old")
            .then(|| moved(&asked.path.replace("old", "model")))
    });
    hub.state().repository = "owner/model".to_owned();
    let message = refused(&hub, cache.path(), "owner/old");
    assert!(
        message.contains("has no model owner/old"),
        "only the lists are redirected here: {message}"
    );
    assert!(
        hub.state()
            .log
            .iter()
            .all(|asked| asked.header("authorization").is_some())
    );
    hub.faults(move |asked, _| Some(moved(&asked.path)));
    let message = refused(&hub, cache.path(), "owner/model");
    assert!(message.contains("10 redirects"), "{message}");
    for location in [
        "",
        "ftp://a/b",
        "http://",
        "http://[::1",
        "http://a\\@b/",
        "http://user@a/",
    ] {
        hub.faults(move |_, _| Some(Fault::Status(302, vec![("Location", location.to_owned())])));
        let message = refused(&hub, cache.path(), "owner/model");
        // The empty one redirects to the same address forever.
        if !location.is_empty() {
            assert!(message.contains("redirects to what is no address"), "{message}");
            assert_eq!(hub.state().log.len(), 1, "{location}: {message}");
        }
    }
}
