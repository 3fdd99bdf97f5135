//! A publisher with subscribers that listen, join late, read slowly, or request old batches.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use riffle_events::{Block, Encoding, Event, EventsError, Group, Medium, Picture, Publisher, PublisherOptions};
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const PATIENCE: Duration = Duration::from_secs(20);

fn options() -> PublisherOptions {
    PublisherOptions {
        address: "tcp://127.0.0.1:0".to_owned(),
        replay_address: Some("tcp://127.0.0.1:0".to_owned()),
        topic: "kv-events".to_owned(),
        ..PublisherOptions::default()
    }
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(work)
}

fn stored(hash: u64, parent: Option<u64>) -> Event {
    let block = Block {
        hash,
        parent,
        tokens: vec![hash as u32; 16].into(),
    };
    Event::Stored {
        block,
        medium: Medium::Gpu,
        group: Group::Attention,
    }
}

fn removed(hash: u64) -> Event {
    Event::Removed {
        hash,
        medium: Medium::Gpu,
        group: Group::Attention,
    }
}

/// Number of occurrences of a text in a batch.
fn count(payload: &[u8], text: &str) -> usize {
    payload
        .windows(text.len())
        .filter(|part| *part == text.as_bytes())
        .count()
}

async fn subscribe(address: &str, topic: &str) -> SubSocket {
    let mut subscriber = SubSocket::new();
    subscriber.connect(address).await.unwrap();
    subscriber.subscribe(topic).await.unwrap();
    // The publisher accepts the subscription while it works.
    tokio::time::sleep(Duration::from_millis(300)).await;
    subscriber
}

async fn next(subscriber: &mut SubSocket) -> (String, u64, Vec<u8>) {
    let received = timeout(PATIENCE, subscriber.recv()).await.expect("a batch comes");
    let frames = received.unwrap().into_vec();
    let [topic, number, payload] = &frames[..] else {
        panic!("{} frames", frames.len())
    };
    let number = u64::from_be_bytes(number[..].try_into().unwrap());
    (String::from_utf8(topic.to_vec()).unwrap(), number, payload.to_vec())
}

/// Requests all batches from a number on.
async fn replay(address: &str, first: u64) -> BTreeMap<u64, Vec<u8>> {
    let mut dealer = DealerSocket::new();
    dealer.connect(address).await.unwrap();
    let mut request = ZmqMessage::from(Vec::new());
    request.push_back(first.to_be_bytes().to_vec().into());
    dealer.send(request).await.unwrap();
    let mut batches = BTreeMap::new();
    loop {
        let reply = timeout(PATIENCE, dealer.recv()).await.expect("a reply comes").unwrap();
        let frames = reply.into_vec();
        assert_eq!(frames.len(), 3);
        let number = u64::from_be_bytes(frames[1][..].try_into().unwrap());
        if number == u64::MAX {
            assert!(frames[2].is_empty());
            return batches;
        }
        batches.insert(number, frames[2].to_vec());
    }
}

#[test]
fn subscribers_of_the_topic_get_numbered_batches_and_who_missed_some_gets_the_same_bytes_again() {
    let publisher = Publisher::start(options()).unwrap();
    on_runtime(async {
        let mut subscriber = subscribe(publisher.address(), "kv-").await;
        let mut other = subscribe(publisher.address(), "other").await;
        let mut seen = BTreeMap::new();
        for hash in 1..=20 {
            publisher.publish(vec![stored(hash, hash.checked_sub(1).filter(|parent| *parent > 0))]);
            let (topic, number, payload) = next(&mut subscriber).await;
            assert_eq!((topic.as_str(), number), ("kv-events", hash));
            seen.insert(number, payload);
        }
        let again = replay(publisher.replay_address().unwrap(), 8).await;
        assert_eq!(again, seen.split_off(&8));
        assert!(replay(publisher.replay_address().unwrap(), 21).await.is_empty());
        assert!(timeout(Duration::from_millis(200), other.recv()).await.is_err());
        assert_eq!((publisher.counts().replays, publisher.counts().whole_replays), (2, 0));
        assert_eq!(publisher.held(), 20);
        // The end of the server is reported.
        drop(publisher);
        assert_eq!(count(&next(&mut subscriber).await.2, "AllBlocksCleared"), 1);
    });
}

#[test]
fn who_asks_for_batches_that_are_not_kept_any_more_is_told_everything_that_is_held() {
    let publisher = Publisher::start(PublisherOptions {
        kept_batches: 4,
        ..options()
    })
    .unwrap();
    for hash in 1..=10 {
        publisher.publish(vec![stored(hash, None)]);
    }
    publisher.publish(vec![removed(3)]);
    on_runtime(async {
        let address = publisher.replay_address().unwrap();
        while publisher.counts().batches < 12 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // A number that was dropped, or that an earlier publisher gave, brings a snapshot.
        for first in [0, 7, 500] {
            let whole = replay(address, first).await;
            let [(11, payload)] = &whole.into_iter().collect::<Vec<_>>()[..] else {
                panic!("one batch, under the latest number")
            };
            assert_eq!(
                (count(payload, "AllBlocksCleared"), count(payload, "BlockStored")),
                (1, 9)
            );
        }
        assert_eq!(replay(address, 8).await.len(), 4);
        assert_eq!((publisher.counts().replays, publisher.counts().whole_replays), (4, 3));
    });
}

#[test]
fn publishing_never_waits_and_what_found_no_place_is_counted_and_told_with_the_next_batch() {
    let publisher = Publisher::start(PublisherOptions {
        waiting_batches: 2,
        ..options()
    })
    .unwrap();
    const EVENTS: u64 = 20_000;
    for hash in 1..=EVENTS {
        publisher.publish(vec![stored(hash, None)]);
    }
    let dropped = publisher.counts().dropped_events;
    assert!(dropped > 0, "two places are fewer than {EVENTS} batches in a row need");
    on_runtime(async {
        let mut subscriber = subscribe(publisher.address(), "").await;
        // Dropped events must arrive with the next batch, even an empty one.
        publisher.publish(Vec::new());
        publisher.publish(vec![stored(EVENTS + 1, None)]);
        let mut told = BTreeMap::new();
        while told.values().sum::<usize>() < EVENTS as usize + 1 {
            let (_, number, payload) = next(&mut subscriber).await;
            if count(&payload, "AllBlocksCleared") > 0 {
                told.clear();
            }
            told.insert(number, count(&payload, "BlockStored"));
        }
        let numbers: Vec<u64> = told.keys().copied().collect();
        assert!(
            numbers.is_sorted_by(|a, b| a + 1 == *b),
            "no number is left out: {numbers:?}"
        );
    });
}

#[test]
fn clients_that_ask_for_nonsense_or_do_not_read_hold_up_nobody() {
    let publisher = Publisher::start(options()).unwrap();
    on_runtime(async {
        let address = publisher.replay_address().unwrap().to_owned();
        let mut idle = Vec::new();
        for frames in [
            vec![vec![]],
            vec![vec![], vec![1, 2]],
            vec![vec![9], vec![0; 8]],
            vec![vec![], vec![0; 8], vec![]],
        ] {
            let mut dealer = DealerSocket::new();
            dealer.connect(&address).await.unwrap();
            let mut frames = frames.into_iter();
            let mut request = ZmqMessage::from(frames.next().unwrap());
            frames.for_each(|frame| request.push_back(frame.into()));
            dealer.send(request).await.unwrap();
            idle.push(dealer);
        }
        // A subscriber that never reads.
        let _slow = subscribe(publisher.address(), "").await;
        for hash in 1..=2000 {
            publisher.publish(vec![stored(hash, None)]);
        }
        while publisher.counts().batches < 2001 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(replay(&address, 1).await.len(), 2000);
        assert_eq!((publisher.counts().replays, publisher.counts().dropped_events), (1, 0));
    });
}

#[test]
fn an_address_that_cannot_be_listened_on_is_one_line() {
    let start = |address: &str| {
        let address = address.to_owned();
        Publisher::start(PublisherOptions { address, ..options() })
    };
    for (address, expected) in [
        (
            "127.0.0.1:5557",
            "127.0.0.1:5557: give it as tcp://HOST:PORT, such as tcp://127.0.0.1:5557",
        ),
        ("tcp://127.0.0.1", "tcp://127.0.0.1: it cannot be listened on: "),
        (
            "tcp://203.0.113.1:5557",
            "tcp://203.0.113.1:5557: it cannot be listened on: ",
        ),
    ] {
        let error = start(address).unwrap_err();
        assert!(matches!(error, EventsError::Address { .. }));
        let line = error.to_string();
        assert!(line.starts_with(expected) && !line.contains('\n'), "{line}");
    }
    let first = start("tcp://127.0.0.1:0").unwrap();
    assert!(
        start(first.address())
            .unwrap_err()
            .to_string()
            .contains("cannot be listened on")
    );
    assert!(start("tcp://*:0").unwrap().address().starts_with("tcp://0.0.0.0:"));
    assert_eq!(PublisherOptions::default().encoding, Encoding::Map);
}

/// Events in the order of a cache; some repeat known facts.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let medium = prop_oneof![Just(Medium::Gpu), Just(Medium::Cpu), Just(Medium::Disk)];
    let group = prop_oneof![Just(Group::Attention), Just(Group::RecurrentState)];
    let one = (0..12u64, any::<bool>(), medium, group, 0..20).prop_map(|(hash, is_stored, medium, group, rare)| {
        let block = Block {
            hash,
            parent: (hash > 0).then_some(hash / 2),
            tokens: vec![hash as u32; 4].into(),
        };
        match (rare, is_stored) {
            (0, _) => Event::Cleared,
            (_, true) => Event::Stored { block, medium, group },
            (_, false) => Event::Removed { hash, medium, group },
        }
    });
    prop::collection::vec(one, 0..80)
}

proptest! {
    #[test]
    fn a_snapshot_at_any_time_and_all_events_around_it_lead_to_the_same_picture(
        events in events(), at in 0..80usize, again in 0..80usize,
    ) {
        let mut whole = Picture::default();
        events.iter().for_each(|event| whole.apply(event));
        let at = at.min(events.len());
        let mut before = Picture::default();
        events[..at].iter().for_each(|event| before.apply(event));
        // A subscriber with another picture gets a snapshot, some events that the snapshot contains already, then the
        // rest.
        let mut late = Picture::default();
        late.apply(&stored(99, None));
        let snapshot = before.snapshot();
        snapshot.iter().for_each(|event| late.apply(event));
        prop_assert_eq!(&late, &before);
        events[at.saturating_sub(again)..].iter().for_each(|event| late.apply(event));
        prop_assert_eq!(&late, &whole);
        // A block comes after its parent.
        let mut told = Picture::default();
        for event in &snapshot {
            if let Event::Stored { block, medium, group } = event
                && let Some(parent) = block.parent
                && before.holds(parent, *medium, *group)
                && parent != block.hash
            {
                prop_assert!(told.holds(parent, *medium, *group));
            }
            told.apply(event);
        }
    }
}
