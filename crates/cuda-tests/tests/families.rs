//! Decoders of every family on an emulated device, compared with the CPU.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_cuda::{DeviceForward, DeviceModel, EmulatedOptions, Gpu, KernelCache};
use riffle_model::{Batch, Forward, HostForward, ModelConfig, Projected, RecurrentState, SegmentTokens, load};

/// A cheap attention: every head reads the mean of its segment's values up to its own token, scaled by its query and
/// key. An error in any of them changes the result.
fn attend_means(config: &ModelConfig, batch: &Batch, projected: &mut Projected<'_>) {
    let (width, kv_width) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    for segment in batch.segments() {
        let mut sums = vec![0.0; kv_width];
        for (before, token) in segment.rows.clone().enumerate() {
            let kv = token * kv_width..(token + 1) * kv_width;
            for (sum, value) in sums.iter_mut().zip(&projected.values[kv.clone()]) {
                *sum += value;
            }
            for at in 0..width {
                let kv_at = at / config.head_dim / (config.heads / config.kv_heads) * config.head_dim;
                let kv_at = kv_at + at % config.head_dim;
                let sway = projected.queries[token * width + at] + projected.keys[kv.start + kv_at];
                projected.attended[token * width + at] = sums[kv_at] / (before + 1) as f32 + 0.1 * sway;
            }
        }
    }
}

/// Every head reads only the value of its own token, scaled by query and key in the same way.
fn attend_nothing_else(config: &ModelConfig, batch: &Batch, projected: &mut Projected<'_>) {
    let group = config.heads / config.kv_heads;
    for head in 0..batch.rows() * config.heads {
        let kv = (head / config.heads * config.kv_heads + head % config.heads / group) * config.head_dim;
        for at in 0..config.head_dim {
            let sway = projected.queries[head * config.head_dim + at] + projected.keys[kv + at];
            projected.attended[head * config.head_dim + at] = projected.values[kv + at] + 0.1 * sway;
        }
    }
}

/// The logits of the last 16 rows of a batch, whose segments begin with `states`.
fn read(
    forward: &mut dyn Forward,
    config: &ModelConfig,
    batch: &Batch,
    states: &mut [&mut RecurrentState],
) -> Vec<f32> {
    read_in_blocks(forward, config, batch, states, usize::MAX, attend_means)
}

/// As [`read`], with every layer cut into blocks of about `most` rows.
fn read_in_blocks(
    forward: &mut dyn Forward,
    config: &ModelConfig,
    batch: &Batch,
    states: &mut [&mut RecurrentState],
    most: usize,
    attend: fn(&ModelConfig, &Batch, &mut Projected<'_>),
) -> Vec<f32> {
    forward.embed(batch).unwrap();
    let blocks = forward.row_blocks(most);
    for layer in 0..config.layers {
        for block in &blocks {
            forward.project(layer, block.clone()).unwrap();
        }
        if let Some(mut projected) = forward.projected() {
            attend(config, batch, &mut projected);
        }
        for block in &blocks {
            forward.finish(layer, block.clone(), states).unwrap();
        }
    }
    // The last rows of many are enough, because every earlier error changes them.
    let rows: Vec<usize> = (batch.rows().saturating_sub(16)..batch.rows()).collect();
    let mut all = vec![0.0; rows.len() * config.vocab_size];
    forward.logits(&rows, &mut all).unwrap();
    all
}

fn logits(forward: &mut dyn Forward, config: &ModelConfig, tokens: &[u32]) -> Vec<f32> {
    let mut recurrent = RecurrentState::new(config);
    // A recurrent state starts at the first token. Other models start at position 3, which distinguishes their
    // rotations.
    let start = if recurrent.is_empty() { 3 } else { 0 };
    let batch = Batch::of_one(tokens, start).unwrap();
    let all = read(forward, config, &batch, &mut [&mut recurrent]);
    assert!(recurrent.is_empty() || recurrent.tokens() == Some(tokens.len()));
    all
}

fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<PathBuf> = entries.filter(|path| path.join("config.json").exists()).collect();
    models.sort();
    models
}

/// The first model of each family; all models with recurrent layers.
fn families() -> Vec<PathBuf> {
    let mut families = models();
    families.retain(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.ends_with("-0") || name.starts_with("qwen3_5")
    });
    assert!(families.len() >= 9, "only {} families", families.len());
    families
}

/// The GPU whose number RIFFLE_TEST_GPU gives.
fn gpu() -> Gpu {
    match std::env::var("RIFFLE_TEST_GPU") {
        Ok(number) => Gpu::open(number.parse().expect("a number"), KernelCache::of_user()).expect("a GPU"),
        Err(_) => Gpu::emulated(EmulatedOptions::default(), KernelCache::of_user()).expect("g++ compiles the kernels"),
    }
}

#[test]
fn every_family_gives_the_logits_of_the_cpu() {
    let gpu = gpu();
    let stream = Arc::new(gpu.stream().unwrap());
    let mut seen = 0;
    for path in models() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let (host, device) = (load(&path).unwrap().model, load(&path).unwrap().model);
        let config = host.config.clone();
        // Few rows, because products of many rows round activations to 16 bits if the weights have 16 bits.
        let tokens: Vec<u32> = (0..7).map(|i| (i * 7 + 1) % config.vocab_size as u32).collect();
        let device = Arc::new(DeviceModel::upload(&gpu, device).unwrap());
        let expected = logits(&mut HostForward::new(&Arc::new(host), 7), &config, &tokens);
        let mut forward = DeviceForward::new(&device, &stream, 7).unwrap();
        let found = logits(&mut forward, &config, &tokens);
        let largest = expected.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
        let pairs = found.iter().zip(&expected);
        let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(difference <= 1e-4 * largest, "{name}: {difference} of {largest}");
        // A shorter batch in the same memory.
        assert_eq!(
            logits(&mut forward, &config, &tokens[..5]),
            found[..5 * config.vocab_size],
            "{name}"
        );
        seen += 1;
    }
    assert!(seen >= 10, "only {seen} models were compared");
}

#[test]
fn two_sequences_in_one_batch_have_the_bits_of_each_alone() {
    let gpu = gpu();
    let stream = Arc::new(gpu.stream().unwrap());
    for path in families() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let model = Arc::new(DeviceModel::upload(&gpu, load(&path).unwrap().model).unwrap());
        let host = load(&path).unwrap().model;
        let config = &host.config;
        let text = |sequence: u32| -> Vec<u32> { (0..6).map(|at| (at * 7 + sequence * 5 + 1) % 31).collect() };
        let texts = [text(0), text(1)];
        // One sequence has its own memory each time, so that shared and separate memory are compared.
        let [mut forward, mut of_first, mut of_second] =
            [0; 3].map(|_| DeviceForward::new(&model, &stream, 7).unwrap());
        let [mut alone, mut joined] = [0; 2].map(|_| [0; 2].map(|_| RecurrentState::new(config)));
        // Few rows, because products of more than eight rows round differently. The second pass continues both
        // states.
        for [first, second] in [[0..5, 0..1], [5..6, 1..4]] {
            let ranges = [first, second];
            let mut expected = Vec::new();
            let forwards = [&mut of_first, &mut of_second];
            for (((text, range), state), forward) in texts.iter().zip(&ranges).zip(&mut alone).zip(forwards) {
                let batch = Batch::of_one(&text[range.clone()], range.start).unwrap();
                expected.extend(read(forward, config, &batch, &mut [state]));
            }
            let parts = texts.iter().zip(&ranges);
            let parts = parts.map(|(text, range)| SegmentTokens::prompt(&text[range.clone()], range.start));
            let batch = Batch::new(parts).unwrap();
            let found = read(&mut forward, config, &batch, &mut joined.each_mut());
            assert!(found == expected, "{name}: {ranges:?}");
            assert!(alone == joined, "{name}: states after {ranges:?}");
        }
    }
}

#[test]
fn layers_that_are_cut_by_rows_give_the_bits_of_whole_ones() {
    let gpu = gpu();
    let stream = Arc::new(gpu.stream().unwrap());
    // The model has layers of both kinds.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/qwen3_5-1");
    let host = load(&path).unwrap().model;
    let config = &host.config;
    let model = Arc::new(DeviceModel::upload(&gpu, load(&path).unwrap().model).unwrap());
    let text: Vec<u32> = (0..1026).map(|at| at * 7 % 31).collect();
    let mut forward = DeviceForward::new(&model, &stream, 1030).unwrap();
    let segments = [&text[..], &text[..1], &text[5..8]].map(|tokens| SegmentTokens::prompt(tokens, 0));
    let batch = Batch::new(segments).unwrap();
    let mut whole = [0; 3].map(|_| RecurrentState::new(config));
    let expected = read(&mut forward, config, &batch, &mut whole.each_mut());
    assert_eq!(forward.row_blocks(1030).len(), 1);
    assert_eq!(forward.row_blocks(1), [0..1024, 1024..1030]);
    let mut cut = [0; 3].map(|_| RecurrentState::new(config));
    let found = read_in_blocks(&mut forward, config, &batch, &mut cut.each_mut(), 1, attend_means);
    assert!(found == expected, "logits");
    assert!(cut == whole, "states");
}

#[test]
fn up_to_eight_rows_verified_at_once_have_the_bits_of_single_steps() {
    let gpu = gpu();
    let stream = Arc::new(gpu.stream().unwrap());
    for path in families() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let model = Arc::new(DeviceModel::upload(&gpu, load(&path).unwrap().model).unwrap());
        let config = load(&path).unwrap().model.config;
        let text: Vec<u32> = (0..8).map(|at| (at * 7 + 1) % 31).collect();
        let mut forward = DeviceForward::new(&model, &stream, 8).unwrap();
        let mut read = |segments: &[SegmentTokens<'_>], states: &mut [&mut RecurrentState]| {
            let batch = Batch::new(segments.iter().copied()).unwrap();
            read_in_blocks(&mut forward, &config, &batch, states, usize::MAX, attend_nothing_else)
        };
        let [mut steps, mut beside] = [0; 2].map(|_| RecurrentState::new(&config));
        let mut logits = Vec::new();
        let mut after = Vec::new();
        for at in 0..8 {
            logits.extend(read(
                &[SegmentTokens::generated(&text[at..at + 1], at)],
                &mut [&mut steps],
            ));
            after.push(steps.clone());
        }
        for count in [2, 5, 8] {
            let mut state = RecurrentState::new(&config);
            let found = read(&[SegmentTokens::generated(&text[..count], 0)], &mut [&mut state]);
            assert!(found == logits[..count * config.vocab_size], "{name}: {count}");
            assert!(state == after[count - 1], "{name}: {count}, states");
        }
        let mut state = RecurrentState::new(&config);
        let segments = [
            SegmentTokens::generated(&text[..3], 0),
            SegmentTokens::generated(&text[..5], 0),
        ];
        let found = read(&segments, &mut [&mut beside, &mut state]);
        assert!(
            found[3 * config.vocab_size..] == logits[..5 * config.vocab_size],
            "{name}: beside others"
        );
        assert!(beside == after[2] && state == after[4], "{name}: beside others, states");
    }
}
