//! Set-up the tests share: vectors, a dense attention step, a model driven over a text, models written on the spot.
#![allow(dead_code)]

use std::error::Error;
use std::path::{Path, PathBuf};

use riffle_model::{AttentionInput, AttentionStep, LanguageModel, ModelConfig, Workspace};
use safetensors::{Dtype, SafeTensors};

/// Tokens and the logits the reference computes for them.
pub struct Expected {
    pub tokens: Vec<u32>,
    // [tokens, columns]
    pub logits: Vec<f32>,
    /// Which columns of the vocabulary were kept, `None` for all.
    pub columns: Option<Vec<usize>>,
}

impl Expected {
    pub fn read(path: &Path) -> Expected {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let logits = file.tensor("logits").unwrap();
        assert_eq!(logits.dtype(), Dtype::F32);
        Expected {
            tokens: integers(&file, "tokens")
                .unwrap()
                .into_iter()
                .map(|token| token as u32)
                .collect(),
            logits: logits
                .data()
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect(),
            columns: integers(&file, "columns"),
        }
    }

    /// The largest difference between these logits and `logits`, `[tokens, vocab_size]`.
    pub fn largest_difference(&self, logits: &[f32], vocab_size: usize) -> f32 {
        let all: Vec<usize> = (0..vocab_size).collect();
        let columns = self.columns.as_ref().unwrap_or(&all);
        assert_eq!(self.logits.len(), self.tokens.len() * columns.len());
        assert_eq!(logits.len(), self.tokens.len() * vocab_size);
        let chosen = logits
            .chunks_exact(vocab_size)
            .flat_map(|row| columns.iter().map(|&column| row[column]));
        largest_difference(chosen, self.logits.iter().copied())
    }
}

fn integers(file: &SafeTensors<'_>, name: &str) -> Option<Vec<usize>> {
    let tensor = file.tensor(name).ok()?;
    let data = tensor.data();
    Some(match tensor.dtype() {
        Dtype::I64 | Dtype::U64 => data
            .as_chunks()
            .0
            .iter()
            .map(|b| u64::from_le_bytes(*b) as usize)
            .collect(),
        Dtype::I32 | Dtype::U32 => data
            .as_chunks()
            .0
            .iter()
            .map(|b| u32::from_le_bytes(*b) as usize)
            .collect(),
        other => panic!("{name} has type {other:?}"),
    })
}

/// The largest difference of two sequences; infinite where one is not a number.
pub fn largest_difference(left: impl Iterator<Item = f32>, right: impl Iterator<Item = f32>) -> f32 {
    left.zip(right).fold(0.0, |largest, (left, right)| {
        let difference = (left - right).abs();
        if difference.is_nan() {
            f32::INFINITY
        } else {
            largest.max(difference)
        }
    })
}

/// Every case directory below `root` whose name begins with `prefix`, sorted.
pub fn cases(root: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root) else {
        return Vec::new();
    };
    let mut cases: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("expected.safetensors").exists() && path.join("config.json").exists())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix))
        .collect();
    cases.sort();
    cases
}

/// The vectors of this crate.
pub fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// The fixtures of the workspace.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// Plain causal attention over everything seen, within each layer's window, summed in f64.
pub struct DenseAttention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    scale: f64,
    soft_cap: Option<f64>,
    windows: Vec<Option<usize>>,
    // per layer [tokens, kv_heads, head_dim]
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl DenseAttention {
    pub fn new(model: &dyn LanguageModel) -> DenseAttention {
        let config = model.config();
        DenseAttention {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            scale: f64::from(config.attention_scale),
            soft_cap: config.soft_cap.map(f64::from),
            windows: (0..config.layers).map(|layer| model.window(layer)).collect(),
            keys: vec![Vec::new(); config.layers],
            values: vec![Vec::new(); config.layers],
        }
    }

    fn attend_head(&self, input: &AttentionInput<'_>, row: usize, head: usize, output: &mut [f32]) {
        let width = self.kv_heads * self.head_dim;
        let offset = head / (self.heads / self.kv_heads) * self.head_dim;
        let position = input.start_position + row;
        let first = self.windows[input.layer].map_or(0, |window| (position + 1).saturating_sub(window));
        let query = &input.queries[(row * self.heads + head) * self.head_dim..][..self.head_dim];
        let logits: Vec<f64> = (first..=position)
            .map(|key| {
                let key = &self.keys[input.layer][key * width + offset..][..self.head_dim];
                let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let logit = dot * self.scale;
                self.soft_cap.map_or(logit, |cap| cap * (logit / cap).tanh())
            })
            .collect();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut result = vec![0.0f64; self.head_dim];
        for (weight, key) in weights.iter().zip(first..) {
            let value = &self.values[input.layer][key * width + offset..][..self.head_dim];
            for (result, value) in result.iter_mut().zip(value) {
                *result += weight / sum * f64::from(*value);
            }
        }
        for (output, result) in output.iter_mut().zip(result) {
            *output = result as f32;
        }
    }
}

impl AttentionStep for DenseAttention {
    fn attend(&mut self, input: AttentionInput<'_>, output: &mut [f32]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let seen = self.keys[input.layer].len() / (self.kv_heads * self.head_dim);
        if seen != input.start_position {
            return Err(format!(
                "layer {} has seen {seen} tokens, not {}",
                input.layer, input.start_position
            )
            .into());
        }
        self.keys[input.layer].extend_from_slice(input.keys);
        self.values[input.layer].extend_from_slice(input.values);
        for (index, output) in output.chunks_exact_mut(self.head_dim).enumerate() {
            self.attend_head(&input, index / self.heads, index % self.heads, output);
        }
        Ok(())
    }
}

/// Logits of every position, `[tokens, vocab_size]`, the text taken in batches of `batch_tokens`.
pub fn logits_of(model: &dyn LanguageModel, tokens: &[u32], batch_tokens: usize) -> Vec<f32> {
    let ModelConfig {
        hidden_size,
        vocab_size,
        layers,
        ..
    } = *model.config();
    let mut attention = DenseAttention::new(model);
    let mut workspace = Workspace::new(model.config(), batch_tokens);
    let mut logits = Vec::with_capacity(tokens.len() * vocab_size);
    for (batch, tokens) in tokens.chunks(batch_tokens).enumerate() {
        let mut hidden = vec![0.0; tokens.len() * hidden_size];
        model.embed(tokens, &mut hidden).unwrap();
        for layer in 0..layers {
            model
                .layer(layer, batch * batch_tokens, &mut hidden, &mut attention, &mut workspace)
                .unwrap();
        }
        let mut out = vec![0.0; tokens.len() * vocab_size];
        model.logits(&hidden, &mut out, &mut workspace);
        logits.extend(out);
    }
    logits
}
