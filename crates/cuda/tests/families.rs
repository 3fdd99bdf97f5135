//! Decoders of every family on an emulated device against the same on the CPU.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_cuda::{DeviceForward, DeviceModel, EmulatedOptions, Gpu, KernelCache};
use riffle_model::{Attended, AttentionInput, AttentionStep, Forward, HostForward, ModelConfig, RecurrentState, load};

/// Every head reads the mean of the values up to its own token, swayed by its query and its key: cheap, and wrong when any
/// of them is.
struct Means {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl AttentionStep for Means {
    fn attend(
        &mut self,
        input: AttentionInput<'_>,
        output: &mut [f32],
    ) -> Result<Attended, Box<dyn Error + Send + Sync>> {
        let (width, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut sums = vec![0.0; kv_width];
        for token in 0..input.tokens {
            let kv = token * kv_width..(token + 1) * kv_width;
            for (sum, value) in sums.iter_mut().zip(&input.values[kv.clone()]) {
                *sum += value;
            }
            for at in 0..width {
                let kv_at = at / self.head_dim / (self.heads / self.kv_heads) * self.head_dim + at % self.head_dim;
                let sway = input.queries[token * width + at] + input.keys[kv.start + kv_at];
                output[token * width + at] = sums[kv_at] / (token + 1) as f32 + 0.1 * sway;
            }
        }
        Ok(Attended::InOutput)
    }
}

fn logits(forward: &mut dyn Forward, config: &ModelConfig, tokens: &[u32]) -> Vec<f32> {
    let mut attention = Means {
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
    };
    let mut recurrent = RecurrentState::new(config);
    // A state begins with the first token; rotations are told from each other where positions do not.
    let start = if recurrent.is_empty() { 3 } else { 0 };
    forward.embed(tokens).unwrap();
    for layer in 0..config.layers {
        forward.layer(layer, start, &mut attention, &mut recurrent).unwrap();
    }
    assert!(recurrent.is_empty() || recurrent.tokens() == Some(tokens.len()));
    let mut all = vec![0.0; tokens.len() * config.vocab_size];
    forward.logits(0..tokens.len(), &mut all).unwrap();
    all
}

fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<PathBuf> = entries.filter(|path| path.join("config.json").exists()).collect();
    models.sort();
    models
}

#[test]
fn every_family_gives_the_logits_of_the_cpu() {
    // On a GPU where RIFFLE_TEST_GPU gives its number.
    let gpu = match std::env::var("RIFFLE_TEST_GPU") {
        Ok(number) => Gpu::open(number.parse().expect("a number"), KernelCache::of_user()).expect("a GPU"),
        Err(_) => Gpu::emulated(EmulatedOptions::default(), KernelCache::of_user()).expect("g++ compiles the kernels"),
    };
    let stream = Arc::new(gpu.stream().unwrap());
    let mut seen = 0;
    for path in models() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let (host, device) = (load(&path).unwrap().model, load(&path).unwrap().model);
        let config = host.config.clone();
        // Few rows: more are rounded to 16 bits where weights are.
        let tokens: Vec<u32> = (0..7).map(|i| (i * 7 + 1) % config.vocab_size as u32).collect();
        let device = Arc::new(DeviceModel::upload(&gpu, device).unwrap());
        let context = config.max_position;
        let expected = logits(&mut HostForward::new(&Arc::new(host), 7, context), &config, &tokens);
        let mut forward = DeviceForward::new(&device, &stream, 7, context).unwrap();
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
