//! The time of a Gated DeltaNet layer beside an attention layer of the same width.
//!
//!     cargo run --release -p riffle-engine --example token_mixers [HIDDEN [TOKENS [THREADS]]]
//!
//! Writes two models of random weights with the shape of Qwen3.5 at that width: four layers of attention, and one of
//! them with three Gated DeltaNet layers. The feed-forward blocks are 64 wide so that the mixers show. The time of a
//! DeltaNet layer is what the second model takes beyond a quarter of the first, by three. With one thread it is time on
//! the processor where the system tells it, so that other work beside does not count.

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

use riffle_engine::{Engine, EngineOptions, Session, with_threads};
use serde_json::{Map, Value, json};

type Failure = Box<dyn Error + Send + Sync>;

const LAYERS: usize = 4;
const HEAD_DIM: usize = 256;
const LINEAR_HEAD_DIM: usize = 128;
const VOCAB_SIZE: usize = 256;
const INNER: usize = 64;
const DECODED_TOKENS: usize = 32;
const REPEATS: usize = 3;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |default: usize| arguments.next().unwrap_or(Ok(default));
    let (hidden, tokens, threads) = (next(1024)?, next(4096)?, next(1)?);
    let folder = tempfile::tempdir()?;
    let [attention, mixed] = [[false; LAYERS], [true, true, true, false]].map(|linear| {
        write_model(folder.path(), hidden, linear)?;
        with_threads(Some(threads), || times(folder.path(), tokens, threads == 1))?
    });
    let (attention, mixed) = (attention?, mixed?);
    println!("hidden {hidden}, {tokens} tokens, {threads} threads, bf16 weights, f16 pages");
    for (what, unit, attention, mixed) in [
        ("prefill", "tokens", attention.0, mixed.0),
        ("decode", "token", attention.1, mixed.1),
    ] {
        let attention = attention / LAYERS as f64;
        let linear = (mixed - attention) / (LAYERS - 1) as f64;
        println!(
            "{what:8} of all {unit}: attention layer {:9.3} ms, DeltaNet layer {:9.3} ms, ratio {:.2}",
            attention * 1e3,
            linear * 1e3,
            linear / attention
        );
    }
    Ok(())
}

/// Best seconds of a prefill, and of a token after it.
fn times(path: &Path, tokens: usize, one_thread: bool) -> Result<(f64, f64), Failure> {
    let options = EngineOptions::default().with_context_tokens(Some(tokens + DECODED_TOKENS));
    let engine = Engine::load(path, options)?;
    let prompt: Vec<u32> = (0..tokens).map(|i| (i * 31 % VOCAB_SIZE) as u32).collect();
    let mut session = Session::new(&engine)?;
    let (mut prefill, mut decode) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..REPEATS {
        session.truncate(0)?;
        let start = seconds(one_thread);
        session.prefill(&prompt, &mut |_| ControlFlow::Continue(()))?;
        prefill = prefill.min(seconds(one_thread) - start);
        let start = seconds(one_thread);
        for token in 0..DECODED_TOKENS {
            session.advance(token as u32)?;
        }
        decode = decode.min((seconds(one_thread) - start) / DECODED_TOKENS as f64);
    }
    Ok((prefill, decode))
}

/// Seconds this thread has run, or since the first call.
fn seconds(of_this_thread: bool) -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let ran = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ran = ran.and_then(|line| line.split(' ').next()?.parse::<u64>().ok());
    match ran {
        Some(nanoseconds) if of_this_thread => nanoseconds as f64 * 1e-9,
        _ => START.elapsed().as_secs_f64(),
    }
}

fn write_model(folder: &Path, hidden: usize, linear: [bool; LAYERS]) -> Result<(), Failure> {
    let heads = hidden / HEAD_DIM * 2;
    let kv_heads = (heads / 4).max(1);
    let (key_heads, value_heads) = (16, (hidden / 128).max(16));
    let config = json!({
        "architectures": ["Qwen3_5ForCausalLM"], "vocab_size": VOCAB_SIZE, "hidden_size": hidden,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": HEAD_DIM, "max_position_embeddings": 1 << 18,
        "tie_word_embeddings": true, "linear_key_head_dim": LINEAR_HEAD_DIM,
        "linear_value_head_dim": LINEAR_HEAD_DIM, "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads, "linear_conv_kernel_dim": 4,
        "layer_types": linear.map(|linear| if linear { "linear_attention" } else { "full_attention" }),
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let values = value_heads * LINEAR_HEAD_DIM;
    let channels = 2 * key_heads * LINEAR_HEAD_DIM + values;
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB_SIZE, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for (layer, linear) in linear.into_iter().enumerate() {
        let parts: &[(&str, Vec<usize>)] = if linear {
            &[
                ("linear_attn.in_proj_qkv.weight", vec![channels, hidden]),
                ("linear_attn.in_proj_z.weight", vec![values, hidden]),
                ("linear_attn.in_proj_b.weight", vec![value_heads, hidden]),
                ("linear_attn.in_proj_a.weight", vec![value_heads, hidden]),
                ("linear_attn.conv1d.weight", vec![channels, 1, 4]),
                ("linear_attn.A_log", vec![value_heads]),
                ("linear_attn.dt_bias", vec![value_heads]),
                ("linear_attn.norm.weight", vec![LINEAR_HEAD_DIM]),
                ("linear_attn.out_proj.weight", vec![hidden, values]),
            ]
        } else {
            &[
                ("self_attn.q_proj.weight", vec![2 * heads * HEAD_DIM, hidden]),
                ("self_attn.k_proj.weight", vec![kv_heads * HEAD_DIM, hidden]),
                ("self_attn.v_proj.weight", vec![kv_heads * HEAD_DIM, hidden]),
                ("self_attn.o_proj.weight", vec![hidden, heads * HEAD_DIM]),
                ("self_attn.q_norm.weight", vec![HEAD_DIM]),
                ("self_attn.k_norm.weight", vec![HEAD_DIM]),
            ]
        };
        let around = [
            ("input_layernorm.weight", vec![hidden]),
            ("post_attention_layernorm.weight", vec![hidden]),
            ("mlp.gate_proj.weight", vec![INNER, hidden]),
            ("mlp.up_proj.weight", vec![INNER, hidden]),
            ("mlp.down_proj.weight", vec![hidden, INNER]),
        ];
        for (part, shape) in parts.iter().chain(&around) {
            tensors.push((format!("model.layers.{layer}.{part}"), shape.clone()));
        }
    }
    write_tensors(&folder.join("model.safetensors"), &tensors)
}

/// Random bf16 values of the size that keeps activations near one.
fn write_tensors(path: &Path, tensors: &[(String, Vec<usize>)]) -> Result<(), Failure> {
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let tensor = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), tensor);
    }
    let header = Value::Object(header).to_string();
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for (_, shape) in tensors {
        let size = 1.7 / (shape[shape.len() - 1] as f32).sqrt();
        for _ in 0..shape.iter().product() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let value = ((random >> 40) as f32 / (1 << 23) as f32 - 1.0) * size;
            file.write_all(&((value.to_bits() >> 16) as u16).to_le_bytes())?;
        }
    }
    Ok(file.flush()?)
}
