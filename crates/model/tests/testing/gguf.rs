//! A one-layer Llama model as a GGUF file that tests may change before it is written.

use std::path::{Path, PathBuf};

use riffle_model::{ModelError, load};

/// Metadata as GGUF stores it: key, type number, bytes.
pub(crate) type Pair = (String, u32, Vec<u8>);

pub(crate) fn number(key: &str, value: u32) -> Pair {
    (key.to_owned(), 4, value.to_le_bytes().to_vec())
}

pub(crate) fn text(key: &str, value: &str) -> Pair {
    (key.to_owned(), 8, gguf_string(value))
}

pub(crate) fn metadata() -> Vec<Pair> {
    vec![
        text("general.architecture", "llama"),
        number("llama.embedding_length", 16),
        number("llama.block_count", 1),
        number("llama.feed_forward_length", 24),
        number("llama.attention.head_count", 4),
        number("llama.attention.head_count_kv", 2),
        number("llama.context_length", 128),
    ]
}

/// Name, dimensions with the fastest first, type number, bytes.
pub(crate) type Tensor = (String, Vec<u64>, u32, Vec<u8>);

pub(crate) fn tensors() -> Vec<Tensor> {
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
    let mut model = super::TinyModel::default();
    names
        .into_iter()
        .map(|(name, gguf_name)| {
            let tensor = model.tensor(name);
            let dimensions = tensor.shape.iter().rev().map(|&dimension| dimension as u64).collect();
            (format!("{gguf_name}.weight"), dimensions, 0, tensor.data.clone())
        })
        .collect()
}

/// Loads a file that must be refused, with all of `words` in one line.
#[track_caller]
pub(crate) fn refused(bytes: &[u8], words: &[&str]) -> ModelError {
    let (_folder, path) = write(bytes);
    refused_file(&path, words)
}

#[track_caller]
pub(crate) fn refused_file(path: &Path, words: &[&str]) -> ModelError {
    let error = load(path).err().expect("the file must be refused");
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 500, "{line}");
    for word in words {
        assert!(line.contains(word), "{word:?} is not in: {line}");
    }
    error
}

/// The file in a folder that exists as long as the first value.
pub(crate) fn write(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    (directory, path)
}

/// The model with further metadata, which replaces pairs of the same key.
pub(crate) fn file_with(pairs: &[Pair]) -> Vec<u8> {
    let mut all = metadata();
    all.retain(|(key, ..)| !pairs.iter().any(|(other, ..)| key == other));
    all.extend_from_slice(pairs);
    gguf_file(3, &all, &tensors())
}

pub(crate) fn float(key: &str, value: f32) -> Pair {
    (key.to_owned(), 6, value.to_le_bytes().to_vec())
}

pub(crate) fn flag(key: &str, value: bool) -> Pair {
    (key.to_owned(), 7, vec![u8::from(value)])
}

/// A list of values of one type.
pub(crate) fn gguf_list(kind: u32, items: &[Vec<u8>]) -> Vec<u8> {
    let head = [&kind.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
    [head, items.concat()].concat()
}

/// A text in GGUF's form.
pub(crate) fn gguf_string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The bytes of a GGUF file.
pub(crate) fn gguf_file(version: u32, metadata: &[Pair], tensors: &[Tensor]) -> Vec<u8> {
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

/// The model with this metadata beside its sizes.
pub(crate) fn tiny_gguf(further: &[Pair]) -> Vec<u8> {
    gguf_file(3, &[&metadata()[..], further].concat(), &tensors())
}
