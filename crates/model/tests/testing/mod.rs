//! Shared set-up of the tests: vectors, a dense attention step, a model that reads a text, generated models.
#![allow(dead_code, unused_imports)]

pub(crate) mod gguf;
pub(crate) mod sequence;
pub(crate) mod tokenizers;

pub(crate) use gguf::{gguf_file, gguf_list, gguf_string, tiny_gguf};
pub(crate) use sequence::{Cuts, DenseAttention, Reader, Sequence, WHOLE, logits_of, read_in_blocks, read_together};
pub(crate) use tokenizers::{byte_fallback_tokenizer, bytes_as_characters, character_map, write_tokenizer};

pub(crate) use riffle_testing::{fixtures, largest_difference};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_model::{Decoder, ModelError, load};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// Tokens and the reference's logits for them.
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

    /// The tokens that are stored as `name`.
    pub(crate) fn tokens_of(&self, name: &str) -> Vec<u32> {
        let tokens = integers(&SafeTensors::deserialize(&self.file).unwrap(), name).unwrap();
        tokens.into_iter().map(|token| token as u32).collect()
    }

    /// The values that are stored as `name`.
    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.file).unwrap();
        let bytes = file.tensor(name).unwrap().data().to_vec();
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect()
    }

    /// For every position: the distance of `logits` from the stored logits, relative to the length of the stored ones.
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

/// The model at `path`.
pub(crate) fn load_model(path: impl AsRef<Path>) -> Arc<Decoder> {
    let path = path.as_ref();
    let loaded = load(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Arc::new(loaded.model)
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
    /// A tensor of a file.
    pub(crate) fn stored(name: &str, view: &TensorView<'_>) -> Tensor {
        Tensor {
            name: name.to_owned(),
            dtype: match view.dtype() {
                Dtype::BF16 => "BF16",
                other => panic!("{name} has type {other:?}"),
            },
            shape: view.shape().to_vec(),
            data: view.data().to_vec(),
        }
    }

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

/// A one-layer Llama model that tests may change before writing it.
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

/// A tiny model, changed by `bend` and refused.
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

/// A safetensors file with any header.
pub(crate) fn safetensors_bytes(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}
