//! Set-up the tests share: vectors, a dense attention step, a model driven over a text, models written on the spot.
#![allow(dead_code)]

pub(crate) mod gguf;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_model::{
    Batch, Decoder, Forward, HostForward, ModelConfig, ModelError, Projected, RecurrentState, SegmentTokens, load,
};
use safetensors::{Dtype, SafeTensors};

/// Tokens and the logits the reference computes for them.
pub(crate) struct Expected {
    pub(crate) tokens: Vec<u32>,
    file: Vec<u8>,
}

impl Expected {
    pub(crate) fn read(path: &Path) -> Expected {
        let file = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let tokens = integers(&SafeTensors::deserialize(&file).unwrap(), "tokens").unwrap();
        Expected {
            tokens: tokens.into_iter().map(|token| token as u32).collect(),
            file,
        }
    }

    /// The largest difference between the stored logits and `logits`, `[tokens, vocab_size]`.
    pub(crate) fn largest_difference(&self, logits: &[f32], vocab_size: usize) -> f32 {
        assert_eq!(logits.len(), self.tokens.len() * vocab_size);
        let file = SafeTensors::deserialize(&self.file).unwrap();
        let all_rows: Vec<usize> = (0..self.tokens.len()).collect();
        let all_columns: Vec<usize> = (0..vocab_size).collect();
        let mut largest: Option<f32> = None;
        for (name, rows, columns) in [
            ("logits", None, None),
            ("logits_columns", None, integers(&file, "columns")),
            ("logits_rows", integers(&file, "row_positions"), None),
        ] {
            let Ok(stored) = file.tensor(name) else { continue };
            assert_eq!(stored.dtype(), Dtype::F32);
            let stored: Vec<f32> = stored
                .data()
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect();
            let rows = rows.as_ref().unwrap_or(&all_rows);
            let columns = columns.as_ref().unwrap_or(&all_columns);
            assert_eq!(stored.len(), rows.len() * columns.len());
            let chosen = rows
                .iter()
                .flat_map(|row| columns.iter().map(move |column| logits[row * vocab_size + column]));
            let difference = largest_difference(chosen, stored.iter().copied());
            largest = Some(largest.unwrap_or(0.0).max(difference));
        }
        largest.expect("the file holds logits")
    }

    /// For every position: the distance from `logits` to the stored logits, over the length of the stored ones.
    pub(crate) fn row_differences(&self, logits: &[f32]) -> Vec<f64> {
        let file = SafeTensors::deserialize(&self.file).unwrap();
        let stored = file.tensor("logits").unwrap().data().to_vec();
        let stored: Vec<f64> = stored
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f64::from(f32::from_le_bytes(*bytes)))
            .collect();
        assert_eq!(stored.len(), logits.len());
        let vocab_size = stored.len() / self.tokens.len();
        stored
            .chunks(vocab_size)
            .zip(logits.chunks(vocab_size))
            .map(|(stored, logits)| {
                let square: f64 = stored
                    .iter()
                    .zip(logits)
                    .map(|(a, b)| (a - f64::from(*b)).powi(2))
                    .sum();
                (square / stored.iter().map(|a| a * a).sum::<f64>()).sqrt()
            })
            .collect()
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
pub(crate) fn largest_difference(left: impl Iterator<Item = f32>, right: impl Iterator<Item = f32>) -> f32 {
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
pub(crate) fn cases(root: &Path, prefix: &str) -> Vec<PathBuf> {
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
pub(crate) fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// The fixtures of the workspace.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// Plain causal attention over everything a sequence has seen, within each layer's window, summed in f64.
pub(crate) struct DenseAttention {
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
    pub(crate) fn new(config: &ModelConfig) -> DenseAttention {
        DenseAttention {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            scale: f64::from(config.attention_scale),
            soft_cap: config.soft_cap.map(f64::from),
            windows: (0..config.layers)
                .map(|layer| config.windows.get(layer).copied().flatten())
                .collect(),
            keys: vec![Vec::new(); config.layers],
            values: vec![Vec::new(); config.layers],
        }
    }

    /// Attends some rows of a batch, the sequence's tokens from `position` on.
    fn attend(&mut self, layer: usize, position: usize, rows: std::ops::Range<usize>, projected: &mut Projected<'_>) {
        let (width, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        assert_eq!(
            self.keys[layer].len(),
            position * kv_width,
            "tokens seen by layer {layer}"
        );
        let kv = rows.start * kv_width..rows.end * kv_width;
        self.keys[layer].extend_from_slice(&projected.keys[kv.clone()]);
        self.values[layer].extend_from_slice(&projected.values[kv]);
        let of_rows = rows.start * width..rows.end * width;
        let queries = projected.queries[of_rows.clone()].chunks_exact(self.head_dim);
        let outputs = projected.attended[of_rows].chunks_exact_mut(self.head_dim);
        for (index, (query, output)) in queries.zip(outputs).enumerate() {
            self.attend_head(layer, position + index / self.heads, index % self.heads, query, output);
        }
    }

    fn attend_head(&self, layer: usize, position: usize, head: usize, query: &[f32], output: &mut [f32]) {
        let width = self.kv_heads * self.head_dim;
        let offset = head / (self.heads / self.kv_heads) * self.head_dim;
        let first = self.windows[layer].map_or(0, |window| (position + 1).saturating_sub(window));
        let logits: Vec<f64> = (first..=position)
            .map(|key| {
                let key = &self.keys[layer][key * width + offset..][..self.head_dim];
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
            let value = &self.values[layer][key * width + offset..][..self.head_dim];
            for (result, value) in result.iter_mut().zip(value) {
                *result += weight / sum * f64::from(*value);
            }
        }
        for (output, result) in output.iter_mut().zip(result) {
            *output = result as f32;
        }
    }
}

/// A sequence being read: what attention and recurrent layers keep of it.
pub(crate) struct Sequence {
    attention: DenseAttention,
    pub(crate) recurrent: RecurrentState,
    tokens: usize,
    /// Its next tokens are generated ones, and not those of a prompt.
    pub(crate) generates: bool,
}

impl Sequence {
    pub(crate) fn new(config: &ModelConfig) -> Sequence {
        Sequence {
            attention: DenseAttention::new(config),
            recurrent: RecurrentState::new(config),
            tokens: 0,
            generates: false,
        }
    }

    /// Forgets everything after the first `tokens` tokens, at which `state` was copied.
    pub(crate) fn go_back(&mut self, tokens: usize, state: &RecurrentState) {
        self.tokens = tokens;
        self.recurrent.copy_from(state).unwrap();
        let width = self.attention.kv_heads * self.attention.head_dim;
        for kept in self.attention.keys.iter_mut().chain(&mut self.attention.values) {
            kept.truncate(tokens * width);
        }
    }
}

/// How a layer is cut by rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cuts {
    /// Rows of a block, about.
    pub(crate) most: usize,
    /// A block is finished before the next is projected.
    pub(crate) in_turn: bool,
}

/// All rows at once.
pub(crate) const WHOLE: Cuts = Cuts {
    most: usize::MAX,
    in_turn: false,
};

/// Reads tokens of one or more sequences in one pass; returns the logits of all rows, `[rows, vocab_size]`.
pub(crate) fn read_together(
    forward: &mut dyn Forward,
    config: &ModelConfig,
    work: &mut [(&mut Sequence, &[u32])],
) -> Vec<f32> {
    read_in_blocks(forward, config, work, WHOLE)
}

/// As [`read_together`], every layer cut by rows.
pub(crate) fn read_in_blocks(
    forward: &mut dyn Forward,
    config: &ModelConfig,
    work: &mut [(&mut Sequence, &[u32])],
    cuts: Cuts,
) -> Vec<f32> {
    let segments = work.iter().map(|(sequence, tokens)| match sequence.generates {
        true => SegmentTokens::generated(tokens, sequence.tokens),
        false => SegmentTokens::prompt(tokens, sequence.tokens),
    });
    let batch = Batch::new(segments).unwrap();
    forward.embed(&batch).unwrap();
    let blocks = forward.row_blocks(cuts.most);
    let groups = match cuts.in_turn {
        true => blocks.chunks(1),
        false => blocks.chunks(blocks.len()),
    };
    for layer in 0..config.layers {
        for blocks in groups.clone() {
            for block in blocks {
                forward.project(layer, block.clone()).unwrap();
            }
            for part in blocks.iter().flat_map(|block| batch.parts(block.clone())) {
                if let Some(mut projected) = forward.projected() {
                    let attention = &mut work[part.segment].0.attention;
                    attention.attend(layer, part.position, part.rows, &mut projected);
                }
            }
            let mut states: Vec<_> = work.iter_mut().map(|(sequence, _)| &mut sequence.recurrent).collect();
            for block in blocks {
                forward.finish(layer, block.clone(), &mut states).unwrap();
            }
        }
    }
    for (sequence, tokens) in work {
        sequence.tokens += tokens.len();
    }
    let rows: Vec<usize> = (0..batch.rows()).collect();
    let mut logits = vec![0.0; rows.len() * config.vocab_size];
    forward.logits(&rows, &mut logits).unwrap();
    logits
}

/// A sequence with memory to read it alone.
pub(crate) struct Reader {
    config: ModelConfig,
    forward: HostForward,
    pub(crate) sequence: Sequence,
}

impl Reader {
    pub(crate) fn new(model: &Arc<Decoder>, batch_tokens: usize, context_tokens: usize) -> Reader {
        Reader {
            config: model.config.clone(),
            forward: HostForward::new(model, batch_tokens, context_tokens),
            sequence: Sequence::new(&model.config),
        }
    }

    /// Reads a batch and returns its logits, `[tokens, vocab_size]`.
    pub(crate) fn read(&mut self, tokens: &[u32]) -> Vec<f32> {
        read_together(&mut self.forward, &self.config, &mut [(&mut self.sequence, tokens)])
    }
}

/// Logits of every position, `[tokens, vocab_size]`, the text taken in batches of `batch_tokens`.
pub(crate) fn logits_of(model: &Arc<Decoder>, tokens: &[u32], batch_tokens: usize) -> Vec<f32> {
    let mut reader = Reader::new(model, batch_tokens, tokens.len());
    tokens
        .chunks(batch_tokens)
        .flat_map(|tokens| reader.read(tokens))
        .collect()
}

/// The model that lies at `path`.
pub(crate) fn load_model(path: impl AsRef<Path>) -> Arc<Decoder> {
    let path = path.as_ref();
    let loaded = load(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Arc::new(loaded.model)
}

/// A tokenizer in the manner of Llama 2: `▁` for spaces, tokens `<0x00>` to `<0xFF>` for bytes outside the vocabulary.
pub(crate) fn byte_fallback_tokenizer() -> String {
    let mut vocabulary = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    vocabulary.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    vocabulary.extend(["▁", "a", "b", "é", "▁a", "▁b", "ab", "▁ab", ".", "\u{fffd}", "▁▁"].map(str::to_owned));
    let vocabulary: serde_json::Map<String, serde_json::Value> = vocabulary
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, id.into()))
        .collect();
    let special = |id: u32, token: &str| {
        serde_json::json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocabulary, "merges": []}
    })
    .to_string()
}

/// A small model with this tokenizer.
pub(crate) fn write_tokenizer(directory: &Path, tokenizer: &str, tokenizer_config: &str) {
    TinyModel::default().write(directory);
    std::fs::write(directory.join("tokenizer.json"), tokenizer).unwrap();
    std::fs::write(directory.join("tokenizer_config.json"), tokenizer_config).unwrap();
}

/// A tensor to be written.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

impl Tensor {
    pub(crate) fn f32(name: &str, shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|i| ((i * 7919 + name.len() * 31) % 199) as f32 / 400.0 - 0.25);
        Tensor {
            name: name.to_owned(),
            dtype: "F32",
            shape: shape.to_vec(),
            data: values.flat_map(f32::to_le_bytes).collect(),
        }
    }
}

/// A one-layer Llama model that tests may bend before writing it.
pub(crate) struct TinyModel {
    pub(crate) config: serde_json::Value,
    pub(crate) tensors: Vec<Tensor>,
}

impl Default for TinyModel {
    fn default() -> TinyModel {
        let layer = |part: &str| format!("model.layers.0.{part}.weight");
        TinyModel {
            config: serde_json::json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": 16,
                "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
                "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": true
            }),
            tensors: vec![
                Tensor::f32("model.embed_tokens.weight", &[320, 16]),
                Tensor::f32(&layer("input_layernorm"), &[16]),
                Tensor::f32(&layer("self_attn.q_proj"), &[16, 16]),
                Tensor::f32(&layer("self_attn.k_proj"), &[8, 16]),
                Tensor::f32(&layer("self_attn.v_proj"), &[8, 16]),
                Tensor::f32(&layer("self_attn.o_proj"), &[16, 16]),
                Tensor::f32(&layer("post_attention_layernorm"), &[16]),
                Tensor::f32(&layer("mlp.gate_proj"), &[24, 16]),
                Tensor::f32(&layer("mlp.up_proj"), &[24, 16]),
                Tensor::f32(&layer("mlp.down_proj"), &[16, 24]),
                Tensor::f32("model.norm.weight", &[16]),
            ],
        }
    }
}

impl TinyModel {
    pub(crate) fn write(&self, directory: &Path) {
        std::fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(directory.join("model.safetensors"), safetensors_file(&self.tensors)).unwrap();
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors
            .iter_mut()
            .find(|tensor| tensor.name.contains(name))
            .unwrap()
    }
}

/// Loads a directory that must be refused, with all of `words` in one line.
#[track_caller]
pub(crate) fn refused(directory: &Path, words: &[&str]) -> ModelError {
    let error = load(directory).err().expect("the model must be refused");
    let line = error.to_string();
    assert!(!line.contains('\n'), "more than one line: {line}");
    assert!(line.len() < 500, "not a line but an essay: {line}");
    for word in words {
        assert!(line.contains(word), "{word:?} is not in: {line}");
    }
    error
}

/// A tiny model bent by `bend`, refused.
#[track_caller]
pub(crate) fn bent(bend: impl FnOnce(&mut TinyModel), words: &[&str]) -> ModelError {
    let directory = tempfile::tempdir().unwrap();
    let mut model = TinyModel::default();
    bend(&mut model);
    model.write(directory.path());
    refused(directory.path(), words)
}

/// The bytes of a safetensors file.
pub(crate) fn safetensors_file(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for tensor in tensors {
        let begin = data.len();
        data.extend_from_slice(&tensor.data);
        header.insert(
            tensor.name.clone(),
            serde_json::json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, data.len()]}),
        );
    }
    safetensors_bytes(&serde_json::Value::Object(header).to_string(), &data)
}

/// A safetensors file of any header.
pub(crate) fn safetensors_bytes(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A text as GGUF stores it.
pub(crate) fn gguf_string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A GGUF file of metadata (key, type number, bytes) and tensors (name, dimensions with the fastest first, type number,
/// bytes).
pub(crate) fn gguf_file(
    version: u32,
    metadata: &[(String, u32, Vec<u8>)],
    tensors: &[(String, Vec<u64>, u32, Vec<u8>)],
) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(version.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((metadata.len() as u64).to_le_bytes());
    for (key, kind, value) in metadata {
        file.extend(gguf_string(key));
        file.extend(kind.to_le_bytes());
        file.extend(value);
    }
    let mut data: Vec<u8> = Vec::new();
    for (name, dimensions, kind, bytes) in tensors {
        file.extend(gguf_string(name));
        file.extend((dimensions.len() as u32).to_le_bytes());
        file.extend(dimensions.iter().flat_map(|dimension| dimension.to_le_bytes()));
        file.extend(kind.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    file
}

/// The 256 characters that stand for bytes in GPT-2's vocabulary, printable ones first.
pub(crate) fn bytes_as_characters() -> impl Iterator<Item = char> {
    let printable = ('!'..='~').chain('\u{a1}'..='\u{ac}').chain('\u{ae}'..='\u{ff}');
    printable.chain('\u{100}'..='\u{143}')
}

/// SentencePiece's table of replacements with one entry, in base64: a double-array trie whose nodes lie 256 units apart.
pub(crate) fn character_map(from: &str, to: &str) -> String {
    let mut units = vec![0u32; 256 * (from.len() + 2)];
    let mut node = 0;
    let mut base = 256;
    units[0] = (base as u32) << 10;
    for (at, byte) in from.bytes().enumerate() {
        node = base ^ usize::from(byte);
        base += 256;
        let leaf = u32::from(at + 1 == from.len());
        units[node] = ((node ^ base) as u32) << 10 | leaf << 8 | u32::from(byte);
    }
    assert_ne!(node, base);
    // The value: where the replacement begins.
    units[base] = 1 << 31;
    let mut bytes = (4 * units.len() as u32).to_le_bytes().to_vec();
    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend(to.bytes().chain([0]));
    base64(&bytes)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let value = (0..3).fold(0u32, |value, at| {
            value << 8 | u32::from(group.get(at).copied().unwrap_or(0))
        });
        for digit in 0..4 {
            let character = char::from(DIGITS[(value >> (18 - 6 * digit)) as usize & 63]);
            text.push(if digit <= group.len() { character } else { '=' });
        }
    }
    text
}

/// A one-layer Llama model in a GGUF file, with this metadata beside its sizes.
pub(crate) fn tiny_gguf(metadata: &[(String, u32, Vec<u8>)]) -> Vec<u8> {
    let number = |key: &str, value: u32| (key.to_owned(), 4, value.to_le_bytes().to_vec());
    let mut all = vec![
        ("general.architecture".to_owned(), 8, gguf_string("llama")),
        number("llama.embedding_length", 16),
        number("llama.block_count", 1),
        number("llama.feed_forward_length", 24),
        number("llama.attention.head_count", 4),
        number("llama.attention.head_count_kv", 2),
        number("llama.context_length", 128),
    ];
    all.extend_from_slice(metadata);
    let names = [
        ("embed_tokens", "token_embd"),
        ("input_layernorm", "blk.0.attn_norm"),
        ("q_proj", "blk.0.attn_q"),
        ("k_proj", "blk.0.attn_k"),
        ("v_proj", "blk.0.attn_v"),
        ("o_proj", "blk.0.attn_output"),
        ("post_attention_layernorm", "blk.0.ffn_norm"),
        ("gate_proj", "blk.0.ffn_gate"),
        ("up_proj", "blk.0.ffn_up"),
        ("down_proj", "blk.0.ffn_down"),
        ("model.norm", "output_norm"),
    ];
    let mut model = TinyModel::default();
    let tensors: Vec<_> = names
        .into_iter()
        .map(|(name, gguf_name)| {
            let tensor = model.tensor(name);
            let dimensions = tensor.shape.iter().rev().map(|&dimension| dimension as u64).collect();
            (format!("{gguf_name}.weight"), dimensions, 0, tensor.data.clone())
        })
        .collect();
    gguf_file(3, &all, &tensors)
}
