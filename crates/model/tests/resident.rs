//! Memory the process holds for a model: the weights once, and little else. The only test of its process.
#![cfg(target_os = "linux")]

mod testing;

use riffle_model::{inspect, load, scratch_bytes};
use testing::{gguf_file, gguf_string, logits_of};

const HIDDEN: u64 = 1024;
const INNER: u64 = 2816;
const LAYERS: u64 = 4;
const VOCABULARY: u64 = 8192;
const TOKENS: usize = 16;
const Q8_0: u32 = 8;

/// Bytes the kernel counts under `name` in /proc/self/status.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes * 1024
}

/// A Llama model of 64 MB in Q8_0.
fn write_model(path: &std::path::Path) {
    let text = |key: &str, value: &str| (key.to_owned(), 8, gguf_string(value));
    let number = |key: &str, value: u64| (key.to_owned(), 4, (value as u32).to_le_bytes().to_vec());
    let metadata = [
        text("general.architecture", "llama"),
        number("llama.embedding_length", HIDDEN),
        number("llama.block_count", LAYERS),
        number("llama.feed_forward_length", INNER),
        number("llama.attention.head_count", 16),
        number("llama.context_length", 1024),
    ];
    // Blocks of a small scale and small numbers.
    let matrix = |name: String, rows: u64, columns: u64| {
        let block: Vec<u8> = [0x00, 0x10].into_iter().chain((0..32).map(|i| i * 7 % 16)).collect();
        let data = block.repeat((rows * columns / 32) as usize);
        (name, vec![columns, rows], Q8_0, data)
    };
    let vector = |name: String| (name, vec![HIDDEN], 0, 1f32.to_le_bytes().repeat(HIDDEN as usize));
    let mut tensors = vec![
        matrix("token_embd.weight".into(), VOCABULARY, HIDDEN),
        vector("output_norm.weight".into()),
    ];
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            tensors.push(matrix(name(part), HIDDEN, HIDDEN));
        }
        tensors.push(matrix(name("ffn_gate"), INNER, HIDDEN));
        tensors.push(matrix(name("ffn_up"), INNER, HIDDEN));
        tensors.push(matrix(name("ffn_down"), HIDDEN, INNER));
        tensors.extend(["attn_norm", "ffn_norm"].map(|part| vector(name(part))));
    }
    std::fs::write(path, gguf_file(3, &metadata, &tensors)).unwrap();
}

#[test]
fn a_model_takes_the_bytes_of_its_file_and_little_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_model(&path);
    let file = std::fs::metadata(&path).unwrap().len();
    let config = inspect(&path).unwrap().config;
    // Keys and values of the test's own attention, in f32.
    let kv = 2 * 4 * (TOKENS * config.layers * config.kv_heads * config.head_dim) as u64;
    let logits = 4 * (TOKENS * config.vocab_size) as u64;
    let before = status_bytes("VmRSS");
    // Forgets the peak of writing the file.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();

    let loaded = load(&path).unwrap();
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    assert!(logits_of(&loaded.model, &tokens, TOKENS)[0].is_finite());
    let allowed = |weights: f64| weights as u64 + kv + 2 * logits + scratch_bytes(&config, TOKENS);
    let taken = status_bytes("VmRSS").saturating_sub(before);
    let most = status_bytes("VmHWM").saturating_sub(before);
    drop(loaded);

    assert!(
        taken >= file / 2,
        "{taken} bytes for a file of {file}: nothing was measured"
    );
    let limit = allowed(1.05 * file as f64);
    assert!(taken <= limit, "{taken} bytes are held, {limit} allowed");
    // While a tensor is packed its pages of the file are held too.
    let largest = VOCABULARY * HIDDEN / 32 * 34;
    let limit = limit + largest;
    assert!(most <= limit, "{most} bytes at the most, {limit} allowed");
    eprintln!("file {file}, held {taken}, at the most {most}");
}
