//! Test mixtures of experts.

use std::fs;
use std::path::Path;

use crate::fixture;
use crate::tensors::write_tensors;

const HIDDEN: usize = 64;
const WIDTH: usize = 256;
const LAYERS: usize = 3;
const EXPERTS: usize = 8;
const HEADS: usize = 2;
const HEAD_WIDTH: usize = 64;
/// Key heads of a recurrent layer, its value heads, and the width of a head.
const RECURRENT: [usize; 3] = [1, 2, 32];

/// Writes a mixture of experts (Qwen3-MoE) with random weights and the tokenizer of the shipped model into `folder`.
/// Its experts are much larger than the buffers for loading them, so they can stay in the file.
pub fn write_mixture(folder: &Path) {
    let mut tensors = Tensors::default();
    for layer in 0..LAYERS {
        let base = format!("model.layers.{layer}");
        tensors.attention(&base, 1);
        tensors.experts(&base);
    }
    tensors.write(folder, &settings("Qwen3MoeForCausalLM", "qwen3_moe", ""));
}

/// Writes a mixture of the same sizes with recurrent first layers (Qwen3.5-MoE), gates, shared experts, and a layer
/// that predicts further tokens.
pub fn write_hybrid_mixture(folder: &Path) {
    let mut tensors = Tensors::default();
    let mut layer = |base: &str, attends: bool| {
        if attends {
            tensors.attention(base, 2);
        } else {
            tensors.recurrent(base);
        }
        tensors.experts(base);
        tensors.add(base, "mlp.shared_expert_gate.weight", &[1, HIDDEN]);
        tensors.block(&format!("{base}.mlp.shared_expert"));
    };
    for number in 0..LAYERS {
        layer(&format!("model.layers.{number}"), number + 1 == LAYERS);
    }
    layer("mtp.layers.0", true);
    tensors.add("mtp", "fc.weight", &[HIDDEN, 2 * HIDDEN]);
    for norm in ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"] {
        tensors.add("mtp", &format!("{norm}.weight"), &[HIDDEN]);
    }
    let [key_heads, value_heads, width] = RECURRENT;
    let more = format!(
        r#""shared_expert_intermediate_size": {WIDTH}, "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": {width}, "linear_num_key_heads": {key_heads},
        "linear_num_value_heads": {value_heads}, "linear_value_head_dim": {width},
        "rope_parameters": {{"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}},"#
    );
    tensors.write(folder, &settings("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", &more));
}

fn settings(class: &str, kind: &str, more: &str) -> String {
    format!(
        r#"{{"architectures": ["{class}"], "model_type": "{kind}", "vocab_size": 2048, "hidden_size": {HIDDEN},
        "intermediate_size": {WIDTH}, "moe_intermediate_size": {WIDTH}, "num_hidden_layers": {LAYERS}, "num_attention_heads": {HEADS},
        "num_key_value_heads": 1, "head_dim": {HEAD_WIDTH}, "num_experts": {EXPERTS}, "num_experts_per_tok": 2, "norm_topk_prob": true,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 8192, "tie_word_embeddings": true,
        {more} "bos_token_id": 0, "eos_token_id": 1}}"#
    )
}

/// Names and shapes.
#[derive(Default)]
struct Tensors(Vec<(String, Vec<usize>)>);

impl Tensors {
    fn add(&mut self, base: &str, name: &str, shape: &[usize]) {
        self.0.push((format!("{base}.{name}"), shape.to_vec()));
    }

    /// Attention with queries of `parts` parts; two parts include a gate.
    fn attention(&mut self, base: &str, parts: usize) {
        let queries = HEADS * HEAD_WIDTH;
        for (name, shape) in [
            ("q_norm", vec![HEAD_WIDTH]),
            ("k_norm", vec![HEAD_WIDTH]),
            ("q_proj", vec![parts * queries, HIDDEN]),
            ("k_proj", vec![HEAD_WIDTH, HIDDEN]),
            ("v_proj", vec![HEAD_WIDTH, HIDDEN]),
            ("o_proj", vec![HIDDEN, queries]),
        ] {
            self.add(base, &format!("self_attn.{name}.weight"), &shape);
        }
    }

    fn recurrent(&mut self, base: &str) {
        let [key_heads, value_heads, width] = RECURRENT;
        let values = value_heads * width;
        let channels = 2 * key_heads * width + values;
        for (name, shape) in [
            ("in_proj_qkv.weight", vec![channels, HIDDEN]),
            ("in_proj_z.weight", vec![values, HIDDEN]),
            ("in_proj_b.weight", vec![value_heads, HIDDEN]),
            ("in_proj_a.weight", vec![value_heads, HIDDEN]),
            ("conv1d.weight", vec![channels, 1, 4]),
            ("dt_bias", vec![value_heads]),
            ("A_log", vec![value_heads]),
            ("norm.weight", vec![width]),
            ("out_proj.weight", vec![HIDDEN, values]),
        ] {
            self.add(base, &format!("linear_attn.{name}"), &shape);
        }
    }

    /// The norms of a layer, its router and its experts.
    fn experts(&mut self, base: &str) {
        self.add(base, "input_layernorm.weight", &[HIDDEN]);
        self.add(base, "post_attention_layernorm.weight", &[HIDDEN]);
        self.add(base, "mlp.gate.weight", &[EXPERTS, HIDDEN]);
        for expert in 0..EXPERTS {
            self.block(&format!("{base}.mlp.experts.{expert}"));
        }
    }

    fn block(&mut self, base: &str) {
        self.add(base, "gate_proj.weight", &[WIDTH, HIDDEN]);
        self.add(base, "up_proj.weight", &[WIDTH, HIDDEN]);
        self.add(base, "down_proj.weight", &[HIDDEN, WIDTH]);
    }

    fn write(mut self, folder: &Path, settings: &str) {
        self.add("model", "embed_tokens.weight", &[2048, HIDDEN]);
        self.add("model", "norm.weight", &[HIDDEN]);
        fs::create_dir_all(folder).expect("a folder");
        for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
            fs::copy(fixture("model").join(file), folder.join(file)).expect("a copy");
        }
        fs::write(folder.join("config.json"), settings).expect("a file");
        write_tensors(&folder.join("model.safetensors"), &self.0, 11);
    }
}
