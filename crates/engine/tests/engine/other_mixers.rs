//! Small random models from transformers, with latent attention or recurrent states: sequences move with their tokens
//! and pages.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session};
use riffle_kv::{DiskTier, KvTiers};
use riffle_policy::PolicySpec;
use safetensors::SafeTensors;

use crate::testing::{bits, go_on, read, write};

/// One family per kind of layer: latent attention (with and without a narrow query, with an indexer per layer or a
/// shared one), short convolution, Mamba2 before, beside and instead of attention, delta attention with a gate per
/// channel, lightning attention, and an indexer of blocks with an n-gram table.
const FAMILIES: [&str; 11] = [
    "deepseek_v3",
    "deepseek_v32",
    "glm_moe_dsa",
    "kimi_linear",
    "minicpm3",
    "minimax",
    "lfm2",
    "granitemoehybrid",
    "falcon_h1",
    "nemotron_h",
    "qwen4_exp_text",
];

/// Families with an indexer.
const INDEXED: [&str; 3] = ["deepseek_v32", "glm_moe_dsa", "qwen4_exp_text"];

/// Families with linear attention and experts.
const LINEAR: [&str; 2] = ["kimi_linear", "minimax"];

fn case(name: &str) -> PathBuf {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors");
    let folder = if INDEXED.contains(&name) || LINEAR.contains(&name) {
        "experts"
    } else {
        "dense"
    };
    vectors.join(folder).join(name)
}

/// The tokens of a case, and the logits after each.
fn expected(name: &str) -> (Vec<u32>, Vec<f32>) {
    let bytes = std::fs::read(case(name).join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        let (words, _) = tensors.tensor(name).unwrap().data().as_chunks::<4>();
        words.to_vec()
    };
    let tokens = words("tokens").into_iter().map(u32::from_le_bytes).collect();
    (tokens, words("logits").into_iter().map(f32::from_le_bytes).collect())
}

fn options(format: Format) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_batch_tokens(128)
        .with_chunk_tokens(32)
        .with_page_tokens(16)
        .with_key_format(format)
        .with_value_format(format)
}

fn engine(name: &str, options: EngineOptions) -> Arc<Engine> {
    Engine::load(case(name), options).unwrap()
}

fn on_disk(folder: &Path, options: EngineOptions) -> EngineOptions {
    let mut tiers = KvTiers::memory(Some(60_000));
    tiers.slots = 2;
    tiers.disk = Some(DiskTier {
        folder: folder.to_owned(),
        budget_bytes: None,
    });
    options.with_kv_tiers(tiers)
}

#[test]
fn logits_are_those_of_transformers_whole_in_parts_and_token_by_token() {
    for name in FAMILIES {
        let (tokens, expected) = expected(name);
        let engine = engine(name, options(Format::F32));
        let width = expected.len() / tokens.len();
        let near = |session: &Session, limit: f32| {
            let last = session.tokens().len() - 1;
            let differences = session.logits().iter().zip(&expected[last * width..]);
            let worst = differences.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < limit, "{name}, token {last}: {worst:e}");
        };
        near(&read(&engine, &tokens), 5e-4);
        let mut session = read(&engine, &tokens[..64]);
        session.prefill(&tokens[64..150], &mut go_on).unwrap();
        near(&session, 5e-4);
        for token in &tokens[150..] {
            session.advance(*token).unwrap();
            near(&session, 1e-3);
        }
    }
}

#[test]
fn files_forks_pages_on_disk_and_refused_drafts_go_on_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    for name in FAMILIES {
        let (tokens, _) = expected(name);
        let here = engine(name, options(Format::Q8_0));
        let there = engine(name, on_disk(folder.path(), options(Format::Q8_0)));
        let (mut session, mut far) = (read(&here, &tokens), read(&there, &tokens));
        let path = folder.path().join(name);
        session.sequence().save(&path).unwrap();
        let mut restored = Session::restore(&here, &path).unwrap();
        let mut fork = session.fork().unwrap();
        // Refused drafts leave no trace.
        let checkpoint = fork.sequence_mut().checkpoint().unwrap();
        let drafts = write(&mut fork, 3..13);
        assert!(fork.sequence_mut().roll_back(&checkpoint, 4).unwrap().is_empty());
        for (token, expected) in (7..13).zip(&drafts[4..]) {
            fork.advance(token).unwrap();
            assert!(bits(fork.logits()) == *expected, "{name}, token {token}");
        }
        let expected = write(&mut session, 3..13);
        assert!(drafts == expected, "{name}, a fork");
        assert!(write(&mut restored, 3..13) == expected, "{name}, a file");
        assert!(write(&mut far, 3..13) == expected, "{name}, the disk");
    }
}

#[test]
fn policies_choose_over_latents_with_the_same_bits_wherever_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    for (prefill, decode) in [
        ("xattention:block=32,from=0", "quest:block=16,topk=3,from=0"),
        ("full", "streaming:sinks=16,window=64,from=0"),
    ] {
        let options = options(Format::Q8_0)
            .with_prefill(prefill.parse::<PolicySpec>().unwrap().into())
            .with_decode(decode.parse::<PolicySpec>().unwrap().into());
        for name in ["deepseek_v3", "minicpm3"] {
            let (tokens, _) = expected(name);
            let tokens = tokens.repeat(2);
            let here = engine(name, options.clone());
            let there = engine(name, on_disk(folder.path(), options.clone()));
            let full = engine(name, self::options(Format::Q8_0));
            let (mut near, mut far) = (read(&here, &tokens), read(&there, &tokens));
            assert!(far.sequence().usage().bytes_by_tier.disk > 0, "{name}");
            assert!(near.sequence().usage().bytes_by_tier.total() <= here.plan().kv_bytes);
            let found = write(&mut near, 3..13);
            assert!(found == write(&mut far, 3..13), "{name}: {prefill}, {decode}");
            assert!(
                found != write(&mut read(&full, &tokens), 3..13),
                "{name}: {decode} leaves nothing out"
            );
        }
    }
}

#[test]
fn a_model_that_chooses_by_itself_reads_less_and_refuses_other_choices() {
    for name in INDEXED {
        let (tokens, _) = expected(name);
        let options = options(Format::F16);
        let engine = engine(name, options.clone());
        let config = engine.model().config();
        let indexing = config.indexing_layers().count();
        // Width of keys and values, or of a latent with its rotated part.
        let width = if name == "qwen4_exp_text" { 2 * 2 * 16 } else { 48 };
        assert_eq!(
            engine.plan().kv_bytes_per_token as usize,
            2 * (config.attention_layers() * width + indexing * 32)
        );
        let session = read(&engine, &tokens);
        let pairs = session.sequence().counts().pairs;
        assert!(pairs.read < pairs.causal / 2, "{name} reads {pairs:?}");
        let policy = |policy: &str| policy.parse::<PolicySpec>().unwrap().into();
        for (refused, what) in [
            (options.clone().with_decode(policy("quest")), "decode"),
            (options.clone().with_prefill(policy("streaming")), "prefill"),
            (options.clone().with_auto_target(Some(0.9)), "auto_target"),
        ] {
            let refusal = Engine::load(case(name), refused).err().unwrap().to_string();
            assert!(refusal.contains(what) && refusal.contains("indexer"), "{refusal}");
        }
    }
}

#[test]
fn an_audit_compares_the_choice_of_a_model_with_all_tokens() {
    let (tokens, _) = expected("deepseek_v32");
    let engine = engine("deepseek_v32", options(Format::F32).with_audit(true));
    let report = read(&engine, &tokens).sequence().audit().unwrap();
    let kept = report.heads.iter().map(|head| head.mean_mass);
    assert!(kept.clone().all(|kept| kept > 0.05) && kept.clone().any(|kept| kept < 0.95));
}
