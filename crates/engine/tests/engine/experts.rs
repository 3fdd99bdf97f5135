//! Mixtures of experts: their sessions hold, move and free the same state as those of other models.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{
    DraftSpec, Engine, EngineError, EngineOptions, Event, GenerateOptions, MemoryPlan, Request, Scheduler,
    SchedulerOptions, Session,
};
use riffle_kv::{DiskTier, KvTiers};
use riffle_model::{ExpertClass, ModelError, ModelInfo, least_expert_cache_bytes};
use riffle_testing::{write_hybrid_mixture, write_mixture};

use crate::testing::{bits, go_on, prompt};

/// A plain one, one with recurrent layers, and one with windows and sinks.
const MODELS: [&str; 3] = ["mixtral", "qwen3_5_moe_text", "gpt_oss"];

fn path(model: &str) -> PathBuf {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/experts");
    vectors.join(model)
}

fn options() -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_batch_tokens(128)
        .with_chunk_tokens(64)
        .with_page_tokens(16)
        .with_key_format(Format::F16)
        .with_value_format(Format::F16)
}

/// Tokens within every model's vocabulary.
fn text(length: usize) -> Vec<u32> {
    prompt(length).into_iter().map(|token| token % 31).collect()
}

fn engine(model: &str, options: EngineOptions) -> Arc<Engine> {
    Engine::load(path(model), options).unwrap()
}

/// Bits of the logits after a prompt and after each of some more tokens.
fn read(session: &mut Session, tokens: &[u32], written: u32) -> Vec<Vec<u32>> {
    let mut found = Vec::new();
    if !tokens.is_empty() {
        session.prefill(tokens, &mut go_on).unwrap();
        found.push(bits(session.logits()));
    }
    for token in 0..written {
        session.advance(token).unwrap();
        found.push(bits(session.logits()));
    }
    found
}

#[test]
fn answers_are_the_same_to_the_bit_with_pages_on_disk_in_other_batches_and_after_a_restart() {
    for model in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let resident = engine(model, options());
        let tokens = text(300);
        let mut session = Session::new(&resident).unwrap();
        let expected = read(&mut session, &tokens, 12);
        let mut tiers = KvTiers {
            disk: Some(DiskTier {
                folder: folder.path().to_owned(),
                budget_bytes: None,
            }),
            ..KvTiers::memory(Some(0))
        };
        let info = riffle_model::inspect(path(model)).unwrap();
        let least = riffle_engine::plan(&info, &options().with_kv_tiers(tiers.clone())).unwrap();
        tiers.ram_budget_bytes = Some(least.kv_tiers.least_near_bytes);
        for other in [options().with_kv_tiers(tiers), options().with_batch_tokens(64)] {
            let other = engine(model, other);
            let mut session = Session::new(&other).unwrap();
            assert!(read(&mut session, &tokens, 12) == expected, "{model}");
        }
        let mut first = Session::new(&resident).unwrap();
        read(&mut first, &tokens, 5);
        let file = folder.path().join("experts.session");
        first.sequence().save(&file).unwrap();
        let mut restored = Session::restore(&resident, &file).unwrap();
        let mut fork = first.fork().unwrap();
        for session in [&mut restored, &mut fork] {
            for (token, expected) in (5..12).zip(&expected[6..]) {
                session.advance(token).unwrap();
                let found: Vec<u32> = session.logits().iter().map(|logit| logit.to_bits()).collect();
                assert!(found == *expected, "{model}: token {token}");
            }
        }
    }
}

#[test]
fn a_plan_counts_all_experts_and_their_scratch() {
    for model in MODELS {
        let info = riffle_model::inspect(path(model)).unwrap();
        assert!(info.config.experts.is_some(), "{model}");
        let loaded = riffle_model::load(path(model)).unwrap();
        assert!(loaded.model.config.weight_bytes >= info.config.weight_bytes, "{model}");
        let mut dense = info.config.clone();
        dense.experts = None;
        assert!(
            riffle_model::scratch_bytes(&info.config, 64) > riffle_model::scratch_bytes(&dense, 64),
            "{model}"
        );
    }
}

/// Bytes of weights in memory with one expert of each size, a third of all, and nearly all.
fn weight_budgets(path: &Path, options: &EngineOptions) -> [u64; 3] {
    let config = options.model.inspect(path).unwrap().config;
    let classes = &config.streamable;
    let in_files: u64 = classes.iter().map(ExpertClass::all_file_bytes).sum();
    let least = config.weight_bytes - in_files + least_expert_cache_bytes(classes);
    assert!(least < config.weight_bytes / 2, "{least} of {}", config.weight_bytes);
    [least, least + in_files / 3, config.weight_bytes - 1]
}

fn streamed(path: &Path, options: &EngineOptions, budget: u64) -> Arc<Engine> {
    let engine = Engine::load(path, options.clone().with_weights_budget_bytes(Some(budget))).unwrap();
    let (plan, config) = (engine.plan(), engine.model().config());
    assert!(plan.weights_bytes <= budget, "{plan:?}");
    let in_files: u64 = config.streamable.iter().map(ExpertClass::all_file_bytes).sum();
    let (held, experts) = (config.weight_bytes - in_files, plan.experts.as_ref());
    // Rows of resident matrices are padded to sixteen.
    let resident = experts.expect("experts stay in the file").resident_bytes;
    assert!(held >= resident && held < resident + (1 << 18), "{held} held, {plan:?}");
    engine
}

#[test]
fn answers_are_the_same_to_the_bit_with_experts_in_the_file() {
    check_streamed(write_mixture, options(), &["none", "ngram", "sparse"]);
}

#[test]
fn answers_of_hybrids_are_the_same_to_the_bit_with_experts_in_the_file() {
    // The model file has a layer for further tokens.
    let options = options().with_draft_predictor(true);
    check_streamed(write_hybrid_mixture, options, &["none", "ngram", "mtp@1", "mtp@3"]);
}

/// Checks that experts in the file give the same logits, answers after a restart, and drafted answers as weights in
/// memory.
fn check_streamed(write: fn(&Path), options: EngineOptions, drafts: &[&str]) {
    let generate = |draft: &str| GenerateOptions {
        max_tokens: 20,
        draft: draft.parse::<DraftSpec>().unwrap(),
        ignores_end: true,
        ..GenerateOptions::default()
    };
    let written = |engine: &Arc<Engine>, tokens: &[u32], draft: &str| {
        let mut session = Session::new(engine).unwrap();
        session.prefill(tokens, &mut go_on).unwrap();
        let answer = session.generate(&generate(draft), &mut |_| ControlFlow::Continue(()));
        answer.unwrap().tokens
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixture");
    write(&path);
    let resident = Engine::load(&path, options.clone()).unwrap();
    assert!(resident.expert_statistics().is_none() && resident.plan().experts.is_none());
    let tokens = text(300);
    let mut session = Session::new(&resident).unwrap();
    let expected = read(&mut session, &tokens, 12);
    let answer = written(&resident, &tokens, "none");
    for budget in weight_budgets(&path, &options) {
        let engine = streamed(&path, &options, budget);
        let mut session = Session::new(&engine).unwrap();
        assert!(read(&mut session, &tokens, 5) == expected[..6], "{budget} bytes");
        let file = folder.path().join(format!("{budget}.session"));
        session.sequence().save(&file).unwrap();
        let mut restored = Session::restore(&engine, &file).unwrap();
        for (token, expected) in (5..12).zip(&expected[6..]) {
            restored.advance(token).unwrap();
            assert!(bits(restored.logits()) == *expected, "token {token} after a restart");
        }
        for draft in drafts {
            assert_eq!(written(&engine, &tokens, draft), answer, "drafted by {draft}");
        }
        let statistics = engine.expert_statistics().expect("experts are read");
        assert!(statistics.misses > 0 && statistics.read_bytes > 0, "{statistics:?}");
    }
}

#[test]
fn engines_of_one_model_move_memory_between_experts_and_pages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixture");
    write_mixture(&path);
    let info = riffle_model::inspect(&path).unwrap();
    let whole = riffle_engine::plan(&info, &options()).unwrap().total_bytes;
    let of = |context: usize| {
        let options = options().with_context_tokens(Some(context));
        options.with_memory_budget_bytes(Some(whole - (1 << 20)))
    };
    let short = Engine::load(&path, of(512)).unwrap();
    let tokens = text(300);
    let expected = read(&mut Session::new(&short).unwrap(), &tokens, 6);
    let long = short.with_options(of(2048)).unwrap();
    let held = |engine: &Engine| engine.plan().experts.as_ref().expect("experts stay in the file").held;
    assert!(held(&long) < held(&short), "{:?}", long.plan());
    assert!(long.plan().total_bytes <= whole - (1 << 20), "{:?}", long.plan());
    assert!(read(&mut Session::new(&long).unwrap(), &tokens, 6) == expected);
    drop(long);
    let again = short.with_options(of(512)).unwrap();
    // Padded rows of loaded weights may displace one or two experts.
    assert!(
        held(&again) > held(&short) - 3 && held(&again) <= held(&short),
        "{:?}",
        again.plan()
    );
    assert!(read(&mut Session::new(&again).unwrap(), &tokens, 6) == expected);
    let few = again.with_options(of(512).with_weights_budget_bytes(Some(1024)));
    let line = few.err().expect("1 KiB holds no expert").to_string();
    assert!(
        line.starts_with("`weights_budget_bytes` is 1024, but it must be at least"),
        "{line}"
    );
}

#[test]
fn a_file_that_shrinks_fails_requests_by_one_line_and_the_scheduler_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixture");
    write_mixture(&path);
    let engine = streamed(&path, &options(), weight_budgets(&path, &options())[0]);
    let weights = path.join("model.safetensors");
    let mut scheduler = Scheduler::new(&engine, SchedulerOptions::for_engine(engine.options())).unwrap();
    let request = || Request {
        tokens: text(40),
        generate: GenerateOptions {
            max_tokens: 4,
            ignores_end: true,
            ..GenerateOptions::default()
        },
        ..Request::default()
    };
    scheduler.submit(request()).unwrap();
    scheduler.run(&mut |_| {}).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&weights).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    for _ in 0..2 {
        let id = scheduler.submit(request()).unwrap();
        let mut failed = None;
        let mut tell = |event: Event| {
            if let Event::Failed(_, error) = event {
                failed = Some(error);
            }
        };
        let error = match scheduler.run(&mut tell) {
            Err(error) => error,
            Ok(()) => failed.expect("the file is half as long"),
        };
        assert!(
            matches!(&error, EngineError::Model(ModelError::ChangedWeights { .. })),
            "{error}"
        );
        assert!(!error.to_string().contains('\n'), "{error}");
        scheduler.cancel(id);
    }
    let mut session = Session::new(&engine).unwrap();
    assert!(session.prefill(&text(20), &mut go_on).is_err());
    assert!(session.sequence().tokens().is_empty());
}

/// The shape of Qwen3-30B-A3B in four bits, without its weights.
fn large() -> ModelInfo {
    let mut info = riffle_model::inspect(path("qwen3_moe")).unwrap();
    let config = &mut info.config;
    (
        config.layers,
        config.hidden_size,
        config.heads,
        config.kv_heads,
        config.head_dim,
    ) = (48, 2048, 32, 4, 128);
    (config.max_position, config.vocab_size) = (40_960, 151_936);
    config.experts = Some(riffle_model::ExpertShape {
        experts: 128,
        used: 8,
        width: 768,
        shared_width: 0,
    });
    config.streamable = vec![ExpertClass {
        layers: 48,
        experts: 128,
        expert_bytes: 2_654_208,
        file_bytes: 2_654_208,
        largest_part_bytes: 884_736,
    }];
    config.expert_bytes = 48 * 128 * 2_654_208;
    config.weight_bytes = config.expert_bytes + (1 << 30);
    info
}

fn plan(options: EngineOptions, available: u64) -> MemoryPlan {
    MemoryPlan::new(&large(), &options, available).unwrap()
}

#[test]
fn a_plan_gives_experts_what_pages_leave_and_keeps_to_the_memory() {
    const GIB: u64 = 1 << 30;
    let open = EngineOptions::default();
    let whole = plan(open.clone(), 32 * GIB);
    assert!(whole.fits() && whole.experts.is_none());
    for available in [6 * GIB, 8 * GIB, 12 * GIB] {
        for options in [open.clone(), open.clone().with_context_tokens(Some(8192))] {
            let plan = plan(options, available);
            assert!(plan.fits() && plan.total_bytes <= available, "{plan:?}");
            let experts = plan.experts.as_ref().expect("the weights do not fit");
            assert_eq!(plan.weights_bytes, experts.resident_bytes + experts.cache_bytes);
            assert!(experts.held < experts.experts && experts.held > 100, "{experts:?}");
            // The rest is smaller than two experts and the padding of resident weights.
            assert!(
                available - plan.total_bytes < experts.resident_bytes / 64 + 2 * 2_654_208,
                "{plan:?}"
            );
            let missing = 1.0 - experts.held as f64 / experts.experts as f64;
            let read = experts.token_read_bytes as f64 / (48.0 * 8.0 * 2_654_208.0);
            assert!((read - missing).abs() < 1e-3, "{experts:?}");
        }
    }
    let given = plan(
        open.clone()
            .with_context_tokens(Some(8192))
            .with_weights_budget_bytes(Some(4 * GIB)),
        12 * GIB,
    );
    assert!(
        given.fits() && given.weights_bytes <= 4 * GIB && given.weights_bytes > 4 * GIB - 3_000_000,
        "{given:?}"
    );
    let few = MemoryPlan::new(&large(), &open.with_weights_budget_bytes(Some(GIB / 2)), 12 * GIB);
    let line = few.unwrap_err().to_string();
    assert!(
        line.starts_with("`weights_budget_bytes` is 512M, but it must be at least"),
        "{line}"
    );
}

#[test]
fn a_logical_batch_grows_where_experts_are_read_for_each_and_memory_allows() {
    const GIB: u64 = 1 << 30;
    let of = |context: usize, available: u64| {
        let options = EngineOptions::default()
            .with_batch_grows(true)
            .with_context_tokens(Some(context))
            .with_memory_budget_bytes(Some(available));
        let plan = riffle_engine::plan(&large(), &options).unwrap();
        assert!(plan.fits(), "{plan:?}");
        plan.experts.map(|experts| experts.batch_tokens)
    };
    assert_eq!(of(8192, 32 * GIB), None, "all experts lie in memory");
    assert_eq!(of(8192, 6 * GIB), Some(8192));
    let grown = [8, 12, 16].map(|available| of(32_768, available * GIB).unwrap());
    assert!(grown.is_sorted() && grown[0] >= 4096 && grown[2] == 32_768, "{grown:?}");
}

#[test]
fn a_longer_batch_reads_less_and_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixture");
    write_mixture(&path);
    let budget = weight_budgets(&path, &options())[1];
    let of = |grows: bool| {
        // The scratch of a longer batch must be a small part of the memory, pages included.
        let short = options().with_context_tokens(Some(4096)).with_batch_tokens(64);
        let short = short.with_weights_budget_bytes(Some(budget));
        let engine = Engine::load(&path, short.with_batch_grows(grows)).unwrap();
        let mut session = Session::new(&engine).unwrap();
        let found = read(&mut session, &text(500), 4);
        let statistics = engine.expert_statistics().expect("experts are read");
        (engine.options().machine.batch_tokens, found, statistics.read_bytes)
    };
    let (short, grown) = (of(false), of(true));
    assert!(short.0 == 64 && grown.0 >= 128, "{} and {} tokens", short.0, grown.0);
    assert!(short.1 == grown.1);
    assert!(3 * grown.2 < 2 * short.2, "{} and {} bytes", short.2, grown.2);
}
