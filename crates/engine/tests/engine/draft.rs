//! Drafts change no byte of answers or of later session states.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use riffle_attention::Format;
use riffle_engine::{
    AnswerForm, DraftCount, DraftSpec, Engine, EngineError, EngineOptions, Event, GenerateOptions, Generation, Request,
    RequestId, SamplingOptions, Scheduler, SchedulerOptions, Session, StreamWindow, TokenConstraint,
};
use riffle_kv::{DiskTier, KvTiers};

use crate::testing::{fixture, go_on, hybrid_with_predictor};

/// `MODEL` is the path of the other model with the same tokens. Only the hybrid model has the prediction layer for
/// the last specifications.
const DRAFTS: [&str; 17] = [
    "auto",
    "ngram",
    "ngram@1",
    "ngram@7",
    "ngram@15",
    "sparse:streaming:sinks=4,window=32@3",
    "sparse:quest:from=0,topk=2,threshold=2,block=16,dense_layers=0@5",
    "ngram+sparse:streaming:sinks=4,window=64@4",
    "sparse:mass:budget=24,recent=16,from=0@6",
    "model:MODEL@4",
    "model:MODEL",
    "ngram+model:MODEL@9",
    "ngram+sparse:quest:from=0,topk=2,threshold=2,block=16,dense_layers=0",
    "mtp",
    "mtp@1",
    "mtp@5",
    "ngram+mtp@3",
];
/// The first of them work with every model.
const DRAFTS_OF_ALL: usize = 13;

/// Policies of prefill and decode: some select by keys alone, some learn.
const POLICIES: [(&str, &str); 13] = [
    ("full", "full"),
    ("full", "full"),
    ("full", "quest:from=0,topk=2,threshold=2,block=16,dense_layers=0"),
    ("full", "certified:from=0,epsilon=0.2"),
    ("full", "twilight:from=0,least=2,block=16,dense_layers=0"),
    ("full", "signs:from=0,peak=2,means=24"),
    ("full", "streaming:sinks=4,window=40,from=0"),
    (
        "log-stride:window=16,landmarks=1,block=24",
        "log-stride:window=16,landmarks=1,block=24",
    ),
    ("blasst:factor=4,block=16", "blasst:factor=4,block=16"),
    ("full", "h2o:from=0,budget=40,recent=8"),
    ("full", "h2o:from=0,budget=96,recent=24"),
    ("full", "snapkv:from=0,budget=40,window=8"),
    ("h2o-chunk:from=0,local=16,heavy=16", "full"),
];

/// Answers with alternating even and odd tokens and a limited length.
#[derive(Debug)]
struct Turns(usize);

struct Turn {
    parity: u32,
    left: usize,
    bits: Vec<u32>,
    can_fork: bool,
}

impl AnswerForm for Turns {
    fn begin(&self) -> Result<Box<dyn TokenConstraint>, String> {
        Ok(Box::new(Turn {
            parity: 0,
            left: self.0,
            bits: Vec::new(),
            can_fork: self.0.is_multiple_of(2),
        }))
    }
}

impl TokenConstraint for Turn {
    fn allowed(&mut self) -> Result<&[u32], String> {
        self.bits = vec![0x5555_5555 << self.parity; 4096];
        Ok(&self.bits)
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        assert_eq!(token % 2, self.parity, "what is forbidden is not drawn");
        self.parity = 1 - self.parity;
        self.left -= 1;
        Ok(self.left == 0)
    }

    fn fork(&mut self) -> Option<Box<dyn TokenConstraint>> {
        let fork = || -> Box<dyn TokenConstraint> {
            Box::new(Self {
                bits: Vec::new(),
                ..*self
            })
        };
        self.can_fork.then(fork)
    }
}

fn other_model(model: &str) -> &'static str {
    match model {
        "model" => "model-hybrid",
        _ => "model",
    }
}

fn is_hybrid(model: &str) -> bool {
    model == "model-hybrid"
}

/// The folder of a model. A model with a prediction layer is written to `folder`.
fn path_of(model: &str, folder: &Path) -> PathBuf {
    if is_hybrid(model) {
        hybrid_with_predictor(folder)
    } else {
        fixture(model)
    }
}

fn some_draft(random: &mut StdRng, model: &str) -> &'static str {
    let known = if is_hybrid(model) { DRAFTS.len() } else { DRAFTS_OF_ALL };
    DRAFTS[..known].choose(random).unwrap()
}

fn draft_of(draft: &str, model: &str) -> DraftSpec {
    let other = fixture(other_model(model));
    draft.replace("MODEL", &other.display().to_string()).parse().unwrap()
}

/// A text that repeats its own parts.
fn text(engine: &Engine, random: &mut StdRng) -> Vec<u32> {
    let verses = "In the beginning was the word. And it came to pass in those days, that he went out into the gate, and said unto them, \
                  Go ye therefore. The number of the gate is 70452. ";
    let words = engine.tokenizer().unwrap().encode(verses, true).unwrap();
    let length = random.random_range(2..300);
    let mut text = Vec::new();
    while text.len() < length {
        let start = random.random_range(0..words.len());
        let end = random.random_range(start..words.len()) + 1;
        text.extend(&words[start..end]);
    }
    text.truncate(length);
    text
}

fn wishes(random: &mut StdRng) -> GenerateOptions {
    let sampling = match random.random_range(0..4) {
        0 | 1 => SamplingOptions::default(),
        2 => SamplingOptions {
            temperature: 0.7,
            top_k: 30,
            top_p: 0.95,
            seed: random.random(),
            ..SamplingOptions::default()
        },
        _ => SamplingOptions {
            temperature: if random.random() { 0.0 } else { 0.4 },
            min_p: 0.05,
            repeat_penalty: 1.05,
            presence_penalty: 0.2,
            frequency_penalty: 0.1,
            logit_bias: vec![(random.random_range(0..500), 2.0)],
            seed: random.random(),
            ..SamplingOptions::default()
        },
    };
    let some = |random: &mut StdRng| random.random_bool(0.2);
    GenerateOptions {
        max_tokens: random.random_range(0..60),
        sampling,
        stops: if some(random) {
            vec![[" the", ", and", "e g", "4"].choose(random).unwrap().to_string()]
        } else {
            Vec::new()
        },
        stop_tokens: if some(random) {
            vec![random.random_range(0..400)]
        } else {
            Vec::new()
        },
        min_tokens: if some(random) { random.random_range(0..30) } else { 0 },
        ignores_end: random.random(),
        form: if some(random) {
            Some(Arc::new(Turns(random.random_range(1..40))))
        } else {
            None
        },
        ..GenerateOptions::default()
    }
}

fn options(random: &mut StdRng, model: &str, folder: &Path) -> EngineOptions {
    let format = *[Format::F16, Format::Q8_0, Format::Q4_0].choose(random).unwrap();
    let (prefill, decode) = *POLICIES.choose(random).unwrap();
    let page_tokens = 32;
    let mut options = EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_batch_tokens(128)
        .with_chunk_tokens(64)
        .with_page_tokens(page_tokens)
        .with_draft_model(Some(fixture(other_model(model))))
        .with_draft_predictor(is_hybrid(model))
        .with_sequences(8)
        .with_pool_tokens(Some(8 * 512))
        .with_key_format(format)
        .with_value_format(format)
        .with_prefill(prefill.parse().unwrap())
        .with_decode(decode.parse().unwrap());
    if random.random_bool(0.2) {
        options.cache.kv_tiers = KvTiers {
            disk: Some(DiskTier {
                folder: folder.to_owned(),
                budget_bytes: None,
            }),
            ..KvTiers::memory(Some(0))
        };
        let info = riffle_model::inspect(fixture(model)).unwrap();
        let least = riffle_engine::plan(&info, &options).unwrap().kv_tiers.least_near_bytes;
        options.cache.kv_tiers.ram_budget_bytes = Some(least);
    }
    options
}

/// An answer without its draft counts and times.
fn answer(generation: Generation) -> Generation {
    Generation {
        drafts: DraftCount::default(),
        ..generation
    }
}

/// An answer whose reader stops it after some pieces.
fn generate(session: &mut Session, options: &GenerateOptions, mut patience: usize) -> Result<Generation, EngineError> {
    session.generate(options, &mut |_| {
        patience = patience.saturating_sub(1);
        match patience {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    })
}

/// Everything a session holds: tokens, bits of the logits, its file, and the tokens it writes after a restore.
#[derive(PartialEq)]
struct Held {
    tokens: Vec<u32>,
    logits: Vec<u32>,
    /// Empty for policies with summaries: a refused draft leaves its block's summary to be computed again.
    file: Vec<u8>,
    rest: Vec<u32>,
    last_logits: Vec<u32>,
}

impl Held {
    fn read(session: &Session, folder: &Path) -> Self {
        let path = folder.join("session");
        session.sequence().save(&path).unwrap();
        let bits = |session: &Session| session.logits().iter().map(|logit| logit.to_bits()).collect();
        let mut restored = Session::restore(session.engine(), &path).unwrap();
        let rest = GenerateOptions {
            max_tokens: 6,
            ignores_end: true,
            ..GenerateOptions::default()
        };
        Self {
            tokens: session.tokens().to_vec(),
            logits: bits(session),
            file: match session.engine().options().sequence.decode.to_string().split(':').next() {
                Some("full" | "h2o" | "snapkv") => std::fs::read(&path).unwrap(),
                _ => Vec::new(),
            },
            rest: generate(&mut restored, &rest, usize::MAX).unwrap().tokens,
            last_logits: bits(&restored),
        }
    }
}

/// Compares answers with and without drafts in separate sessions. Returns the draft counts.
fn compare_sessions(seed: u64) -> DraftCount {
    let random = &mut StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let model = *["model", "model", "model-hybrid"].choose(random).unwrap();
    let options = options(random, model, folder.path());
    let engine = Engine::load(path_of(model, folder.path()), options).unwrap();
    let prompt = text(&engine, random);
    let mut sessions: Vec<Session> = (0..2).map(|_| Session::new(&engine).unwrap()).collect();
    let mut drafts = DraftCount::default();
    for session in &mut sessions {
        session.prefill(&prompt, &mut go_on).unwrap();
    }
    for _ in 0..random.random_range(1..3) {
        let plain = wishes(random);
        let draft = some_draft(random, model);
        let drafted = GenerateOptions {
            draft: draft_of(draft, model),
            ..plain.clone()
        };
        let patience = if random.random_bool(0.2) {
            random.random_range(1..20)
        } else {
            10_000
        };
        let expected = generate(&mut sessions[0], &plain, patience);
        let found = generate(&mut sessions[1], &drafted, patience);
        let what = format!(
            "seed {seed}: {model}, {} under {draft}",
            engine.options().sequence.decode
        );
        match (expected, found) {
            (Ok(expected), Ok(found)) => {
                drafts += found.drafts;
                assert_eq!(answer(found), answer(expected), "{what}");
            }
            (Err(expected), Err(found)) => assert_eq!(found.to_string(), expected.to_string(), "{what}"),
            (expected, found) => panic!("{what}: {expected:?}, {found:?}"),
        }
        let [expected, found] = [0, 1].map(|session| Held::read(&sessions[session], folder.path()));
        assert!(found == expected, "{what}: sessions differ");
        assert_eq!(
            sessions[1].sequence().counts().pairs,
            sessions[0].sequence().counts().pairs,
            "{what}"
        );
    }
    drafts
}

/// Answers of requests in one scheduler.
#[derive(Default)]
struct Answered {
    ended: BTreeMap<RequestId, Generation>,
    /// Tokens received per request, including requests that were cancelled later.
    written: BTreeMap<RequestId, Vec<u32>>,
}

/// Answers all requests of a scheduler. Some clients cancel, and some requests are parked for others.
fn answer_all(scheduler: &mut Scheduler, ids: &[RequestId], random: &mut StdRng) -> Answered {
    let mut told = Answered::default();
    let mut goes_on = true;
    while goes_on {
        let step = scheduler.step(&mut |event| match event {
            Event::Token(id, token) => told.written.entry(id).or_default().push(token.token),
            Event::Finished(id, report, _) => drop(told.ended.insert(id, report.generation)),
            Event::Failed(id, error) => panic!("{id:?}: {error}"),
            _ => {}
        });
        goes_on = step.unwrap();
        if random.random_bool(0.03) {
            let id = *ids.choose(random).unwrap();
            match random.random() {
                true => drop(scheduler.cancel(id)),
                false if scheduler.park(id).unwrap() => assert!(scheduler.resume(id)),
                false => {}
            }
            goes_on = true;
        }
    }
    told
}

/// Compares answers of concurrent requests, with and without drafts, with separate sessions.
fn compare_requests(seed: u64) -> DraftCount {
    let random = &mut StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let model = *["model", "model", "model-hybrid"].choose(random).unwrap();
    let engine = Engine::load(path_of(model, folder.path()), options(random, model, folder.path())).unwrap();
    let scheduling = SchedulerOptions {
        most_running: 4,
        ..SchedulerOptions::for_engine(engine.options())
    };
    let mut scheduler = Scheduler::new(&engine, scheduling).unwrap();
    let mut asked = BTreeMap::new();
    for _ in 0..5 {
        let request = Request {
            tokens: text(&engine, random),
            generate: GenerateOptions {
                draft: if random.random_bool(0.8) {
                    draft_of(some_draft(random, model), model)
                } else {
                    DraftSpec::NONE
                },
                ..wishes(random)
            },
            ..Request::default()
        };
        asked.insert(scheduler.submit(request.clone()).unwrap(), request);
    }
    let ids: Vec<RequestId> = asked.keys().copied().collect();
    let mut told = answer_all(&mut scheduler, &ids, random);
    let mut drafts = DraftCount::default();
    for (id, request) in asked {
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&request.tokens, &mut go_on).unwrap();
        let plain = GenerateOptions {
            draft: DraftSpec::NONE,
            ..request.generate.clone()
        };
        let expected = generate(&mut session, &plain, 10_000).unwrap();
        let what = format!(
            "seed {seed}: {model}, {} under {}",
            engine.options().sequence.decode,
            request.generate.draft
        );
        let written = told.written.remove(&id).unwrap_or_default();
        match told.ended.remove(&id) {
            Some(found) => {
                drafts += found.drafts;
                assert_eq!(written, expected.tokens, "{what}");
                assert_eq!(answer(found), answer(expected), "{what}");
            }
            None => assert!(expected.tokens.starts_with(&written), "{what}"),
        }
    }
    drafts
}

/// Runs trials, and checks that they drafted and both agreed and disagreed.
fn try_all(seeds: std::ops::Range<u64>, compare: fn(u64) -> DraftCount) {
    let mut all = DraftCount::default();
    for seed in seeds {
        all += compare(seed);
    }
    println!("{all:?}");
    assert!(all.accepted > 100 && all.drafted - all.accepted > 100, "{all:?}");
}

#[test]
fn drafts_change_no_byte_of_answers_and_of_what_sessions_hold() {
    try_all(0..120, compare_sessions);
}

#[test]
fn drafts_of_some_requests_change_no_byte_of_any_answer() {
    try_all(0..40, compare_requests);
}

#[test]
#[ignore = "the two tests above, at length: some minutes"]
fn drafts_change_no_byte_in_two_thousand_runs() {
    try_all(1000..2500, compare_sessions);
    try_all(1000..1500, compare_requests);
}

#[test]
fn drafts_that_cannot_be_made_are_refused_by_name_and_left_out_by_auto() {
    let plain = EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_batch_tokens(64)
        .with_chunk_tokens(64)
        .with_page_tokens(32);
    let window = StreamWindow {
        window_tokens: 64,
        sink_tokens: 4,
    };
    for (options, said) in [
        (plain.clone().with_window(window).unwrap(), "endless window"),
        (plain.clone().with_audit(true), "audit"),
    ] {
        let engine = Engine::load(fixture("model"), options).unwrap();
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&[5, 6, 7, 5, 6, 7, 5, 6], &mut go_on).unwrap();
        let ask = |draft: &str| GenerateOptions {
            max_tokens: 8,
            draft: draft.parse().unwrap(),
            ..GenerateOptions::default()
        };
        let error = generate(&mut session, &ask("ngram"), 100).unwrap_err().to_string();
        assert!(error.contains("`draft`") && error.contains(said), "{error}");
        let generation = generate(&mut session, &ask("auto"), 100).unwrap();
        assert_eq!(generation.drafts, DraftCount::default());
        assert_eq!(generation.tokens.len(), 8);
    }
}
