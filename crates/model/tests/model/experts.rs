//! Experts that stay in the model's files: the same bits for every memory, and one line of error if the files fail.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_model::{
    Batch, Decoder, ExpertClass, ExpertWeights, Forward, HostForward, ModelError, OpenedModel, RecurrentState,
    SegmentTokens, Step, WeightFormat, expert_cache_bytes, least_expert_cache_bytes,
};

use crate::testing::gguf::{Tensor, number, text};
use crate::testing::{Expected, Reader, Sequence, cases, gguf_file, logits_of, read_together, vectors};

const HIDDEN: usize = 256;
const WIDTH: usize = 256;
const EXPERTS: usize = 6;
const LAYERS: usize = 2;
const VOCABULARY: usize = 40;

/// The model at `path` with this memory for experts.
fn load(path: &Path, expert_bytes: Option<u64>) -> Result<Arc<Decoder>, ModelError> {
    let opened = OpenedModel::open(path, &Default::default())?;
    Ok(Arc::new(opened.with_expert_bytes(expert_bytes).load()?.model))
}

fn classes(path: &Path) -> Vec<ExpertClass> {
    riffle_model::inspect(path).unwrap().config.streamable
}

/// One expert of each size, a third of all, and all.
fn budgets(classes: &[ExpertClass]) -> [u64; 3] {
    let least = least_expert_cache_bytes(classes);
    let all: u64 = classes.iter().map(ExpertClass::bytes).sum();
    [least, least + all / 3, least + all]
}

/// Bytes that differ at every place; as 16-bit floats they are all finite.
fn bytes(seed: usize, count: usize) -> Vec<u8> {
    let mut state = (seed as u32).wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8 & 0x3b
    };
    (0..count).map(|_| next()).collect()
}

/// A mixture of experts in the shape of Qwen3-MoE, with experts of this format.
fn mixture(format: WeightFormat, kind: u32) -> (tempfile::TempDir, PathBuf) {
    let key = |name: &str, value: usize| number(&format!("qwen3moe.{name}"), value as u32);
    let metadata = [
        text("general.architecture", "qwen3moe"),
        key("embedding_length", HIDDEN),
        key("block_count", LAYERS),
        key("feed_forward_length", WIDTH),
        key("expert_feed_forward_length", WIDTH),
        key("expert_count", EXPERTS),
        key("expert_used_count", 2),
        key("attention.head_count", 4),
        key("attention.head_count_kv", 2),
        key("attention.key_length", 64),
        key("attention.value_length", 64),
        key("context_length", 128),
    ];
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut float = |name: &str, shape: &[usize], around: f32| {
        let count: usize = shape.iter().product();
        let noise = bytes(name.len() * 31 + name.as_bytes()[4] as usize, count);
        let values = noise.iter().map(|byte| around + (f32::from(*byte) - 29.0) / 300.0);
        let dimensions = shape.iter().rev().map(|size| *size as u64).collect();
        tensors.push((
            name.to_owned(),
            dimensions,
            0,
            values.flat_map(f32::to_le_bytes).collect(),
        ));
    };
    float("token_embd.weight", &[VOCABULARY, HIDDEN], 0.0);
    float("output_norm.weight", &[HIDDEN], 1.0);
    float("output.weight", &[VOCABULARY, HIDDEN], 0.0);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        float(&name("attn_norm"), &[HIDDEN], 1.0);
        float(&name("ffn_norm"), &[HIDDEN], 1.0);
        float(&name("attn_q_norm"), &[64], 1.0);
        float(&name("attn_k_norm"), &[64], 1.0);
        float(&name("attn_q"), &[256, HIDDEN], 0.0);
        float(&name("attn_k"), &[128, HIDDEN], 0.0);
        float(&name("attn_v"), &[128, HIDDEN], 0.0);
        float(&name("attn_output"), &[HIDDEN, 256], 0.0);
        float(&name("ffn_gate_inp"), &[EXPERTS, HIDDEN], 0.0);
    }
    for layer in 0..LAYERS {
        for (number, part) in ["gate", "up", "down"].into_iter().enumerate() {
            let row_bytes = format.row_bytes(HIDDEN).unwrap();
            let experts = bytes(layer * 7 + number, EXPERTS * WIDTH * row_bytes);
            let dimensions = vec![HIDDEN as u64, WIDTH as u64, EXPERTS as u64];
            tensors.push((format!("blk.{layer}.ffn_{part}_exps.weight"), dimensions, kind, experts));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixture.gguf");
    std::fs::write(&path, gguf_file(3, &metadata, &tensors)).unwrap();
    (folder, path)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Logits of a text in batches, token by token, and of two texts together.
fn all_logits(model: &Arc<Decoder>, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut found: Vec<Vec<u32>> = [1, 7, tokens.len()]
        .into_iter()
        .map(|batch| bits(&logits_of(model, tokens, batch)))
        .collect();
    let mut forward = HostForward::new(model, 2 * tokens.len());
    let config = &model.config;
    let sequence = || Sequence::of_length(config, tokens.len()).with_sinks(model);
    let (mut first, mut second) = (sequence(), sequence());
    let half = tokens.len() / 2;
    found.push(bits(&read_together(
        &mut forward,
        config,
        &mut [(&mut first, &tokens[..half]), (&mut second, tokens)],
    )));
    found
}

#[test]
fn every_family_has_the_same_bits_wherever_its_experts_lie() {
    let mut resident = Vec::new();
    let cases = cases(&vectors().join("experts"), "");
    assert!(cases.len() >= 8, "only {} families were compared", cases.len());
    for case in cases {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let classes = classes(&case);
        if classes.is_empty() {
            resident.push(name);
            let error = load(&case, Some(1 << 30)).err().unwrap().to_string();
            assert!(error.contains("experts") && !error.contains('\n'), "{error}");
            continue;
        }
        let tokens = &Expected::read(&case.join("expected.safetensors")).tokens[..40];
        let wanted = all_logits(&load(&case, None).unwrap(), tokens);
        for budget in budgets(&classes) {
            let model = load(&case, Some(budget)).unwrap();
            assert!(all_logits(&model, tokens) == wanted, "{name} with {budget} bytes");
            let cache = model.expert_cache.as_ref().unwrap();
            assert!(cache.bytes() <= budget && cache.bytes() == expert_cache_bytes(&classes, budget));
            assert!(cache.statistics().misses > 0, "{name}");
        }
    }
    // These tensors have inputs before outputs, so they are packed anew and stay in memory.
    assert_eq!(resident, ["gpt_oss", "llama4_text"]);
}

#[test]
fn experts_of_every_weight_format_have_the_same_bits_in_memory_and_in_the_file() {
    let tokens: Vec<u32> = (0..24).map(|token| token * 7 % VOCABULARY as u32).collect();
    let formats = (0..64).filter_map(|kind| Some((kind, WeightFormat::from_ggml_type(kind)?)));
    let mut compared = 0;
    for (kind, format) in formats {
        let (_folder, path) = mixture(format, kind);
        let classes = classes(&path);
        assert_eq!(
            classes.iter().map(|class| class.layers).sum::<usize>(),
            LAYERS,
            "{format}"
        );
        let resident = load(&path, None).unwrap();
        let wanted = all_logits(&resident, &tokens);
        assert!(
            wanted.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()),
            "{format}"
        );
        let [least, third, _] = budgets(&classes);
        for budget in [least, third] {
            assert!(
                all_logits(&load(&path, Some(budget)).unwrap(), &tokens) == wanted,
                "{format}"
            );
        }
        compared += 1;
    }
    assert!(compared >= 15, "only {compared} formats were compared");
}

#[test]
fn verified_and_repeated_tokens_have_the_bits_of_single_steps_from_the_file() {
    let case = vectors().join("experts/qwen3_5_moe_text");
    let tokens = &Expected::read(&case.join("expected.safetensors")).tokens[..64];
    let read = |model: &Arc<Decoder>, steps: &[usize]| -> Vec<u32> {
        let mut reader = Reader::new(model, 64, tokens.len());
        let mut logits = reader.read(&tokens[..40]);
        let state = reader.sequence.recurrent.clone();
        reader.sequence.generates = true;
        // Rolled-back guesses, then the tokens themselves.
        reader.read(&[1, 2, 3, 4, 5]);
        reader.sequence.go_back(
            40,
            &RecurrentState::from_bytes(&model.config, &state.to_bytes()).unwrap(),
        );
        let mut at = 40;
        for step in steps {
            logits.extend(reader.read(&tokens[at..at + step]));
            at += step;
        }
        bits(&logits)
    };
    let resident = load(&case, None).unwrap();
    let wanted = read(&resident, &[1; 12]);
    for budget in budgets(&classes(&case)) {
        let model = load(&case, Some(budget)).unwrap();
        for steps in [&[1; 12][..], &[5, 1, 6], &[12]] {
            assert!(read(&model, steps) == wanted, "{budget} bytes in steps of {steps:?}");
        }
    }
}

#[test]
fn a_batch_reads_every_expert_once() {
    let (_folder, path) = mixture(WeightFormat::Q8_0, 8);
    let classes = classes(&path);
    let [least, ..] = budgets(&classes);
    let model = load(&path, Some(least)).unwrap();
    let tokens: Vec<u32> = (0..96).map(|token| token * 11 % VOCABULARY as u32).collect();
    logits_of(&model, &tokens, tokens.len());
    let statistics = model.expert_cache.as_ref().unwrap().statistics();
    let all: u64 = classes
        .iter()
        .map(|class| class.count() as u64 * class.file_bytes)
        .sum();
    let chosen = statistics.hits + statistics.early + statistics.misses;
    assert!(chosen <= (LAYERS * EXPERTS) as u64);
    assert!(statistics.read_bytes <= all, "{statistics:?} of {all}");
}

#[test]
fn a_cache_that_holds_all_reads_nothing_twice() {
    let (_folder, path) = mixture(WeightFormat::Q4K, 12);
    let classes = classes(&path);
    let [.., all] = budgets(&classes);
    let model = load(&path, Some(all)).unwrap();
    let tokens: Vec<u32> = (0..40).collect();
    logits_of(&model, &tokens, 8);
    let first = model.expert_cache.as_ref().unwrap().statistics();
    logits_of(&model, &tokens, 8);
    let second = model.expert_cache.as_ref().unwrap().statistics();
    assert_eq!(first.read_bytes, second.read_bytes);
    assert!(second.hits > first.hits && second.misses == first.misses);
}

/// The error of a batch of the model.
fn failure(model: &Arc<Decoder>) -> ModelError {
    let mut forward = HostForward::new(model, 4);
    let batch = Batch::new([SegmentTokens::prompt(&[1, 2, 3], 0)]).unwrap();
    forward.embed(&batch).unwrap();
    let mut state = RecurrentState::new(&model.config);
    for layer in 0..LAYERS {
        forward.project(layer, 0..3).unwrap();
        if let Err(error) = forward.finish(layer, 0..3, &mut [&mut state]) {
            return error;
        }
    }
    panic!("nothing failed");
}

#[test]
fn a_file_that_is_cut_off_or_changed_is_one_line_and_never_a_wrong_answer() {
    let cut = |path: &Path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    };
    let change = |path: &Path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    for damage in [&cut as &dyn Fn(&Path), &change] {
        let (_folder, path) = mixture(WeightFormat::Q8_0, 8);
        let model = load(&path, Some(budgets(&classes(&path))[0])).unwrap();
        damage(&path);
        // The model continues to fail, and neither hangs nor panics.
        for _ in 0..3 {
            let error = failure(&model);
            assert!(matches!(error, ModelError::ChangedWeights { .. }), "{error}");
            let line = error.to_string();
            assert!(
                line.contains("was changed or cut off") && !line.contains('\n'),
                "{line}"
            );
        }
    }
}

#[test]
#[cfg_attr(not(unix), ignore = "Windows replaces no file that a program has mapped")]
fn a_file_that_another_takes_the_place_of_is_read_to_the_end() {
    let (folder, path) = mixture(WeightFormat::Q8_0, 8);
    let tokens = [3, 1, 4, 1, 5];
    let wanted = bits(&logits_of(&load(&path, None).unwrap(), &tokens, 5));
    let model = load(&path, Some(budgets(&classes(&path))[0])).unwrap();
    let other = folder.path().join("other");
    std::fs::write(&other, b"something else").unwrap();
    std::fs::rename(&other, &path).unwrap();
    assert_eq!(bits(&logits_of(&model, &tokens, 5)), wanted);
}

#[test]
fn a_scale_that_is_not_finite_is_found_when_its_expert_is_read() {
    let (_folder, path) = mixture(WeightFormat::Q8_0, 8);
    let mut file = std::fs::read(&path).unwrap();
    let end = file.len();
    // The scales of the last expert of the last tensor.
    let expert = WeightFormat::Q8_0.row_bytes(HIDDEN).unwrap() * WIDTH;
    for block in file[end - expert..].chunks_exact_mut(34) {
        block[..2].copy_from_slice(&[0xff, 0x7f]);
    }
    std::fs::write(&path, file).unwrap();
    let model = load(&path, Some(budgets(&classes(&path))[2])).unwrap();
    let Some(Step::Experts(experts)) = model.layers[0]
        .steps
        .iter()
        .find(|step| matches!(step, Step::Experts(_)))
    else {
        panic!("a layer of experts")
    };
    assert!(matches!(experts.experts, ExpertWeights::Streamed(_)));
    let mut forward = HostForward::new(&model, 40);
    let tokens: Vec<u32> = (0..40).collect();
    let batch = Batch::new([SegmentTokens::prompt(&tokens, 0)]).unwrap();
    forward.embed(&batch).unwrap();
    let mut state = RecurrentState::new(&model.config);
    forward.project(0, 0..40).unwrap();
    forward.finish(0, 0..40, &mut [&mut state]).unwrap();
    forward.project(1, 0..40).unwrap();
    let error = forward.finish(1, 0..40, &mut [&mut state]).unwrap_err();
    assert!(
        matches!(&error, ModelError::NotFinite { tensor, .. } if tensor.contains("down")),
        "{error}"
    );
}

#[test]
fn less_memory_than_one_expert_is_refused_before_anything_is_read() {
    let (_folder, path) = mixture(WeightFormat::Q8_0, 8);
    let least = least_expert_cache_bytes(&classes(&path));
    let error = load(&path, Some(least - 1)).err().unwrap();
    assert!(matches!(error, ModelError::FewExpertBytes { .. }), "{error}");
    load(&path, Some(least)).unwrap();
}
