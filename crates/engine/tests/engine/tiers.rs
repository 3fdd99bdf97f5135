//! A session with pages in farther tiers has the bits of a session in memory.

use std::path::Path;
use std::sync::Arc;

use crate::testing::{fixture, go_on, prompt};
use riffle_attention::Format;
use riffle_engine::{Engine, EngineError, EngineOptions, Session};
use riffle_kv::{CpuDevice, DiskTier, KvError, KvTiers};
use riffle_policy::Phase;
use riffle_testing::Counted;
use riffle_testing::Unhurried;

/// Policies of prefill and decode, with parameters that skip tokens of a short text.
const POLICIES: [(&str, &str); 12] = [
    ("full", "full"),
    ("streaming:sinks=4,window=40", "streaming:sinks=4,window=40"),
    (
        "tri-shape:sinks=8,window=40,tail=16,delta=16",
        "certified:from=0,epsilon=0.2",
    ),
    (
        "log-stride:window=16,landmarks=1,block=24",
        "log-stride:window=16,landmarks=1,block=24",
    ),
    (
        "vertical-slash:from=0,budget=0.3,sinks=4,recent=16,last=16",
        "quest:from=0,topk=2,threshold=2,block=16,dense_layers=0",
    ),
    (
        "flex:from=0,min_budget=32,block=16",
        "twilight:from=0,least=2,block=16,dense_layers=0",
    ),
    (
        "xattention:from=0,block=16,stride=4,tail=16",
        "h2o:budget=60,recent=16,observed=8",
    ),
    ("h2o-chunk:from=0,local=4,heavy=8,delta=20", "snapkv:budget=60,window=8"),
    ("blasst:factor=4,block=16", "blasst:factor=4,block=16"),
    (
        "peaks:from=0,block=16,peak=0.2,tail=16",
        "quest:from=0,topk=3,threshold=2,block=64,dense_layers=1",
    ),
    ("signs:from=0,peak=0.3,tail=16", "signs:from=0,peak=1,block=1"),
    ("full", "signs:from=0,peak=2,block=32,means=48,dense_layers=1"),
];

fn options(policies: (&str, &str), key_format: Format, value_format: Format, page_tokens: usize) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(400))
        .with_batch_tokens(64)
        .with_chunk_tokens(24)
        .with_page_tokens(page_tokens)
        .with_key_format(key_format)
        .with_value_format(value_format)
        .with_prefill(policies.0.parse().unwrap())
        .with_decode(policies.1.parse().unwrap())
}

/// Options with the least memory of a plan plus `spare` bytes, and the other pages on disk.
pub(crate) fn far(options: &EngineOptions, model: &Path, folder: &Path, slots: usize, spare: u64) -> EngineOptions {
    let mut options = options.clone();
    options.cache.kv_tiers = KvTiers {
        disk: Some(DiskTier {
            folder: folder.to_owned(),
            budget_bytes: None,
        }),
        slots,
        ..options.cache.kv_tiers
    };
    let info = riffle_model::inspect(model).unwrap();
    // The number of near pages depends on near keys, and these depend on the free memory.
    options.cache.kv_tiers.ram_budget_bytes = Some(0);
    let plan = riffle_engine::plan(&info, &options).unwrap();
    options.cache.kv_tiers.ram_budget_bytes = Some(plan.kv_tiers.least_near_bytes + spare);
    options
}

/// Bits of all logits after a prompt in two parts and after each further token, and the bytes on disk after the
/// prompt.
fn run(engine: &Arc<Engine>, length: usize) -> (Vec<Vec<u32>>, u64) {
    let bits = |session: &Session| {
        session
            .logits()
            .iter()
            .map(|logit| logit.to_bits())
            .collect::<Vec<u32>>()
    };
    let mut session = Session::new(engine).unwrap();
    let tokens = prompt(length);
    let mut found = Vec::new();
    // Policies that evict tokens have no far pages at the end.
    let mut on_disk = 0;
    for part in [&tokens[..length / 3], &tokens[length / 3..]] {
        session.prefill(part, &mut go_on).unwrap();
        found.push(bits(&session));
        on_disk = session.sequence().usage().bytes_by_tier.disk;
    }
    for token in 0..20 {
        session.advance(token).unwrap();
        found.push(bits(&session));
    }
    (found, on_disk)
}

#[test]
fn every_policy_format_page_size_and_number_of_slots_gives_the_bits_of_a_resident_run() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("vectors/group2-dim64-linear-bf16");
    let formats = [
        (Format::F32, Format::F32),
        (Format::F16, Format::F16),
        (Format::Bf16, Format::Q8_0),
        (Format::Q8_0, Format::Q4_0),
        (Format::Q4_0, Format::Bf16),
    ];
    for (number, policies) in POLICIES.into_iter().enumerate() {
        for (round, (key_format, value_format)) in formats.into_iter().enumerate() {
            let page_tokens = [16, 48, 32][(number + round) % 3];
            // Lengths around a page boundary.
            let length = 5 * 48 - 1 + (number + round) % 3;
            let options = options(policies, key_format, value_format, page_tokens);
            let (expected, _) = run(&Engine::load(&model, options.clone()).unwrap(), length);
            for slots in [1, 2 + (number + round) % 4] {
                let options = far(&options, &model, folder.path(), slots, (round as u64 % 2) * 30_000);
                let (found, on_disk) = run(&Engine::load(&model, options).unwrap(), length);
                assert!(on_disk > 0, "{policies:?} {slots}");
                let first = found.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(
                    first, None,
                    "{policies:?} {key_format:?} {value_format:?} {page_tokens} {slots}"
                );
            }
        }
    }
}

#[test]
fn every_policy_there_is_has_been_compared() {
    for info in riffle_policy::catalogue() {
        let used = |phase: Phase, supported: bool, spec: &dyn Fn(&(&'static str, &'static str)) -> &'static str| {
            let named = |pair| spec(pair).split(':').next() == Some(info.name);
            assert!(!supported || POLICIES.iter().any(named), "{} {phase}", info.name);
        };
        used(Phase::Prefill, info.supports(Phase::Prefill), &|pair| pair.0);
        used(Phase::Decode, info.supports(Phase::Decode), &|pair| pair.1);
    }
}

#[test]
fn the_timing_of_the_loads_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("vectors/group2-dim64-linear-bf16");
    for policies in [POLICIES[0], POLICIES[4], POLICIES[7]] {
        let options = options(policies, Format::F16, Format::F16, 16);
        let (expected, _) = run(&Engine::load(&model, options.clone()).unwrap(), 200);
        for (slots, loaders) in [(1, 1), (3, 2), (8, 3)] {
            let mut options = far(&options, &model, folder.path(), slots, 0);
            options.cache.kv_tiers.device = Arc::new(Unhurried::new(slots as u64));
            options.cache.kv_tiers.loaders = loaders;
            let (found, on_disk) = run(&Engine::load(&model, options).unwrap(), 200);
            assert!(on_disk > 0);
            assert!(found == expected, "{policies:?} {slots}");
        }
    }
}

#[test]
fn a_sparse_prefill_moves_fewer_bytes_than_a_dense_one() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("model");
    let text = std::fs::read_to_string(fixture("text/zechariah.txt")).unwrap();
    // With and without memory for all keys of a head.
    for (near, spare) in [("keys", 600_000), ("nothing", 0)] {
        let moved = |policy: &'static str| {
            let options = options((policy, "full"), Format::F16, Format::F16, 64)
                .with_context_tokens(Some(4200))
                .with_batch_tokens(512)
                .with_chunk_tokens(256)
                .with_page_tokens(64);
            let mut options = far(&options, &model, folder.path(), 16, spare);
            let device = Counted::over(CpuDevice::new());
            options.cache.kv_tiers.device = device.clone();
            let engine = Engine::load(&model, options).unwrap();
            let tokens = engine.tokenizer().unwrap().encode(&text, true).unwrap();
            let mut session = Session::new(&engine).unwrap();
            session.prefill(&tokens[..4096], &mut go_on).unwrap();
            assert!(session.sequence().usage().bytes_by_tier.disk > 0);
            device.bytes()
        };
        let dense = moved("full");
        for policy in ["xattention:from=0,block=64", "streaming:sinks=64,window=256"] {
            let sparse = moved(policy);
            println!("{near} near, {policy}: {sparse} of {dense}");
            assert!(sparse < dense, "{near} near, {policy}: {sparse} of {dense}");
        }
    }
}

#[test]
fn a_device_apart_from_main_memory_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("vectors/group2-dim64-linear-bf16");
    let options = options(POLICIES[0], Format::Q8_0, Format::F16, 32);
    let (expected, _) = run(&Engine::load(&model, options.clone()).unwrap(), 230);
    let mut options = far(&options, &model, folder.path(), 3, 0);
    options.cache.kv_tiers.device_budget_bytes = options.cache.kv_tiers.ram_budget_bytes.unwrap();
    options.cache.kv_tiers.ram_budget_bytes = Some(40_000);
    options.cache.kv_tiers.device = Arc::new(CpuDevice::apart());
    let (found, on_disk) = run(&Engine::load(&model, options).unwrap(), 230);
    assert!(on_disk > 0 && found == expected);
}

#[test]
fn a_long_context_read_in_parts_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("model");
    let options = EngineOptions::default()
        .with_context_tokens(Some(9_000))
        .with_prefill("streaming:sinks=16,window=64".parse().unwrap());
    let run = |options: EngineOptions| {
        let engine = Engine::load(&model, options).unwrap();
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&prompt(8_900), &mut go_on).unwrap();
        for token in 0..4 {
            session.advance(token).unwrap();
        }
        let bits: Vec<u32> = session.logits().iter().map(|logit| logit.to_bits()).collect();
        (bits, session.sequence().usage().bytes_by_tier)
    };
    let (expected, _) = run(options.clone());
    let (found, bytes) = run(far(&options, &model, folder.path(), 8, 0));
    assert!(bytes.disk > bytes.ram, "{bytes:?}");
    assert!(found == expected);
}

#[test]
fn a_disk_that_is_too_small_or_missing_is_refused_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("vectors/group2-dim64-linear-bf16");
    let options = options(POLICIES[0], Format::F16, Format::F16, 16);
    let tight = far(&options, &model, folder.path(), 2, 0);
    let info = riffle_model::inspect(&model).unwrap();
    let needed = riffle_engine::plan(&info, &tight).unwrap().kv_tiers.disk_bytes;

    let mut refused = tight.clone();
    refused.cache.kv_tiers.disk.as_mut().unwrap().budget_bytes = Some(needed - 1);
    let message = Engine::load(&model, refused).err().unwrap().to_string();
    assert!(
        message.contains("`disk.budget_bytes") && message.contains("`context_tokens="),
        "{message}"
    );

    let mut missing = tight.clone();
    missing.cache.kv_tiers.disk.as_mut().unwrap().folder = folder.path().join("missing");
    let message = Engine::load(&model, missing).err().unwrap().to_string();
    assert!(
        message.contains("`disk.folder`") && message.contains("no such folder"),
        "{message}"
    );

    // A session notices that its folder has vanished.
    let engine = Engine::load(&model, tight).unwrap();
    drop(folder);
    let error = Session::new(&engine).err().unwrap();
    assert!(matches!(error, EngineError::Kv(KvError::Disk { .. })), "{error}");
}

#[test]
fn a_plan_that_does_not_fit_names_flags_that_make_it_fit() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("model");
    let info = riffle_model::inspect(&model).unwrap();
    let mut options = EngineOptions::default().with_context_tokens(Some(100_000));
    options.cache.kv_tiers.ram_budget_bytes = Some(1 << 20);
    let message = Engine::load(&model, options.clone()).err().unwrap().to_string();
    for part in [
        "100000 tokens",
        "`ram_budget_bytes=245M`",
        "`disk.folder=DIR`",
        "`context_tokens=",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    options.cache.kv_tiers.disk = Some(DiskTier {
        folder: folder.path().to_owned(),
        budget_bytes: None,
    });
    let message = Engine::load(&model, options.clone()).err().unwrap().to_string();
    let typed = message.split("`ram_budget_bytes=").nth(1).unwrap();
    let typed = typed.split('`').next().unwrap();
    options.cache.kv_tiers.ram_budget_bytes = Some(riffle_engine::parse_bytes("ram_budget_bytes", typed).unwrap());
    let plan = riffle_engine::plan(&info, &options).unwrap();
    assert!(plan.fits(), "{message}");
    assert!(plan.kv_tiers.disk_bytes > plan.kv_tiers.ram_bytes);
    assert!(plan.kv_tiers.ram_bytes <= options.cache.kv_tiers.ram_budget_bytes.unwrap());

    // Without a RAM budget the plan uses the available memory, and the disk takes the rest.
    options.cache.kv_tiers.ram_budget_bytes = None;
    let beside = plan.weights_bytes + plan.scratch_bytes + plan.process.total_bytes();
    options.machine.memory_budget_bytes = Some(beside + (20 << 20));
    let plan = riffle_engine::plan(&info, &options).unwrap();
    assert!(plan.fits() && plan.kv_tiers.disk_bytes > 70 << 20, "{plan:?}");
    assert!(plan.total_bytes <= plan.available_bytes);
}

#[test]
fn audits_and_policies_chosen_by_them_are_the_same_wherever_pages_lie() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("vectors/group2-dim64-linear-bf16");
    for auto_target in [None, Some(0.9)] {
        let mut options = options(POLICIES[1], Format::F16, Format::F16, 16);
        options.sequence.audit = true;
        options.sequence.auto_target = auto_target;
        let run = |options: EngineOptions| {
            let engine = Engine::load(&model, options).unwrap();
            let mut session = Session::new(&engine).unwrap();
            let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
            let log = Arc::clone(&seen);
            session
                .sequence_mut()
                .observers()
                .audit(move |query| {
                    let mass: Vec<u32> = query.mass.iter().map(|mass| mass.to_bits()).collect();
                    log.lock()
                        .unwrap()
                        .push((query.head, query.position, mass, query.read.to_vec()));
                })
                .unwrap();
            session.prefill(&prompt(210), &mut go_on).unwrap();
            session.advance(3).unwrap();
            let bits: Vec<u32> = session.logits().iter().map(|logit| logit.to_bits()).collect();
            let seen = std::mem::take(&mut *seen.lock().unwrap());
            (
                bits,
                session.sequence().audit(),
                seen,
                session.sequence().usage().bytes_by_tier.disk,
            )
        };
        let expected = run(options.clone());
        let found = run(far(&options, &model, folder.path(), 3, 0));
        assert!(found.3 > 0 && !found.2.is_empty());
        assert_eq!(found.1, expected.1);
        assert!((found.0, found.2) == (expected.0, expected.2), "{auto_target:?}");
    }
}
