//! Adapters (LoRA) that are made up.

use std::fs;
use std::path::Path;

/// Writes an adapter as PEFT does into `folder`, of rank 4 and alpha 8, with a part for each of `modules`: a name such as
/// `model.layers.0.self_attn.q_proj`, inputs and outputs.
pub fn write_adapter(folder: &Path, modules: &[(String, usize, usize)], seed: u64) {
    const RANK: usize = 4;
    fs::create_dir_all(folder).expect("a folder");
    let settings =
        r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "base_model_name_or_path": "made up"}"#;
    fs::write(folder.join("adapter_config.json"), settings).expect("a file");
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (module, inputs, outputs) in modules {
        for (part, rows, columns) in [("lora_A", RANK, *inputs), ("lora_B", *outputs, RANK)] {
            let begin = data.len();
            let size = 1.0 / (columns as f32).sqrt();
            data.extend((0..rows * columns).flat_map(|_| (size * next()).to_le_bytes()));
            entries.push(format!(
                r#""base_model.model.{module}.{part}.weight":{{"dtype":"F32","shape":[{rows},{columns}],"data_offsets":[{begin},{}]}}"#,
                data.len()
            ));
        }
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(data);
    fs::write(folder.join("adapter_model.safetensors"), file).expect("a file");
}

/// Writes an adapter of the shipped model, of its attention and of its feed-forward parts.
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
