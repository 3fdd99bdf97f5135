//! Memory of the process for a model: the weights once, and little else. The only test of its process.
#![cfg(target_os = "linux")]

mod testing;

use std::path::Path;

use riffle_model::{inspect, scratch_bytes};
use testing::{Tensor, gguf_file, gguf_string, load_model, logits_of, safetensors_file};

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

/// Every matrix of a Llama model: its names in a directory and in a GGUF file, its rows and its columns.
fn matrices() -> Vec<(String, String, u64, u64)> {
    let mut matrices = vec![("model.embed_tokens".into(), "token_embd".into(), VOCABULARY, HIDDEN)];
    for layer in 0..LAYERS {
        let mut add = |part: &str, gguf_part: &str, rows, columns| {
            let name = format!("model.layers.{layer}.{part}_proj");
            matrices.push((name, format!("blk.{layer}.{gguf_part}"), rows, columns));
        };
        for part in ["q", "k", "v"] {
            add(&format!("self_attn.{part}"), &format!("attn_{part}"), HIDDEN, HIDDEN);
        }
        add("self_attn.o", "attn_output", HIDDEN, HIDDEN);
        add("mlp.gate", "ffn_gate", INNER, HIDDEN);
        add("mlp.up", "ffn_up", INNER, HIDDEN);
        add("mlp.down", "ffn_down", HIDDEN, INNER);
    }
    matrices
}

fn norms() -> Vec<(String, String)> {
    let mut norms = vec![("model.norm".to_owned(), "output_norm".to_owned())];
    for layer in 0..LAYERS {
        for (part, gguf_part) in [
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
        ] {
            norms.push((
                format!("model.layers.{layer}.{part}"),
                format!("blk.{layer}.{gguf_part}"),
            ));
        }
    }
    norms
}

/// A GGUF file of 64 MB in Q8_0.
fn write_gguf(path: &Path) {
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
    let block: Vec<u8> = [0x00, 0x10].into_iter().chain((0..32).map(|i| i * 7 % 16)).collect();
    let mut tensors: Vec<_> = matrices()
        .into_iter()
        .map(|(_, name, rows, columns)| {
            let data = block.repeat((rows * columns / 32) as usize);
            (format!("{name}.weight"), vec![columns, rows], Q8_0, data)
        })
        .collect();
    let ones = 1f32.to_le_bytes().repeat(HIDDEN as usize);
    tensors.extend(
        norms()
            .into_iter()
            .map(|(_, name)| (format!("{name}.weight"), vec![HIDDEN], 0, ones.clone())),
    );
    std::fs::write(path, gguf_file(3, &metadata, &tensors)).unwrap();
}

/// The same model as a directory in BF16.
fn write_directory(path: &Path) {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 16,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": true
    });
    // 2^-7 and 1.
    let tensor = |name: String, shape: Vec<usize>, bits: u16| Tensor {
        name: format!("{name}.weight"),
        dtype: "BF16",
        data: bits.to_le_bytes().repeat(shape.iter().product()),
        shape,
    };
    let matrices = matrices()
        .into_iter()
        .map(|(name, _, rows, columns)| tensor(name, vec![rows as usize, columns as usize], 0x3c00));
    let norms = norms()
        .into_iter()
        .map(|(name, _)| tensor(name, vec![HIDDEN as usize], 0x3f80));
    let tensors: Vec<Tensor> = matrices.chain(norms).collect();
    std::fs::write(path.join("config.json"), config.to_string()).unwrap();
    std::fs::write(path.join("model.safetensors"), safetensors_file(&tensors)).unwrap();
}

/// The model that the separate process measures, and the bytes of its largest tensor.
const MEASURED: &str = "RIFFLE_TEST_RESIDENT_MODEL";
const LARGEST: &str = "RIFFLE_TEST_RESIDENT_LARGEST";

/// Loads the model at `path` and reads some tokens; `largest` is the size of its largest tensor in bytes.
fn check(path: &Path, file: u64, largest: u64) {
    let config = inspect(path).unwrap().config;
    // Keys and values of the test's own attention, in f32.
    let kv = 2 * 4 * (TOKENS * config.layers * config.kv_heads * config.head_dim) as u64;
    let logits = 4 * (TOKENS * config.vocab_size) as u64;
    let before = status_bytes("VmRSS");
    // Forgets the peak of writing the file.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();

    let loaded = load_model(path);
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    assert!(logits_of(&loaded, &tokens, TOKENS)[0].is_finite());
    // Memory after the last matrix is held up to the end of its huge page, for every model size.
    let tail = 2 << 20;
    let allowed = |weights: f64| weights as u64 + tail + kv + 2 * logits + scratch_bytes(&config, TOKENS);
    let taken = status_bytes("VmRSS").saturating_sub(before);
    let most = status_bytes("VmHWM").saturating_sub(before);
    drop(loaded);

    assert!(
        taken >= file / 2,
        "{taken} bytes for a file of {file}: nothing was measured"
    );
    let limit = allowed(1.05 * file as f64);
    assert!(taken <= limit, "{taken} bytes are held, {limit} allowed");
    // While a tensor is packed, its pages of the file are in memory too.
    let limit = limit + largest;
    assert!(most <= limit, "{most} bytes at the most, {limit} allowed");
    eprintln!("file {file}, held {taken}, at the most {most}");
}

#[test]
fn a_model_takes_the_bytes_of_its_file_and_little_more() {
    if let Some(path) = std::env::var_os(MEASURED) {
        let largest = std::env::var(LARGEST).unwrap().parse().unwrap();
        let path = Path::new(&path);
        let file = if path.is_dir() {
            path.join("model.safetensors")
        } else {
            path.to_owned()
        };
        return check(path, std::fs::metadata(file).unwrap().len(), largest);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_gguf(&path);
    write_directory(folder.path());
    measure_alone(&path, VOCABULARY * HIDDEN / 32 * 34);
    measure_alone(folder.path(), VOCABULARY * HIDDEN * 2);
}

/// Runs this test again in a separate process; otherwise the allocator's memory from writing the files would be
/// measured too.
fn measure_alone(path: &Path, largest: u64) {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_model_takes_the_bytes_of_its_file_and_little_more",
            "--nocapture",
        ])
        .env(MEASURED, path)
        .env(LARGEST, largest.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {said}", path.display());
    eprintln!("{said}");
}
