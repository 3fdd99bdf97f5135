//! Test adapters (LoRA).

use std::fs;
use std::path::{Path, PathBuf};

use crate::tensors::write_tensors;

/// Writes an adapter in PEFT's format into `folder`, of rank 4 and alpha 8. Each of `modules` is a name such as
/// `model.layers.0.self_attn.q_proj` with its number of inputs and outputs.
pub fn write_adapter(folder: &Path, modules: &[(String, usize, usize)], seed: u64) {
    const RANK: usize = 4;
    fs::create_dir_all(folder).expect("a folder");
    let settings =
        r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "base_model_name_or_path": "made up"}"#;
    fs::write(folder.join("adapter_config.json"), settings).expect("a file");
    let tensors: Vec<(String, Vec<usize>)> = modules
        .iter()
        .flat_map(|(module, inputs, outputs)| {
            let parts = [("lora_A", vec![RANK, *inputs]), ("lora_B", vec![*outputs, RANK])];
            parts.map(|(part, shape)| (format!("base_model.model.{module}.{part}.weight"), shape))
        })
        .collect();
    write_tensors(&folder.join("adapter_model.safetensors"), &tensors, seed);
}

/// Writes an adapter for the attention and feed-forward layers of the shipped model.
pub fn write_shipped_adapter(folder: &Path, seed: u64) {
    let modules = (0..5).flat_map(|layer| {
        [
            ("self_attn.q_proj", 128, 256),
            ("self_attn.k_proj", 128, 128),
            ("self_attn.v_proj", 128, 128),
            ("mlp.down_proj", 384, 128),
        ]
        .map(|(part, inputs, outputs)| (format!("model.layers.{layer}.{part}"), inputs, outputs))
    });
    write_adapter(folder, &modules.collect::<Vec<_>>(), seed);
}

/// Writes an adapter from the bytes of one input and returns its path: a GGUF file, or the two files of PEFT with the
/// byte 0xff between them.
pub fn write_adapter_input(folder: &Path, bytes: &[u8]) -> PathBuf {
    if bytes.starts_with(b"GGUF") {
        let path = folder.join("adapter.gguf");
        fs::write(&path, bytes).expect("the input is written");
        return path;
    }
    let path = folder.join("adapter");
    let mut parts = bytes.splitn(2, |byte| *byte == 0xff);
    fs::create_dir_all(&path).expect("a folder");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::write(path.join(file), parts.next().unwrap_or_default()).expect("the input is written");
    }
    path
}
