//! Sequences in one batch have the bits of each alone.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::testing::{bits, fixture, go_on, prompt};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use riffle_attention::Format;
use riffle_cuda::Gpu;
use riffle_engine::{Checkpoint, Engine, EngineOptions, FinishedRows, Runner, Sequence, Session, StreamWindow, Work};
use riffle_kv::{DiskTier, PagePool};
use riffle_policy::Phase;

/// Settings of sequences: policies of prefill and decode, and true for an endless window.
const SETTINGS: [(&str, &str, bool); 10] = [
    ("full", "full", false),
    ("full", "full", true),
    ("full", "quest:from=0,topk=2,threshold=2,block=16,dense_layers=0", false),
    (
        "tri-shape:sinks=8,window=40,tail=16",
        "certified:from=0,epsilon=0.2",
        false,
    ),
    (
        "log-stride:window=16,landmarks=1,block=24",
        "log-stride:window=16,landmarks=1,block=24",
        false,
    ),
    (
        "xattention:from=0,block=16,stride=4,tail=16",
        "h2o:budget=60,recent=16,observed=8",
        false,
    ),
    ("h2o-chunk:from=0,local=4,heavy=8", "snapkv:budget=60,window=8", false),
    (
        "vertical-slash:from=0,budget=0.3,sinks=4,recent=16,last=16",
        "twilight:from=0,least=2,block=16,dense_layers=0",
        false,
    ),
    ("blasst:factor=4,block=16", "blasst:factor=4,block=16", false),
    ("signs:from=0,peak=0.3,tail=16", "signs:from=0,peak=2,means=24", false),
];

const CHUNK_TOKENS: usize = 24;
const BATCH_TOKENS: usize = 64;

type Bits = Vec<u32>;

/// A sequence of the joined engine.
struct Member {
    setting: usize,
    sequence: Sequence,
    /// Start and end of each prompt, in tokens.
    prompts: Vec<(usize, usize)>,
    /// Unread tokens of the prompt.
    unread: Vec<u32>,
    /// Logits by number of tokens.
    logits: BTreeMap<usize, Bits>,
}

/// The tokens of a member in a pass.
struct Move {
    member: usize,
    tokens: Vec<u32>,
    phase: Phase,
    /// Number of accepted tokens, if these are drafts.
    kept: Option<usize>,
}

fn options(format: Format, setting: usize) -> EngineOptions {
    let (prefill, decode, windowed) = SETTINGS[setting];
    let options = EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_sequences(8)
        .with_pool_tokens(Some(8 * 512))
        .with_batch_tokens(BATCH_TOKENS)
        .with_chunk_tokens(CHUNK_TOKENS)
        .with_page_tokens(32)
        .with_key_format(format)
        .with_value_format(format)
        .with_prefill(prefill.parse().unwrap())
        .with_decode(decode.parse().unwrap());
    let window = StreamWindow {
        window_tokens: 50,
        sink_tokens: 5,
    };
    if windowed {
        options.with_window(window).unwrap()
    } else {
        options
    }
}

/// Devices need pages of whole steps of 64 tokens.
fn page_tokens(device: &Option<Gpu>) -> usize {
    if device.is_some() { 64 } else { 32 }
}

/// A group of sequences on one engine.
struct Group {
    engine: Arc<Engine>,
    format: Format,
    pool: PagePool,
    runner: Runner,
    device: Option<Gpu>,
    members: Vec<Member>,
    random: StdRng,
}

impl Group {
    fn join(&mut self) {
        let setting = self.random.random_range(0..SETTINGS.len());
        let sequence_options = options(self.format, setting).sequence;
        let sequence = Sequence::new(&self.engine, &self.pool, sequence_options).unwrap();
        let mut member = Member {
            setting,
            sequence,
            prompts: Vec::new(),
            unread: Vec::new(),
            logits: BTreeMap::new(),
        };
        // Crosses boundaries of pages and batches.
        let most = if self.device.is_some() { 100 } else { 180 };
        let length = self.random.random_range(1..most);
        member.begin_prompt(self.text(length));
        self.members.push(member);
    }

    fn text(&mut self, length: usize) -> Vec<u32> {
        let skipped = self.random.random_range(0..40);
        let tokens = prompt(skipped + length);
        tokens[skipped..].iter().map(|token| token % 31).collect()
    }

    /// Forks a new member from an existing one.
    fn fork(&mut self, at: usize) {
        let member = &mut self.members[at];
        let mut fork = Member {
            setting: member.setting,
            sequence: member.sequence.fork().unwrap(),
            prompts: member.prompts.clone(),
            unread: Vec::new(),
            logits: BTreeMap::new(),
        };
        let length = self.random.random_range(1..70);
        fork.begin_prompt(self.text(length));
        self.members.push(fork);
    }

    /// The next tokens of a member.
    fn next(&mut self, at: usize) -> Move {
        let follow = {
            let (prefill, decode, windowed) = SETTINGS[self.members[at].setting];
            let learns = [prefill, decode]
                .iter()
                .any(|rules| rules.contains("h2o") || rules.contains("snapkv"));
            !learns && !windowed
        };
        let drafts = self.random.random_range(1..=6);
        let text = self.text(drafts);
        let member = &mut self.members[at];
        if !member.unread.is_empty() {
            let count = member.sequence.batch_tokens().min(member.unread.len());
            return Move {
                member: at,
                tokens: member.unread.drain(..count).collect(),
                phase: Phase::Prefill,
                kept: None,
            };
        }
        let verifies = follow && self.device.is_none() && self.random.random_bool(0.4);
        let tokens = if verifies { text } else { text[..1].to_vec() };
        Move {
            member: at,
            kept: verifies.then(|| self.random.random_range(0..=tokens.len())),
            tokens,
            phase: Phase::Decode,
        }
    }

    /// Runs a pass over some members.
    fn pass(&mut self) {
        let mut chosen: Vec<usize> = (0..self.members.len()).collect();
        chosen.shuffle(&mut self.random);
        chosen.truncate(self.random.random_range(1..=chosen.len()));
        chosen.sort_unstable();
        if self.device.is_some() {
            // A device rounds products of many rows differently, so prompts and generated rows run in separate
            // passes.
            let reads = |at: usize| !self.members[at].unread.is_empty();
            let first = reads(chosen[0]);
            chosen.retain(|at| reads(*at) == first);
        }
        let moves: Vec<Move> = chosen.into_iter().map(|at| self.next(at)).collect();
        let mut checkpoints = Vec::new();
        let mut work = Vec::new();
        let mut members = self.members.iter_mut().enumerate();
        for now in &moves {
            let (_, member) = members.find(|(at, _)| *at == now.member).unwrap();
            checkpoints.push(now.kept.map(|_| member.sequence.checkpoint().unwrap()));
            work.push(Work {
                goal: member.goal(now),
                sequence: &mut member.sequence,
                tokens: &now.tokens,
                phase: now.phase,
                finished_rows: FinishedRows::Last,
            });
        }
        let outcomes = self.runner.pass(&mut work, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(outcomes.iter().all(Option::is_none), "{outcomes:?}");
        let mut logits = Vec::new();
        self.runner.logits(0..self.runner.rows(), &mut logits).unwrap();
        let mut rows = logits.chunks_exact(logits.len() / self.runner.rows());
        for (now, checkpoint) in moves.iter().zip(checkpoints) {
            let member = &mut self.members[now.member];
            let end = member.sequence.tokens().len();
            let start = end - now.tokens.len();
            for (token, row) in rows.by_ref().take(now.tokens.len()).enumerate() {
                let is_kept = now.kept.is_none_or(|kept| token < kept);
                let is_seen = now.phase == Phase::Decode || (member.unread.is_empty() && token + 1 == now.tokens.len());
                if is_kept && is_seen {
                    member.logits.insert(start + token + 1, bits(row));
                }
            }
            if let (Some(checkpoint), Some(kept)) = (checkpoint, now.kept) {
                self.keep_of_draft(now.member, &checkpoint, kept);
            }
        }
    }

    /// Rolls a draft back to its first `kept` tokens. With recurrent layers these are read again.
    fn keep_of_draft(&mut self, member: usize, checkpoint: &Checkpoint, kept: usize) {
        let sequence = &mut self.members[member].sequence;
        let again = sequence.roll_back(checkpoint, kept).unwrap();
        if !again.is_empty() {
            let work = Work {
                goal: checkpoint.tokens() + kept,
                sequence,
                tokens: &again,
                phase: Phase::Decode,
                finished_rows: FinishedRows::All,
            };
            let outcomes = self.runner.pass(&mut [work], &mut |_| ControlFlow::Continue(()));
            assert!(outcomes.unwrap()[0].is_none());
        }
        let held = self.members[member].sequence.tokens().len();
        assert_eq!(held, checkpoint.tokens() + kept);
    }

    fn run(&mut self, passes: usize) {
        for _ in 0..passes {
            match self.random.random_range(0..10) {
                0..=2 if self.members.len() < 8 => self.join(),
                3 if self.members.len() < 8 => {
                    let ready: Vec<usize> = (0..self.members.len())
                        .filter(|at| self.members[*at].unread.is_empty())
                        .collect();
                    if let Some(at) = ready.choose(&mut self.random) {
                        self.fork(*at);
                    }
                }
                4 if self.members.len() > 6 => {
                    let at = self.random.random_range(0..self.members.len());
                    let member = self.members.remove(at);
                    self.check(&member);
                }
                5 if !self.members.is_empty() => {
                    let at = self.random.random_range(0..self.members.len());
                    self.members[at].sequence.park().unwrap();
                }
                6 if !self.members.is_empty() => {
                    let at = self.random.random_range(0..self.members.len());
                    let length = self.random.random_range(1..100);
                    let text = self.text(length);
                    if self.members[at].unread.is_empty() {
                        self.members[at].begin_prompt(text);
                    }
                }
                _ => {}
            }
            if !self.members.is_empty() {
                self.pass();
            }
        }
        for member in std::mem::take(&mut self.members) {
            self.check(&member);
        }
    }

    /// Reads the same tokens in a separate session, and compares.
    fn check(&self, member: &Member) {
        let options = options(self.format, member.setting)
            .with_device(self.device.clone().map(|gpu| Arc::new(gpu) as _))
            .with_page_tokens(page_tokens(&self.device));
        let alone = Engine::load(self.engine.path(), options).unwrap();
        let mut session = Session::new(&alone).unwrap();
        let tokens = member.sequence.tokens();
        let mut prompts = member.prompts.iter();
        let mut compared = 0;
        let mut next = prompts.next();
        while session.tokens().len() < tokens.len() {
            let at = session.tokens().len();
            match next {
                Some((start, end)) if *start == at => {
                    let end = (*end).min(tokens.len());
                    session.prefill(&tokens[at..end], &mut go_on).unwrap();
                    next = prompts.next();
                }
                _ => session.advance(tokens[at]).unwrap(),
            }
            if let Some(logits) = member.logits.get(&session.tokens().len()) {
                assert_eq!(
                    &bits(session.logits()),
                    logits,
                    "{:?} {:?}: after {} of {} tokens, prompts {:?}",
                    self.format,
                    SETTINGS[member.setting],
                    session.tokens().len(),
                    tokens.len(),
                    member.prompts,
                );
                compared += 1;
            }
        }
        assert!(compared > 0 || !member.unread.is_empty() || member.logits.is_empty());
    }
}

impl Member {
    fn begin_prompt(&mut self, tokens: Vec<u32>) {
        let start = self.sequence.tokens().len();
        assert!(self.sequence.begin_prompt(&tokens, 0).unwrap().is_empty());
        self.prompts.push((start, start + tokens.len()));
        self.unread = tokens;
    }

    fn goal(&self, now: &Move) -> usize {
        match now.phase {
            Phase::Prefill => self.prompts.last().unwrap().1,
            Phase::Decode => self.sequence.tokens().len() + now.tokens.len(),
        }
    }
}

fn check(model: PathBuf, formats: &[Format], folder: Option<&Path>, seeds: std::ops::Range<u64>) {
    check_on(None, model, formats, folder, seeds);
}

fn check_on(
    device: Option<Gpu>,
    model: PathBuf,
    formats: &[Format],
    folder: Option<&Path>,
    seeds: std::ops::Range<u64>,
) {
    for format in formats {
        for seed in seeds.clone() {
            let mut options = options(*format, 0);
            options.machine.device = device.clone().map(|gpu| Arc::new(gpu) as _);
            options.cache.page_tokens = page_tokens(&device);
            if let Some(folder) = folder {
                options.cache.kv_tiers.disk = Some(DiskTier {
                    folder: folder.to_owned(),
                    budget_bytes: None,
                });
                // Every policy of these settings needs its scanned keys near.
                options.sequence.prefill = "vertical-slash:from=0,budget=0.3,sinks=4,recent=16,last=16"
                    .parse()
                    .unwrap();
                options.cache.kv_tiers.ram_budget_bytes = Some(u64::MAX >> 20);
                let info = riffle_model::inspect(&model).unwrap();
                let plan = riffle_engine::plan(&info, &options).unwrap();
                options.cache.kv_tiers.ram_budget_bytes = Some(2 * plan.kv_tiers.least_near_bytes);
            }
            let engine = Engine::load(&model, options).unwrap();
            let mut group = Group {
                pool: engine.page_pool().unwrap(),
                runner: Runner::new(&engine),
                members: Vec::new(),
                random: StdRng::seed_from_u64(seed),
                device: device.clone(),
                format: *format,
                engine,
            };
            group.run(if device.is_some() { 12 } else { 40 });
        }
    }
}

const FORMATS: [Format; 5] = [Format::F32, Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0];

#[test]
fn sequences_joined_and_parted_at_random_have_the_bits_of_each_alone() {
    check(fixture("vectors/group2-dim64-linear-bf16"), &FORMATS, None, 0..3);
}

#[test]
fn sequences_of_a_disk_tier_have_the_bits_of_each_alone_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let formats = [Format::F16, Format::Q4_0];
    check(
        fixture("vectors/group2-dim64-linear-bf16"),
        &formats,
        Some(folder.path()),
        10..12,
    );
}

#[test]
fn sequences_of_a_hybrid_model_have_the_bits_of_each_alone() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/qwen3_5-0");
    check(model, &[Format::F16, Format::Q8_0], None, 20..23);
}

#[test]
#[cfg_attr(not(unix), ignore = "an emulated device compiles its kernels with g++")]
fn sequences_on_a_device_have_the_bits_of_each_alone() {
    let model = fixture(crate::testing::device::MODEL);
    check_on(
        Some(crate::testing::device::any_device()),
        model,
        &[Format::F16],
        None,
        30..31,
    );
}
