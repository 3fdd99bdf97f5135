//! A scheduler reports its holdings: a listener can compute where the next request continues.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::{options, request, tokens};
use crate::testing::fixture;
use riffle_engine::{
    Engine, Event, HeldKind, HoldingChange, PrefixCacheOptions, Request, RowTier, Scheduler, SchedulerOptions,
    SequenceOptions, TextBlock,
};
use riffle_kv::DiskTier;

const PAGE: usize = 32;

/// A listener's blocks by place.
#[derive(Default)]
struct Picture(HashMap<(u128, RowTier, HeldKind), TextBlock>);

impl Picture {
    fn listen(&mut self, scheduler: &mut Scheduler) {
        for change in scheduler.take_holding_changes() {
            match change {
                HoldingChange::Stored { block, tier, kind } => {
                    let before = self.0.insert((block.key, tier, kind), block);
                    assert!(before.is_none(), "a block is told once for a place");
                }
                HoldingChange::Removed { key, tier, kind } => {
                    assert!(self.0.remove(&(key, tier, kind)).is_some(), "what goes was told");
                }
            }
        }
    }

    fn holds(&self, key: u128, kind: HeldKind) -> bool {
        let tiers = [RowTier::Near, RowTier::Ram, RowTier::Disk];
        tiers.into_iter().any(|tier| self.0.contains_key(&(key, tier, kind)))
    }

    /// Number of tokens that a prompt reuses, in whole pages.
    fn expected(&self, prompt: &[u32], is_recurrent: bool) -> usize {
        // The last token of a prompt is always read.
        let blocks = TextBlock::chain(PAGE, &prompt[..prompt.len() - 1]);
        let held = blocks.take_while(|block| self.holds(block.key, HeldKind::KeysAndValues));
        let held: Vec<TextBlock> = held.collect();
        let pages = if !is_recurrent {
            held.len()
        } else {
            let state = |block: &TextBlock| self.holds(block.key, HeldKind::RecurrentState);
            held.iter().rposition(state).map_or(0, |place| place + 1)
        };
        pages * PAGE
    }

    fn tiers(&self) -> Vec<RowTier> {
        let mut tiers: Vec<RowTier> = self.0.keys().map(|(_, tier, _)| *tier).collect();
        tiers.sort_unstable();
        tiers.dedup();
        tiers
    }
}

fn telling(engine: &Arc<Engine>, folder: Option<&Path>) -> Scheduler {
    let options = SchedulerOptions {
        tells_holdings: true,
        prefix_cache: folder.map(|folder| PrefixCacheOptions {
            folder: folder.to_owned(),
            budget_bytes: u64::MAX,
        }),
        ..SchedulerOptions::for_engine(engine.options())
    };
    Scheduler::new(engine, options).unwrap()
}

/// Answers one request. Returns the number of reused tokens.
fn answer(scheduler: &mut Scheduler, picture: &mut Picture, request: Request) -> usize {
    scheduler.submit(request).unwrap();
    let mut reused = None;
    loop {
        let has_more = scheduler.step(&mut |event| match event {
            Event::Finished(_, report, _) => reused = Some(report.reused_tokens),
            Event::Failed(_, error) => panic!("{error}"),
            _ => {}
        });
        picture.listen(scheduler);
        if !has_more.unwrap() {
            return reused.unwrap();
        }
    }
}

/// Makes requests with their own policies.
fn under(engine: &Engine, prefill: &str, decode: &str) -> impl Fn(&[u32]) -> Request {
    let options = SequenceOptions {
        prefill: prefill.parse().unwrap(),
        decode: decode.parse().unwrap(),
        ..engine.options().sequence.clone()
    };
    move |prompt| Request {
        sequence: Some(options.clone()),
        ..request(prompt.to_vec(), 8)
    }
}

/// Prompts that share beginnings of several lengths.
fn prompts(engine: &Engine) -> Vec<Vec<u32>> {
    let book = tokens(engine, "It was the best of times, it was the worst of times. ", 500);
    let question = |at: usize, salt: u32| -> Vec<u32> {
        let tail = (0..70).map(|token| 300 + (token * 7 + salt) % 90);
        book[..at].iter().copied().chain(tail).collect()
    };
    vec![
        question(400, 1),
        question(400, 2),
        question(130, 3),
        question(400, 1),
        question(250, 4),
        question(0, 5),
        question(0, 5),
        question(130, 3),
    ]
}

fn listens_right(engine: &Arc<Engine>, folder: Option<&Path>, is_recurrent: bool) -> (Picture, usize) {
    let mut scheduler = telling(engine, folder);
    let mut picture = Picture::default();
    let mut whole = 0;
    for prompt in prompts(engine) {
        picture.listen(&mut scheduler);
        let expected = picture.expected(&prompt, is_recurrent);
        let reused = answer(&mut scheduler, &mut picture, request(prompt, 4));
        // Memory also finds a partially read page.
        assert_eq!(reused / PAGE * PAGE, expected);
        whole += expected;
    }
    (picture, whole)
}

#[test]
fn a_listener_knows_what_each_request_will_go_on_from() {
    let engine = Engine::load(fixture("model"), options()).unwrap();
    let (picture, reused) = listens_right(&engine, None, false);
    assert!(reused > 1000, "{reused}");
    assert_eq!(picture.tiers(), [RowTier::Near]);
}

#[test]
fn pages_that_have_left_for_the_disk_are_told_to_lie_there() {
    let folder = tempfile::tempdir().unwrap();
    let disk = DiskTier {
        folder: folder.path().to_owned(),
        budget_bytes: None,
    };
    let mut options = options();
    options.cache.kv_tiers.disk = Some(disk);
    let engine = Engine::load(fixture("model"), options).unwrap();
    let (picture, reused) = listens_right(&engine, None, false);
    assert!(reused > 1000, "{reused}");
    assert!(picture.tiers().contains(&RowTier::Disk), "idle sequences are parked");
}

#[test]
fn what_a_prefix_cache_keeps_is_told_on_the_way_and_after_a_new_start() {
    let engine = Engine::load(fixture("model"), options()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (picture, _) = listens_right(&engine, Some(folder.path()), false);
    assert_eq!(picture.tiers(), [RowTier::Near, RowTier::Disk]);
    let mut later = Picture::default();
    later.listen(&mut telling(&engine, Some(folder.path())));
    assert_eq!(later.tiers(), [RowTier::Disk]);
    for prompt in prompts(&engine) {
        assert_eq!(later.expected(&prompt, false), picture.expected(&prompt, false));
    }
    // Only the disk has this prompt.
    let mut scheduler = telling(&engine, Some(folder.path()));
    let mut picture = Picture::default();
    picture.listen(&mut scheduler);
    let prompt = prompts(&engine).remove(0);
    let expected = picture.expected(&prompt, false);
    assert!(expected > 400);
    assert_eq!(
        answer(&mut scheduler, &mut picture, request(prompt, 2)) / PAGE * PAGE,
        expected
    );
}

#[test]
fn hybrids_tell_blocks_up_to_known_states_alone() {
    let options = options()
        .with_batch_tokens(64)
        .with_chunk_tokens(64)
        .with_keeps_beginnings(true);
    let engine = Engine::load(fixture("model-hybrid"), options).unwrap();
    let (picture, reused) = listens_right(&engine, None, true);
    assert!(reused > 500, "{reused}");
    let states = || {
        picture
            .0
            .iter()
            .filter(|((.., kind), _)| *kind == HeldKind::RecurrentState)
    };
    assert!(states().count() > 0);
    // Every chain ends with a state.
    let parents: Vec<u128> = picture.0.values().filter_map(|block| block.parent).collect();
    for (key, ..) in picture.0.keys() {
        let is_last = !parents.contains(key);
        assert!(!is_last || picture.holds(*key, HeldKind::RecurrentState));
    }
    let folder = tempfile::tempdir().unwrap();
    let (picture, _) = listens_right(&engine, Some(folder.path()), true);
    let mut later = Picture::default();
    later.listen(&mut telling(&engine, Some(folder.path())));
    assert_eq!(later.tiers(), [RowTier::Disk]);
    assert!(
        prompts(&engine)
            .iter()
            .all(|prompt| later.expected(prompt, true) <= picture.expected(prompt, true))
    );
    assert!(prompts(&engine).iter().any(|prompt| later.expected(prompt, true) > 0));
}

#[test]
fn what_is_not_exact_is_never_told() {
    let engine = Engine::load(fixture("model"), options()).unwrap();
    let mut scheduler = telling(&engine, None);
    let mut picture = Picture::default();
    let prompt = prompts(&engine).remove(0);
    for policy in ["streaming", "tri-shape", "xattention"] {
        let lossy = under(&engine, policy, "full");
        answer(&mut scheduler, &mut picture, lossy(&prompt));
        assert!(picture.0.is_empty(), "{policy}");
    }
    // An engine with a lossy policy reports only requests with full attention.
    let lossy = options().with_prefill("streaming".parse().unwrap());
    let engine = Engine::load(fixture("model"), lossy).unwrap();
    let mut scheduler = telling(&engine, None);
    answer(&mut scheduler, &mut picture, request(prompt.clone(), 4));
    assert!(picture.0.is_empty());
    let exact = under(&engine, "full", "full");
    answer(&mut scheduler, &mut picture, exact(&prompt));
    assert_eq!(picture.expected(&prompt, false), (prompt.len() - 1) / PAGE * PAGE);
}

#[test]
fn sequences_that_evict_tell_nothing_that_others_cannot_use() {
    let engine = Engine::load(fixture("model"), options()).unwrap();
    let mut scheduler = telling(&engine, None);
    let mut picture = Picture::default();
    let prompt = prompts(&engine).remove(0);
    let evicting = under(&engine, "full", "snapkv:budget=64");
    answer(&mut scheduler, &mut picture, evicting(&prompt));
    let expected = picture.expected(&prompt, false);
    let reused = answer(&mut scheduler, &mut picture, request(prompt, 2));
    assert_eq!(reused / PAGE * PAGE, expected);
}
