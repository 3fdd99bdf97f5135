//! Sequences of one engine under random faults of memory and disk: budgets hold, a failed sequence keeps its earlier
//! state, and all others have the bits of a run without faults.

mod breaking;
mod member;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::testing::{bits, fixture, prompt};
use breaking::{Damage, NEVER, Refusing, open_files};
use member::{Member, Move, SETTINGS};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use riffle_attention::Format;
use riffle_engine::{
    Engine, EngineError, EngineOptions, FinishedRows, Runner, Sequence, SequenceOptions, StreamWindow, Work,
};
use riffle_kv::{DiskTier, KvError, KvTiers, Outlook, PagePool};
use riffle_policy::Phase;

const MOST_MEMBERS: usize = 8;
const MOST_TOKENS: usize = 300;
const STEPS: usize = 60;

struct Group {
    engine: Arc<Engine>,
    pool: PagePool,
    runner: Runner,
    alone: (Arc<Engine>, PagePool, Runner),
    memory: Arc<Refusing>,
    files: Vec<File>,
    members: Vec<Member>,
    random: StdRng,
    /// Failures, by kind.
    seen: BTreeMap<&'static str, usize>,
    /// Rows that were compared.
    compared: usize,
}

fn kind(error: &EngineError) -> &'static str {
    match error {
        EngineError::Kv(KvError::Memory { .. }) => "memory refused",
        EngineError::Kv(KvError::Budget { .. } | KvError::NearBudget { .. }) => "budget used up",
        EngineError::Kv(KvError::DiskBudget { .. }) => "disk full",
        EngineError::Kv(KvError::DamagedPage { .. }) => "page damaged",
        EngineError::Kv(KvError::Disk { action: "write", .. }) => "write failed",
        error => panic!("{error}"),
    }
}

fn options(format: Format) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_sequences(MOST_MEMBERS)
        .with_pool_tokens(Some(MOST_MEMBERS * 512))
        .with_batch_tokens(64)
        .with_chunk_tokens(24)
        .with_page_tokens(16)
        .with_key_format(format)
        .with_value_format(format)
}

impl Group {
    /// `disk_tokens` is the range of the disk budget in tokens; without it there is no disk.
    fn new(model: &Path, format: Format, folder: &Path, disk_tokens: Option<Range<usize>>, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let engine = Engine::load(model, options(format)).unwrap();
        let memory = Arc::new(Refusing {
            left: AtomicU32::new(NEVER),
        });
        let shape = *engine.page_pool().unwrap().shape();
        let mut tiers = KvTiers {
            device: memory.clone(),
            disk: Some(DiskTier {
                folder: folder.to_owned(),
                budget_bytes: disk_tokens.map(|tokens| shape.bytes_for(random.random_range(tokens))),
            }),
            slots: random.random_range(1..7),
            outlook: Outlook {
                context_tokens: MOST_TOKENS,
                append_tokens: 64,
                sequences: random.random_range(3..=MOST_MEMBERS),
                ..Outlook::default()
            },
            ..KvTiers::memory(Some(0))
        };
        tiers.ram_budget_bytes = Some(tiers.least_near_bytes(&shape) + shape.bytes_for(random.random_range(0..200)));
        let pool = PagePool::new(shape, tiers).unwrap();
        let alone = Engine::load(model, options(format)).unwrap();
        Self {
            pool,
            runner: Runner::new(&engine),
            alone: (alone.clone(), alone.page_pool().unwrap(), Runner::new(&alone)),
            memory,
            files: open_files(folder),
            members: Vec::new(),
            engine,
            random,
            seen: BTreeMap::new(),
            compared: 0,
        }
    }

    fn text(&mut self, most: usize) -> Vec<u32> {
        let (skipped, length) = (self.random.random_range(0..40), self.random.random_range(1..=most));
        prompt(skipped + length)[skipped..]
            .iter()
            .map(|token| token % 31)
            .collect()
    }

    fn join(&mut self) {
        let setting = &SETTINGS[self.random.random_range(0..SETTINGS.len())];
        let options = SequenceOptions {
            prefill: setting.prefill.parse().unwrap(),
            decode: setting.decode.parse().unwrap(),
            window: setting.is_endless.then_some(StreamWindow {
                window_tokens: 50,
                sink_tokens: 5,
            }),
            ..SequenceOptions::default()
        };
        self.members.push(Member {
            sequence: Sequence::new(&self.engine, &self.pool, options.clone()).unwrap(),
            alone: Sequence::new(&self.alone.0, &self.alone.1, options).unwrap(),
            unread: Vec::new(),
            goal: 0,
            setting,
            is_disturbed: false,
        });
        self.begin_prompt(self.members.len() - 1);
    }

    fn begin_prompt(&mut self, at: usize) {
        let tokens = self.text(150);
        let member = &mut self.members[at];
        let held = member.sequence.tokens().len();
        if !member.unread.is_empty() || held + tokens.len() > MOST_TOKENS {
            return;
        }
        match member.sequence.begin_prompt(&tokens, 0) {
            Ok(again) => {
                assert!(again.is_empty());
                assert!(member.alone.begin_prompt(&tokens, 0).unwrap().is_empty());
                (member.goal, member.unread) = (held + tokens.len(), tokens);
            }
            Err(error) => {
                *self.seen.entry(kind(&error)).or_default() += 1;
                // A sequence with a partial eviction is forgotten completely.
                assert!([0, held].contains(&member.sequence.tokens().len()), "{error}");
                let kept = member.sequence.tokens().len();
                member.cut(kept);
            }
        }
    }

    fn fork(&mut self, at: usize) {
        let member = &mut self.members[at];
        if !member.unread.is_empty() {
            return;
        }
        let fork = Member {
            sequence: member.sequence.fork().unwrap(),
            alone: member.alone.fork().unwrap(),
            unread: Vec::new(),
            goal: 0,
            setting: member.setting,
            is_disturbed: member.is_disturbed,
        };
        self.members.push(fork);
        self.begin_prompt(self.members.len() - 1);
    }

    /// The tokens that a member reads next, or none if it is full.
    fn next(&mut self, at: usize) -> Option<Move> {
        let drafts = self.text(5);
        let drafts = if self.random.random_bool(0.4) {
            &drafts[..]
        } else {
            &drafts[..1]
        };
        let kept = self.random.random_range(0..=drafts.len());
        let member = &mut self.members[at];
        if !member.unread.is_empty() {
            let count = member.sequence.batch_tokens().min(member.unread.len());
            return Some(Move {
                member: at,
                tokens: member.unread[..count].to_vec(),
                phase: Phase::Prefill,
                draft: None,
            });
        }
        let held = member.sequence.tokens().len();
        let count = if member.setting.lets_go { 1 } else { drafts.len() };
        (held > 0 && held + count <= MOST_TOKENS).then(|| Move {
            member: at,
            tokens: drafts[..count].to_vec(),
            phase: Phase::Decode,
            draft: (count > 1).then(|| (member.sequence.checkpoint().unwrap(), kept)),
        })
    }

    /// Runs a pass over some members.
    fn pass(&mut self) {
        let mut chosen: Vec<usize> = (0..self.members.len()).collect();
        chosen.shuffle(&mut self.random);
        chosen.truncate(self.random.random_range(1..=chosen.len()));
        chosen.sort_unstable();
        let moves: Vec<Move> = chosen.into_iter().filter_map(|at| self.next(at)).collect();
        if moves.is_empty() {
            return;
        }
        let held: Vec<Vec<u32>> = moves
            .iter()
            .map(|now| self.members[now.member].sequence.tokens().to_vec())
            .collect();
        let mut members = self.members.iter_mut().enumerate();
        let mut work = Vec::new();
        for now in &moves {
            let (_, member) = members.find(|(at, _)| *at == now.member).unwrap();
            work.push(Work {
                goal: member.goal_of(now),
                sequence: &mut member.sequence,
                tokens: &now.tokens,
                phase: now.phase,
                finished_rows: FinishedRows::All,
            });
        }
        let outcomes = self.runner.pass(&mut work, &mut |_| ControlFlow::Continue(())).unwrap();
        self.memory.left.store(NEVER, Ordering::Relaxed);
        let mut logits = Vec::new();
        self.runner.logits(0..self.runner.rows(), &mut logits).unwrap();
        let mut rows = logits.chunks(logits.len() / self.runner.rows());
        for ((now, outcome), held) in moves.into_iter().zip(outcomes).zip(held) {
            let found: Vec<Vec<u32>> = rows.by_ref().take(now.tokens.len()).map(bits).collect();
            let member = &mut self.members[now.member];
            match outcome {
                None => {
                    self.compared += member.follow(&now, &found, &mut self.alone.2);
                    if let Some((checkpoint, kept)) = &now.draft {
                        let again = member.sequence.roll_back(checkpoint, *kept).unwrap();
                        member.read_again(&mut self.runner, &again);
                    }
                }
                Some(failure) => {
                    *self.seen.entry(kind(&failure.error)).or_default() += 1;
                    let kept = member.sequence.tokens();
                    assert!([kept, &failure.again].concat() == held, "{:?}", failure.error);
                    member.is_disturbed |= member.setting.learns;
                    // A sequence cannot truncate to evicted tokens.
                    if member.setting.lets_go && !failure.again.is_empty() {
                        member.cut(0)
                    } else {
                        member.read_again(&mut self.runner, &failure.again)
                    }
                }
            }
        }
    }

    /// Causes a fault for one step.
    fn break_something(&mut self) -> Option<(usize, u64)> {
        match self.random.random_range(0..6) {
            0 => {
                let left = self.random.random_range(0..12);
                self.memory.left.store(left, Ordering::Relaxed);
                None
            }
            1 if !self.files.is_empty() => {
                let file = self.random.random_range(0..self.files.len());
                let length = self.files[file].metadata().unwrap().len();
                (length > 32).then(|| (file, self.random.random_range(0..length - 32)))
            }
            _ => None,
        }
    }

    fn step(&mut self) {
        let broken = self.break_something();
        let files = std::mem::take(&mut self.files);
        let damage = broken.and_then(|(file, at)| Damage::new(&files[file], at));
        let at = match self.members.len() {
            0 => 0,
            count => self.random.random_range(0..count),
        };
        let is_there = !self.members.is_empty();
        match self.random.random_range(0..12) {
            0..=2 if self.members.len() < MOST_MEMBERS => self.join(),
            3 if is_there && self.members.len() < MOST_MEMBERS => self.fork(at),
            4 if self.members.len() > 3 => drop(self.members.remove(at)),
            5 if is_there => {
                if let Err(error) = self.members[at].sequence.park() {
                    *self.seen.entry(kind(&error)).or_default() += 1;
                }
            }
            6 if is_there => self.begin_prompt(at),
            7 if is_there => {
                let tokens = self.random.random_range(0..MOST_TOKENS);
                self.members[at].cut(tokens);
            }
            _ => {}
        }
        if !self.members.is_empty() {
            self.pass();
        }
        self.memory.left.store(NEVER, Ordering::Relaxed);
        damage.iter().for_each(Damage::mend);
        self.files = files;

        let probe = self.pool.cache();
        assert!(self.pool.near_bytes() <= probe.tiers().ram_budget_bytes.unwrap());
        assert!(probe.mapped_bytes() <= probe.tiers().ram_budget_bytes.unwrap());
        let disk = probe.tiers().disk.as_ref().and_then(|disk| disk.budget_bytes);
        assert!(self.pool.file_bytes() <= disk.unwrap_or(u64::MAX));
        for member in &self.members {
            assert_eq!(member.sequence.tokens(), member.alone.tokens());
        }
    }
}

/// Runs groups of sequences of a model. Returns the failures by kind and the number of compared rows.
fn run(model: &Path, disk_tokens: Option<Range<usize>>, seeds: Range<u64>) -> (BTreeMap<&'static str, usize>, usize) {
    let (mut seen, mut compared) = (BTreeMap::new(), 0);
    for seed in seeds {
        let folder = tempfile::tempdir().unwrap();
        let format = [Format::F16, Format::Q8_0, Format::F32][seed as usize % 3];
        let mut group = Group::new(model, format, folder.path(), disk_tokens.clone(), seed);
        for _ in 0..STEPS {
            group.step();
        }
        for (kind, count) in &group.seen {
            *seen.entry(*kind).or_insert(0) += count;
        }
        compared += group.compared;
        let Group { pool, members, .. } = group;
        drop(members);
        let left = (pool.near_bytes(), pool.file_bytes(), pool.pages());
        assert_eq!(left, (0, 0, 0), "seed {seed}");
    }
    println!("{compared} rows compared, {seen:?}");
    (seen, compared)
}

fn check_met(seen: &BTreeMap<&'static str, usize>, kinds: &[&str]) {
    for kind in kinds {
        let count = seen.get(kind).copied().unwrap_or(0);
        assert!(count > 3, "{kind} was hardly met: {seen:?}");
    }
}

#[test]
fn who_fails_holds_what_it_held_and_others_have_the_bits_of_each_alone() {
    let model = fixture("vectors/group2-dim64-linear-bf16");
    let (seen, compared) = run(&model, Some(100..1000), 0..20);
    check_met(&seen, &["memory refused", "budget used up", "page damaged"]);
    assert!(compared > 1000, "{compared} rows compared, {seen:?}");
}

#[test]
fn a_hybrid_model_that_fails_gives_back_what_it_has_to_read_again() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/qwen3_5-0");
    let (seen, compared) = run(&model, Some(100..1000), 100..108);
    check_met(&seen, &["memory refused", "budget used up", "page damaged"]);
    assert!(compared > 300, "{compared} rows compared, {seen:?}");
}

/// Set in a child process with a file size limit of some KiB.
const SMALL_FILES: &str = "RIFFLE_TEST_SMALL_FILES";

#[test]
fn a_disk_that_takes_no_more_fails_those_alone_who_need_it() {
    if std::env::var_os(SMALL_FILES).is_some() {
        let model = fixture("vectors/group2-dim64-linear-bf16");
        let (seen, compared) = run(&model, None, 200..212);
        check_met(&seen, &["memory refused", "page damaged", "write failed"]);
        assert!(compared > 500, "{compared} rows compared, {seen:?}");
        return;
    }
    // A child process, because the file size limit belongs to the process and refuses real writes.
    let mut child = Command::new("bash");
    child.args([
        "-c",
        "trap '' XFSZ; ulimit -f 48; exec \"$0\" --exact --nocapture \"$1\"",
    ]);
    child.arg(std::env::current_exe().unwrap());
    child.arg("faults::a_disk_that_takes_no_more_fails_those_alone_who_need_it");
    let output = child.env(SMALL_FILES, "1").output().unwrap();
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success() && out.contains("1 passed"), "{out}{error}");
    println!("{out}");
}
