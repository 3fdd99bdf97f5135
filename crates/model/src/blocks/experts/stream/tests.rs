use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use riffle_files::{FileError, FileParts, PartBuffer};
use riffle_linear::{Activations, WeightFormat};

use super::form::{ExpertForm, PartForm, Place};
use super::loader::ReadParts;
use super::*;
use crate::ModelError;

const SIZE: usize = 16;
const COUNT: usize = 5;

/// A file with some failing reads.
struct Faulty {
    file: FileParts,
    /// Every read with this number fails.
    every: usize,
    reads: AtomicUsize,
}

impl ReadParts for Faulty {
    fn read<'b>(&self, offset: u64, bytes: usize, buffer: &'b mut PartBuffer) -> Result<&'b [u8], FileError> {
        let number = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
        if self.every > 0 && number.is_multiple_of(self.every) {
            return Err(std::io::Error::other("the disk is broken").into());
        }
        self.file.read(offset, bytes, buffer)
    }
}

impl Faulty {
    fn new(every: usize) -> Self {
        let mut file = tempfile::tempfile().unwrap();
        for matrix in 0..2 * 3 * COUNT {
            file.write_all(&[matrix as u8; 4 * SIZE * SIZE]).unwrap();
        }
        file.flush().unwrap();
        Faulty {
            file: FileParts::new(file).unwrap(),
            every,
            reads: AtomicUsize::new(0),
        }
    }
}

/// Layers of experts with f32 matrices, all of one byte value that shows their place.
fn forms(layers: usize) -> Vec<ExpertForm> {
    let part = |layer: usize, part: usize| PartForm {
        format: WeightFormat::F32,
        rows: SIZE,
        columns: SIZE,
        name: format!("layer.{layer}.{part}"),
        half: None,
        places: (0..COUNT)
            .map(|expert| Place {
                file: 0,
                offset: (((layer * 3 + part) * COUNT + expert) * 4 * SIZE * SIZE) as u64,
                factor: 1.0,
            })
            .collect(),
    };
    (0..layers)
        .map(|layer| ExpertForm {
            base: format!("layer.{layer}."),
            parts: [0, 1, 2].map(|number| (number != 0 || layer % 2 == 0).then(|| part(layer, number))),
        })
        .collect()
}

fn cache(every: usize, budget_bytes: u64) -> Arc<ExpertCache> {
    ExpertCache::start(
        forms(2),
        vec![("weights".into(), Faulty::new(every))],
        Activations::Exact,
        budget_bytes,
    )
    .unwrap()
}

/// The value of a matrix of an expert.
fn value(layer: usize, part: usize, expert: usize) -> f32 {
    let byte = ((layer * 3 + part) * COUNT + expert) as u8;
    f32::from_le_bytes([byte; 4])
}

fn check(held: &Held, layer: usize, expert: usize) {
    for part in 0..3 {
        let Some(matrix) = held.matrix(part) else {
            assert!(part == 0 && layer == 1, "experts of layer 1 alone have no gates");
            continue;
        };
        let mut row = [0.0; SIZE];
        matrix.row_into(SIZE - 1, &mut row);
        assert_eq!(
            row,
            [value(layer, part, expert); SIZE],
            "layer {layer}, expert {expert}, part {part}"
        );
    }
}

#[test]
fn slots_hold_what_was_asked_for_whatever_came_before() {
    let classes = expert_classes(&forms(2));
    assert_eq!(classes.len(), 2);
    let least = least_expert_cache_bytes(&classes);
    for budget in [least, least + 10_000, u64::MAX / 4] {
        let cache = cache(0, budget);
        for round in 0..40 {
            let layer = round % 2;
            let wanted = [round * 3 % COUNT, (round * 3 + 1) % COUNT, (round + 4) % COUNT];
            let mut wanted: Vec<usize> = wanted
                .into_iter()
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect();
            cache.choose(layer, 1, wanted.iter().map(|expert| (*expert, 1)));
            cache.ask(1 - layer, 0..COUNT, Urgency::Early);
            while !wanted.is_empty() {
                let held = cache.wait(layer, &mut wanted).unwrap();
                assert!(!held.is_empty());
                held.iter().for_each(|(expert, held)| check(held, layer, *expert));
            }
        }
        let statistics = cache.statistics();
        assert!(
            statistics.hits + statistics.early + statistics.misses >= 80,
            "{statistics:?}"
        );
    }
}

#[test]
fn a_read_that_fails_is_told_once_and_read_anew_when_it_is_asked_for_again() {
    let least = least_expert_cache_bytes(&expert_classes(&forms(2)));
    for every in [1, 5, 7] {
        let cache = cache(every, least);
        let (mut failures, mut loads) = (0, 0);
        for round in 0..60 {
            let mut wanted = vec![round % COUNT];
            cache.ask(0, [(round + 1) % COUNT].into_iter(), Urgency::Early);
            match cache.wait(0, &mut wanted) {
                Ok(held) => {
                    check(&held[0].1, 0, round % COUNT);
                    loads += 1;
                }
                Err(error) => {
                    assert!(matches!(error, ModelError::Io { .. }), "{error}");
                    assert_eq!(
                        error.to_string(),
                        "weights: cannot be read: the disk is broken; check its permissions and the disk"
                    );
                    failures += 1;
                }
            }
        }
        assert!(
            failures > 0 && (every == 1 || loads > 0),
            "{failures} failures, {loads} loads"
        );
    }
}

#[test]
fn several_threads_share_the_least_memory() {
    let cache = cache(0, least_expert_cache_bytes(&expert_classes(&forms(2))));
    std::thread::scope(|scope| {
        for first in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..50 {
                    let (layer, expert) = (round % 2, (round + first) % COUNT);
                    let mut wanted = vec![expert];
                    for (expert, held) in cache.wait(layer, &mut wanted).unwrap() {
                        check(&held, layer, expert);
                    }
                }
            });
        }
    });
}

#[test]
fn experts_that_many_tokens_choose_stay_when_a_prompt_passes_all() {
    let classes = expert_classes(&forms(1));
    let two = least_expert_cache_bytes(&classes) + classes[0].expert_bytes;
    let file = vec![("weights".into(), Faulty::new(0))];
    let cache = ExpertCache::start(forms(1), file, Activations::Exact, two).unwrap();
    let pass = |tokens: [usize; COUNT]| {
        let chosen = || tokens.into_iter().enumerate().filter(|(_, tokens)| *tokens > 0);
        cache.choose(0, tokens.iter().sum(), chosen());
        for (expert, _) in chosen() {
            cache.wait(0, &mut vec![expert]).unwrap();
        }
        cache.statistics()
    };
    pass([0, 0, 50, 0, 0]);
    let before = pass([1, 1, 90, 1, 1]);
    let after = pass([0, 0, 1, 0, 0]);
    assert_eq!((after.hits, after.misses), (before.hits + 1, before.misses));
}

#[test]
fn the_least_budget_of_all_users_holds_and_experts_beyond_it_lose_their_memory() {
    let classes = expert_classes(&forms(1));
    let (least, expert) = (least_expert_cache_bytes(&classes), classes[0].expert_bytes);
    let of = |experts: u64| least + (experts - 1) * expert;
    let file = vec![("weights".into(), Faulty::new(0))];
    let cache = ExpertCache::start(forms(1), file, Activations::Exact, of(4)).unwrap();
    let read_all = || {
        for wanted in 0..COUNT {
            let (_, held) = cache.wait(0, &mut vec![wanted]).unwrap().remove(0);
            check(&held, 0, wanted);
        }
    };
    let first = cache.set_budget(of(4));
    read_all();
    assert_eq!(cache.taken_bytes(), 4 * expert);
    let held = cache.wait(0, &mut vec![COUNT - 1]).unwrap();
    let second = cache.set_budget(of(1));
    assert_eq!((cache.taken_bytes(), cache.bytes()), (expert, of(1)));
    check(&held[0].1, 0, COUNT - 1);
    drop(held);
    read_all();
    assert_eq!(cache.taken_bytes(), expert);
    drop(second);
    read_all();
    assert_eq!((cache.taken_bytes(), cache.bytes()), (4 * expert, of(4)));
    drop(first);
    assert_eq!(cache.bytes(), of(4));
}
