//! A random model whose layers cover every attention shape, and a reference for it in f64.

mod states;

use std::path::Path;
use std::sync::Arc;

use riffle_model::family::{Checkpoint, Fields, RotarySettings, feed_forward};
use riffle_model::{
    Activation, Attention, AttentionShape, Decoder, Family, KeyValue, Layer, Mlp, ModelConfig, ModelError, Norm,
    Projection, Rotary, Rows, Step,
};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// The family in the form of the engine's options.
pub static FAMILIES: [Family; 1] = [Family::new(&["MadeForCausalLM"], "made", configure, build)];

/// Window of the second layer in tokens, including the token itself.
pub const WINDOW: usize = 40;

const HIDDEN: usize = 48;
const INNER: usize = 64;
const VOCABULARY: usize = 61;
const SCALE: f32 = 0.3;
const EPSILON: f32 = 1e-6;
const THETA: f64 = 10_000.0;

const fn shape(heads: [usize; 2], widths: [usize; 2], shares: Option<usize>, has_sinks: bool) -> AttentionShape {
    AttentionShape {
        heads: heads[0],
        kv_heads: heads[1],
        key_width: widths[0],
        value_width: widths[1],
        shares,
        has_sinks,
        is_latent: false,
    }
}

/// Latents of 32 dimensions and 16 rotated ones, shared by all heads.
const LATENT: AttentionShape = AttentionShape {
    is_latent: true,
    ..shape([4, 1], [48, 32], None, true)
};

/// The layers: a shared one, a window with narrow values, one with the first layer's keys, one with wide values, a
/// window with the other window's keys, a latent one, and one with its latents.
const LAYERS: [AttentionShape; 7] = [
    shape([4, 2], [32, 32], None, false),
    shape([4, 1], [64, 32], None, true),
    shape([4, 2], [32, 32], Some(0), true),
    shape([2, 2], [16, 48], None, true),
    shape([4, 1], [64, 32], Some(1), false),
    LATENT,
    AttentionShape {
        shares: Some(5),
        has_sinks: false,
        ..LATENT
    },
];
const WINDOWS: [Option<usize>; 7] = [None, Some(WINDOW), None, None, Some(WINDOW), None, None];

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let mut config = ModelConfig::from_fields(fields, architecture)?;
    config.attention = LAYERS.to_vec();
    config.windows = WINDOWS.to_vec();
    config.attention_scale = SCALE;
    config.rotary_dim = 64;
    config.rotary_tables = 3;
    if fields.flag("has_states", false)? {
        states::configure(&mut config);
    }
    Ok(config)
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let rotary = |width| -> Result<Arc<Rotary>, ModelError> {
        let settings = RotarySettings::from_fields(fields, width, config.max_position)?;
        Ok(Arc::new(Rotary::new(&settings)))
    };
    let rotaries = [rotary(16)?, rotary(32)?, rotary(64)?];
    let final_norm = norm(weights, "model.norm.weight")?;
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    for layer in 0..LAYERS.len() {
        let layer = build_layer(layer, &rotaries, weights)?;
        decoder.layers.push(layer);
    }
    if config.has_states() {
        for layer in 0..states::COUNT {
            let layer = states::build(layer, (1, &rotaries[1]), weights)?;
            decoder.layers.push(layer);
        }
    }
    Ok(decoder)
}

fn norm(weights: &mut Checkpoint, name: &str) -> Result<Norm, ModelError> {
    Ok(Norm::Rms {
        weight: weights.vector(name, HIDDEN)?,
        epsilon: EPSILON,
    })
}

fn build_layer(layer: usize, rotaries: &[Arc<Rotary>; 3], weights: &mut Checkpoint) -> Result<Layer, ModelError> {
    let shape = LAYERS[layer];
    let name = |part: &str| format!("model.layers.{layer}.{part}");
    let before = Arc::new(norm(weights, &name("before.weight"))?);
    let behind = norm(weights, &name("behind.weight"))?;
    let sinks = shape.has_sinks.then(|| weights.vector(&name("sinks"), shape.heads));
    let sinks = sinks.transpose()?.map(Arc::from);
    let mut load = |part: &str, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, false);
    let rotated = shape.key_width - shape.first_rotated();
    let rotary_table = [16, 32, 64].iter().position(|width| *width == rotated);
    let rotary_table = rotary_table.expect("there is a rotation for every width");
    let query = load("query", shape.query_width(), HIDDEN)?;
    let key_value = match shape.shares {
        Some(_) => None,
        None => Some(KeyValue {
            key: load("key", shape.keys_width(), HIDDEN)?,
            value: if shape.is_latent {
                None
            } else {
                Some(load("value", shape.values_width(), HIDDEN)?)
            },
            value_norm: None,
            key_norm: None,
        }),
    };
    let output = Step::Project {
        projection: load("output", HIDDEN, shape.attended_width())?,
        from: Rows::Attended,
        to: Rows::Branch,
    };
    let mlp = Mlp::Plain {
        up: load("up", INNER, HIDDEN)?,
        down: load("down", HIDDEN, INNER)?,
        activation: Activation::Silu,
    };
    let mut steps = vec![output, Step::Add(Rows::Branch)];
    steps.extend(feed_forward(behind, mlp));
    Ok(Layer {
        attention: Some(Attention {
            norm: before,
            shape,
            query,
            latent_query: None,
            indexer: None,
            query_norm: None,
            key_value,
            sinks,
            rotary: Arc::clone(&rotaries[rotary_table]),
            rotary_table,
        }),
        steps,
    })
}

/// The shapes of all tensors.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for (layer, shape) in LAYERS.iter().enumerate() {
        let mut add = |part: &str, of: Vec<usize>| tensors.push((format!("model.layers.{layer}.{part}"), of));
        add("before.weight", vec![HIDDEN]);
        add("behind.weight", vec![HIDDEN]);
        add("query.weight", vec![shape.query_width(), HIDDEN]);
        if shape.shares.is_none() {
            add("key.weight", vec![shape.keys_width(), HIDDEN]);
        }
        if shape.values_width() > 0 {
            add("value.weight", vec![shape.values_width(), HIDDEN]);
        }
        if shape.has_sinks {
            add("sinks", vec![shape.heads]);
        }
        add("output.weight", vec![HIDDEN, shape.attended_width()]);
        add("up.weight", vec![INNER, HIDDEN]);
        add("down.weight", vec![HIDDEN, INNER]);
    }
    tensors
}

/// Weights derived from the tensor's name.
fn weights(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut state = name.bytes().fold(0x9E37_79B9u64, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    });
    let spread = if shape.len() == 1 {
        0.5
    } else {
        2.0 / (shape[1] as f32).sqrt()
    };
    let count = shape.iter().product();
    let noise = (0..count).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * spread
    });
    noise.collect()
}

/// Writes the model to a folder.
pub fn write(folder: &Path) {
    write_layers(folder, false);
}

/// Writes the model with additional recurrent layers to a folder.
pub fn write_with_states(folder: &Path) {
    write_layers(folder, true);
}

fn write_layers(folder: &Path, has_states: bool) {
    let states = if has_states { states::tensors() } else { Vec::new() };
    let layers = if has_states { states::COUNT } else { 0 };
    let config = serde_json::json!({
        "architectures": ["MadeForCausalLM"],
        "model_type": "made",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS.len() + layers,
        "has_states": has_states,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "rope_theta": THETA,
        "tie_word_embeddings": false,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    let tensors = tensors().into_iter().chain(states).map(|(name, shape)| {
        let bytes = weights(&name, &shape)
            .iter()
            .flat_map(|weight| weight.to_le_bytes())
            .collect();
        (name, shape, bytes)
    });
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = tensors.collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a tensor");
        (name.as_str(), view)
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("a file");
}

/// Rows times the transpose of a tensor, `[rows, outputs]`.
fn project(name: &str, outputs: usize, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let inputs = rows[0].len();
    let weights = weights(name, &[outputs, inputs]);
    let dot = |row: &Vec<f64>, weights: &[f32]| row.iter().zip(weights).map(|(a, b)| a * f64::from(*b)).sum();
    let of_row = |row: &Vec<f64>| weights.chunks_exact(inputs).map(|weights| dot(row, weights)).collect();
    rows.iter().map(of_row).collect()
}

fn normed(name: &str, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let weights = weights(name, &[HIDDEN]);
    let of_row = |row: &Vec<f64>| {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        let factor = (mean + f64::from(EPSILON)).sqrt().recip();
        row.iter()
            .zip(&weights)
            .map(|(x, weight)| x * factor * f64::from(*weight))
            .collect()
    };
    rows.iter().map(of_row).collect()
}

/// Rotates heads to the positions of their rows.
fn turn(rows: &mut [Vec<f64>], shape: &AttentionShape) {
    let width = shape.key_width - shape.first_rotated();
    for (position, row) in rows.iter_mut().enumerate() {
        for head in row.chunks_exact_mut(shape.key_width) {
            let head = &mut head[shape.first_rotated()..];
            for pair in 0..width / 2 {
                let angle = position as f64 / THETA.powf(2.0 * pair as f64 / width as f64);
                let (a, b) = (head[pair], head[pair + width / 2]);
                head[pair] = a * angle.cos() - b * angle.sin();
                head[pair + width / 2] = b * angle.cos() + a * angle.sin();
            }
        }
    }
}

/// Adds another's rows.
fn add(rows: &mut [Vec<f64>], more: &[Vec<f64>]) {
    for (row, more) in rows.iter_mut().zip(more) {
        row.iter_mut().zip(more).for_each(|(x, more)| *x += more);
    }
}

/// The elements of each token.
type RowsOf = Vec<Vec<f64>>;

/// The logits of every token, `[tokens][vocabulary]`, in f64.
pub fn logits(tokens: &[u32]) -> Vec<Vec<f64>> {
    project(
        "lm_head.weight",
        VOCABULARY,
        &normed("model.norm.weight", &read(tokens)),
    )
}

/// The logits of every token of the model with states.
pub fn logits_with_states(tokens: &[u32]) -> Vec<Vec<f64>> {
    let mut hidden = read(tokens);
    states::read(&mut hidden);
    project("lm_head.weight", VOCABULARY, &normed("model.norm.weight", &hidden))
}

/// The rows after the layers without a state.
fn read(tokens: &[u32]) -> RowsOf {
    let embedding = weights("model.embed_tokens.weight", &[VOCABULARY, HIDDEN]);
    let row = |token: &u32| {
        embedding[*token as usize * HIDDEN..][..HIDDEN]
            .iter()
            .map(|x| f64::from(*x))
            .collect()
    };
    let mut hidden: Vec<Vec<f64>> = tokens.iter().map(row).collect();
    let mut cached: Vec<(RowsOf, RowsOf)> = Vec::new();
    for (layer, shape) in LAYERS.iter().enumerate() {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let input = normed(&name("before.weight"), &hidden);
        let mut queries = project(&name("query.weight"), shape.query_width(), &input);
        turn(&mut queries, shape);
        let own = match shape.shares {
            Some(other) => cached[other].clone(),
            None => {
                let mut keys = project(&name("key.weight"), shape.keys_width(), &input);
                turn(&mut keys, shape);
                let values = if shape.is_latent {
                    keys.iter().map(|key| key[..shape.value_width].to_vec()).collect()
                } else {
                    project(&name("value.weight"), shape.values_width(), &input)
                };
                (keys, values)
            }
        };
        let sinks = shape.has_sinks.then(|| weights(&name("sinks"), &[shape.heads]));
        let attended: Vec<Vec<f64>> = (0..tokens.len())
            .map(|row| attend(shape, WINDOWS[layer], (&queries[row], row), &own, sinks.as_deref()))
            .collect();
        add(&mut hidden, &project(&name("output.weight"), HIDDEN, &attended));
        let input = normed(&name("behind.weight"), &hidden);
        let mut inner = project(&name("up.weight"), INNER, &input);
        inner.iter_mut().flatten().for_each(|x| *x /= 1.0 + (-*x).exp());
        add(&mut hidden, &project(&name("down.weight"), HIDDEN, &inner));
        cached.push(own);
    }
    hidden
}

/// The attention result of a row, `[heads, value_width]`.
fn attend(
    shape: &AttentionShape,
    window: Option<usize>,
    (queries, row): (&[f64], usize),
    (keys, values): &(RowsOf, RowsOf),
    sinks: Option<&[f32]>,
) -> Vec<f64> {
    let mut attended = vec![0.0; shape.attended_width()];
    let first = (row + 1).saturating_sub(window.unwrap_or(usize::MAX));
    for head in 0..shape.heads {
        let kv_head = head / shape.group();
        let query = &queries[head * shape.key_width..][..shape.key_width];
        let logit = |token: usize| {
            let key = &keys[token][kv_head * shape.key_width..][..shape.key_width];
            f64::from(SCALE) * query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>()
        };
        let weights: Vec<f64> = (first..=row).map(|token| logit(token).exp()).collect();
        let sink = sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
        let total = sink + weights.iter().sum::<f64>();
        let out = &mut attended[head * shape.value_width..][..shape.value_width];
        for (token, weight) in (first..=row).zip(weights) {
            let value = &values[token][kv_head * shape.value_width..][..shape.value_width];
            out.iter_mut()
                .zip(value)
                .for_each(|(out, value)| *out += weight / total * value);
        }
    }
    attended
}
