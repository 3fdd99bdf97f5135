//! A mixture of experts that is made up.

use std::fs;
use std::path::Path;

use crate::fixture;
use crate::tensors::write_tensors;

const HIDDEN: usize = 64;
const WIDTH: usize = 256;
const LAYERS: usize = 3;
const EXPERTS: usize = 8;

/// Writes a mixture of experts (Qwen3-MoE) with random weights and the tokenizer of the shipped model into `folder`. Its experts take far more
/// than one expert and what is on its way from a disk, so that they can stay in the file.
pub fn write_mixture(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(fixture("model").join(file), folder.join(file)).expect("a copy");
    }
    let settings = format!(
        r#"{{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 2048, "hidden_size": {HIDDEN},
        "intermediate_size": {WIDTH}, "moe_intermediate_size": {WIDTH}, "num_hidden_layers": {LAYERS}, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 64, "num_experts": {EXPERTS}, "num_experts_per_tok": 2, "norm_topk_prob": true,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 8192, "tie_word_embeddings": true,
        "bos_token_id": 0, "eos_token_id": 1}}"#
    );
    fs::write(folder.join("config.json"), settings).expect("a file");
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![2048, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let mut add =
            |name: &str, shape: &[usize]| tensors.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        add("input_layernorm", &[HIDDEN]);
        add("post_attention_layernorm", &[HIDDEN]);
        add("self_attn.q_norm", &[64]);
        add("self_attn.k_norm", &[64]);
        add("self_attn.q_proj", &[128, HIDDEN]);
        add("self_attn.k_proj", &[64, HIDDEN]);
        add("self_attn.v_proj", &[64, HIDDEN]);
        add("self_attn.o_proj", &[HIDDEN, 128]);
        add("mlp.gate", &[EXPERTS, HIDDEN]);
        for expert in 0..EXPERTS {
            add(&format!("mlp.experts.{expert}.gate_proj"), &[WIDTH, HIDDEN]);
            add(&format!("mlp.experts.{expert}.up_proj"), &[WIDTH, HIDDEN]);
            add(&format!("mlp.experts.{expert}.down_proj"), &[HIDDEN, WIDTH]);
        }
    }
    write_tensors(&folder.join("model.safetensors"), &tensors, 11);
}
