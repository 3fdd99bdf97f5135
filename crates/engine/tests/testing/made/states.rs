//! Recurrent layers after the other layers of the random model: one of each kind, the last beside attention.

use std::sync::Arc;

use riffle_model::family::{DeltaNetStorage, Mamba2Norm, Mamba2Settings};
use riffle_model::{
    GatedDeltaNet, GatedDeltaNetShape, Mamba2, Mamba2Shape, Mixer, ShortConvolution, ShortConvolutionShape, StateShape,
};

use super::*;

const DELTA_NET: GatedDeltaNetShape = GatedDeltaNetShape {
    key_heads: 1,
    value_heads: 2,
    key_dim: 8,
    value_dim: 12,
    kernel: 4,
};
const CONVOLUTION: ShortConvolutionShape = ShortConvolutionShape {
    channels: 40,
    kernel: 3,
};
const MAMBA2: Mamba2Shape = Mamba2Shape {
    heads: 4,
    head_dim: 10,
    state_width: 6,
    groups: 2,
    kernel: 4,
};
const LIMITS: [f32; 2] = [0.1, 2.0];

/// The states, each with true if its layer also has attention.
const STATES: [(StateShape, bool); 3] = [
    (StateShape::GatedDeltaNet(DELTA_NET), false),
    (StateShape::ShortConvolution(CONVOLUTION), false),
    (StateShape::Mamba2(MAMBA2), true),
];

/// The attention of the last layer.
const ATTENTION: AttentionShape = shape([4, 2], [32, 32], None, false);

/// Number of recurrent layers.
pub(super) const COUNT: usize = STATES.len();

pub(super) fn configure(config: &mut ModelConfig) {
    let others = config.attention.len();
    config.states = vec![None; others];
    config.attends = vec![true; others];
    for (state, attends) in STATES {
        config.attention.push(ATTENTION);
        config.windows.push(None);
        config.states.push(Some(state));
        config.attends.push(attends);
    }
}

fn name(layer: usize, part: &str) -> String {
    format!("model.layers.{}.{part}", LAYERS.len() + layer)
}

/// Builds a layer; `rotary` is the rotation of its attention, and its index in the model.
pub(super) fn build(
    layer: usize,
    rotary: (usize, &Arc<Rotary>),
    weights: &mut Checkpoint,
) -> Result<Layer, ModelError> {
    let name = |part: &str| name(layer, part);
    let before = Arc::new(norm(weights, &name("before.weight"))?);
    let behind = norm(weights, &name("behind.weight"))?;
    let (state, attends) = STATES[layer];
    let mixer = build_mixer(state, &name("mixer"), weights)?;
    let mut load = |part: &str, outputs, inputs| Projection::load(weights, &name(part), outputs, inputs, false);
    let mlp = Mlp::Plain {
        up: load("up", INNER, HIDDEN)?,
        down: load("down", HIDDEN, INNER)?,
        activation: Activation::Silu,
    };
    let normalise = Step::Normalise {
        norm: Arc::clone(&before),
        from: Rows::Hidden,
        to: Rows::Normed,
    };
    let mut steps = vec![normalise, Step::Recur(mixer), Step::Add(Rows::Branch)];
    let mut attention = None;
    if attends {
        attention = Some(Attention {
            norm: before,
            shape: ATTENTION,
            query: load("query", ATTENTION.query_width(), HIDDEN)?,
            latent_query: None,
            indexer: None,
            query_norm: None,
            key_value: Some(KeyValue {
                key: load("key", ATTENTION.keys_width(), HIDDEN)?,
                value: Some(load("value", ATTENTION.values_width(), HIDDEN)?),
                value_norm: None,
                key_norm: None,
            }),
            sinks: None,
            rotary: Arc::clone(rotary.1),
            rotary_table: rotary.0,
        });
        let output = Step::Project {
            projection: load("output", HIDDEN, ATTENTION.attended_width())?,
            from: Rows::Attended,
            to: Rows::Branch,
        };
        steps.extend([output, Step::Add(Rows::Branch)]);
    }
    steps.extend(feed_forward(behind, mlp));
    Ok(Layer { attention, steps })
}

/// The mixer of a layer whose tensors' names begin with `name`.
fn build_mixer(state: StateShape, name: &str, weights: &mut Checkpoint) -> Result<Mixer, ModelError> {
    Ok(match state {
        StateShape::GatedDeltaNet(shape) => {
            let storage = DeltaNetStorage::default();
            let mixer = GatedDeltaNet::load(weights, name, &shape, HIDDEN, EPSILON, storage)?;
            Mixer::GatedDeltaNet(Box::new(mixer))
        }
        StateShape::ShortConvolution(shape) => {
            let mixer = ShortConvolution::load(weights, name, &shape, HIDDEN, false)?;
            Mixer::ShortConvolution(Box::new(mixer))
        }
        StateShape::Mamba2(shape) => {
            let settings = Mamba2Settings {
                time_step_limits: LIMITS,
                norm: Some(Mamba2Norm {
                    groups: shape.groups,
                    epsilon: EPSILON,
                    before_gate: false,
                }),
                ..Mamba2Settings::default()
            };
            Mixer::Mamba2(Box::new(Mamba2::load(weights, name, &shape, HIDDEN, settings)?))
        }
        other => not_made(other),
    })
}

/// The shapes of all tensors.
pub(super) fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = Vec::new();
    for (layer, (state, attends)) in STATES.into_iter().enumerate() {
        let mut add = |part: &str, of: Vec<usize>| tensors.push((name(layer, part), of));
        add("before.weight", vec![HIDDEN]);
        add("behind.weight", vec![HIDDEN]);
        add("up.weight", vec![INNER, HIDDEN]);
        add("down.weight", vec![HIDDEN, INNER]);
        if attends {
            add("query.weight", vec![ATTENTION.query_width(), HIDDEN]);
            add("key.weight", vec![ATTENTION.keys_width(), HIDDEN]);
            add("value.weight", vec![ATTENTION.values_width(), HIDDEN]);
            add("output.weight", vec![HIDDEN, ATTENTION.attended_width()]);
        }
        match state {
            StateShape::GatedDeltaNet(shape) => {
                let (heads, width) = (shape.value_heads, shape.value_width());
                add("mixer.in_proj_qkv.weight", vec![shape.channels(), HIDDEN]);
                add("mixer.in_proj_z.weight", vec![width, HIDDEN]);
                add("mixer.in_proj_b.weight", vec![heads, HIDDEN]);
                add("mixer.in_proj_a.weight", vec![heads, HIDDEN]);
                add("mixer.conv1d.weight", vec![shape.channels(), 1, shape.kernel]);
                add("mixer.A_log", vec![heads]);
                add("mixer.dt_bias", vec![heads]);
                add("mixer.norm.weight", vec![shape.value_dim]);
                add("mixer.out_proj.weight", vec![HIDDEN, width]);
            }
            StateShape::ShortConvolution(ShortConvolutionShape { channels, kernel }) => {
                add("mixer.in_proj.weight", vec![3 * channels, HIDDEN]);
                add("mixer.conv.weight", vec![channels, 1, kernel]);
                add("mixer.out_proj.weight", vec![HIDDEN, channels]);
            }
            StateShape::Mamba2(shape) => {
                let (inner, channels, heads) = (shape.inner_width(), shape.channels(), shape.heads);
                add("mixer.in_proj.weight", vec![inner + channels + heads, HIDDEN]);
                add("mixer.conv1d.weight", vec![channels, 1, shape.kernel]);
                add("mixer.conv1d.bias", vec![channels]);
                add("mixer.A_log", vec![heads]);
                add("mixer.dt_bias", vec![heads]);
                add("mixer.D", vec![heads]);
                add("mixer.norm.weight", vec![inner]);
                add("mixer.out_proj.weight", vec![HIDDEN, inner]);
            }
            other => not_made(other),
        }
    }
    tensors
}

/// Passes rows through the layers, in f64.
pub(super) fn read(hidden: &mut [Vec<f64>]) {
    for (layer, (state, attends)) in STATES.into_iter().enumerate() {
        let name = |part: &str| name(layer, part);
        let input = normed(&name("before.weight"), hidden);
        let mixed = match state {
            StateShape::GatedDeltaNet(_) => delta_net(&name("mixer"), &input),
            StateShape::ShortConvolution(_) => short_convolution(&name("mixer"), &input),
            StateShape::Mamba2(_) => mamba2(&name("mixer"), &input),
            other => not_made(other),
        };
        add(hidden, &mixed);
        if attends {
            let mut queries = project(&name("query.weight"), ATTENTION.query_width(), &input);
            let mut keys = project(&name("key.weight"), ATTENTION.keys_width(), &input);
            turn(&mut queries, &ATTENTION);
            turn(&mut keys, &ATTENTION);
            let own = (keys, project(&name("value.weight"), ATTENTION.values_width(), &input));
            let attended: RowsOf = (0..hidden.len())
                .map(|row| attend(&ATTENTION, None, (&queries[row], row), &own, None))
                .collect();
            add(hidden, &project(&name("output.weight"), HIDDEN, &attended));
        }
        let mut inner = project(&name("up.weight"), INNER, &normed(&name("behind.weight"), hidden));
        inner.iter_mut().flatten().for_each(|x| *x = silu(*x));
        add(hidden, &project(&name("down.weight"), HIDDEN, &inner));
    }
}

/// Tests of single families cover the other states.
fn not_made(state: StateShape) -> ! {
    panic!("the made-up model has no layer with {state:?}")
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

/// A causal convolution of each channel.
fn convolve(name: &str, kernel: usize, bias: Option<Vec<f32>>, rows: &[Vec<f64>]) -> RowsOf {
    let channels = rows[0].len();
    let taps = weights(name, &[channels, 1, kernel]);
    let value = |row: usize, channel: usize| {
        let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[channel]));
        let seen = (0..kernel).filter(|tap| row + tap + 1 >= kernel);
        let terms = seen.map(|tap| f64::from(taps[channel * kernel + tap]) * rows[row + tap + 1 - kernel][channel]);
        bias + terms.sum::<f64>()
    };
    let of_row = |row| (0..channels).map(|channel| value(row, channel)).collect();
    (0..rows.len()).map(of_row).collect()
}

/// The inputs of a memory head for one token.
struct Token<'a> {
    key: Vec<f64>,
    query: Vec<f64>,
    value: &'a [f64],
    strength: f64,
    decay: f64,
}

/// Outputs of a memory head. With `corrects`, writes subtract the key's old value (delta rule).
fn remember<'a>(corrects: bool, tokens: impl Iterator<Item = Token<'a>>) -> RowsOf {
    let mut memory: RowsOf = Vec::new();
    let of = |memory: &RowsOf, row: &[f64], column: usize| -> f64 {
        memory.iter().zip(row).map(|(memory, x)| memory[column] * x).sum()
    };
    let read = tokens.map(|token| {
        memory.resize(token.key.len(), vec![0.0; token.value.len()]);
        memory.iter_mut().flatten().for_each(|x| *x *= token.decay.exp());
        for (column, value) in token.value.iter().enumerate() {
            let held = if corrects { of(&memory, &token.key, column) } else { 0.0 };
            for (memory, key) in memory.iter_mut().zip(&token.key) {
                memory[column] += key * token.strength * (value - held);
            }
        }
        let columns = 0..token.value.len();
        columns.map(|column| of(&memory, &token.query, column)).collect()
    });
    read.collect()
}

fn delta_net(name: &str, input: &[Vec<f64>]) -> RowsOf {
    let GatedDeltaNetShape {
        value_heads,
        key_dim,
        value_dim,
        ..
    } = DELTA_NET;
    let part = |part: &str| format!("{name}.{part}");
    let raw = project(&part("in_proj_qkv.weight"), DELTA_NET.channels(), input);
    let mut mixed = convolve(&part("conv1d.weight"), DELTA_NET.kernel, None, &raw);
    mixed.iter_mut().flatten().for_each(|x| *x = silu(*x));
    let mut gates = project(&part("in_proj_z.weight"), DELTA_NET.value_width(), input);
    let strengths = project(&part("in_proj_b.weight"), value_heads, input);
    let decays = project(&part("in_proj_a.weight"), value_heads, input);
    let [rates, biases] = ["A_log", "dt_bias"].map(|own| weights(&part(own), &[value_heads]));
    let norm = weights(&part("norm.weight"), &[value_dim]);
    for head in 0..value_heads {
        let tokens = mixed.iter().enumerate().map(|(row, mixed)| {
            let unit = |from: usize, length: f64| {
                let values = &mixed[from..from + key_dim];
                let scale = length / (values.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                values.iter().map(|x| x * scale).collect()
            };
            Token {
                query: unit(0, (key_dim as f64).sqrt().recip()),
                key: unit(key_dim, 1.0),
                value: &mixed[2 * key_dim + head * value_dim..][..value_dim],
                strength: 1.0 / (1.0 + (-strengths[row][head]).exp()),
                decay: -f64::from(rates[head]).exp() * softplus(decays[row][head] + f64::from(biases[head])),
            }
        });
        for (read, gates) in remember(true, tokens).iter().zip(&mut gates) {
            let mean = read.iter().map(|x| x * x).sum::<f64>() / value_dim as f64;
            let scale = (mean + f64::from(EPSILON)).sqrt().recip();
            let gates = &mut gates[head * value_dim..][..value_dim];
            for ((gate, read), norm) in gates.iter_mut().zip(read).zip(&norm) {
                *gate = read * scale * f64::from(*norm) * silu(*gate);
            }
        }
    }
    project(&part("out_proj.weight"), HIDDEN, &gates)
}

fn short_convolution(name: &str, input: &[Vec<f64>]) -> RowsOf {
    let ShortConvolutionShape { channels, kernel } = CONVOLUTION;
    let part = |part: &str| format!("{name}.{part}");
    let projected = project(&part("in_proj.weight"), 3 * channels, input);
    let product = |row: &Vec<f64>| (0..channels).map(|at| row[at] * row[2 * channels + at]).collect();
    let raw: RowsOf = projected.iter().map(product).collect();
    let mut mixed = convolve(&part("conv.weight"), kernel, None, &raw);
    for (mixed, row) in mixed.iter_mut().zip(&projected) {
        let gates = &row[channels..2 * channels];
        mixed.iter_mut().zip(gates).for_each(|(mixed, gate)| *mixed *= gate);
    }
    project(&part("out_proj.weight"), HIDDEN, &mixed)
}

fn mamba2(name: &str, input: &[Vec<f64>]) -> RowsOf {
    let Mamba2Shape {
        heads,
        head_dim,
        state_width,
        groups,
        kernel,
    } = MAMBA2;
    let (inner, channels) = (MAMBA2.inner_width(), MAMBA2.channels());
    let part = |part: &str| format!("{name}.{part}");
    let projected = project(&part("in_proj.weight"), inner + channels + heads, input);
    let raw: RowsOf = projected
        .iter()
        .map(|row| row[inner..inner + channels].to_vec())
        .collect();
    let bias = weights(&part("conv1d.bias"), &[channels]);
    let mut mixed = convolve(&part("conv1d.weight"), kernel, Some(bias), &raw);
    mixed.iter_mut().flatten().for_each(|x| *x = silu(*x));
    let [rates, biases, skips] = ["A_log", "dt_bias", "D"].map(|own| weights(&part(own), &[heads]));
    let mut gated: RowsOf = projected.iter().map(|row| row[..inner].to_vec()).collect();
    for head in 0..heads {
        let group = head / (heads / groups);
        let tokens = mixed.iter().zip(&projected).map(|(mixed, row)| {
            let step = softplus(row[inner + channels + head] + f64::from(biases[head]));
            let step = step.clamp(f64::from(LIMITS[0]), f64::from(LIMITS[1]));
            let of_group = |from: usize| mixed[from + group * state_width..][..state_width].to_vec();
            Token {
                key: of_group(inner),
                query: of_group(inner + groups * state_width),
                value: &mixed[head * head_dim..][..head_dim],
                strength: step,
                decay: -f64::from(rates[head]).exp() * step,
            }
        });
        for (row, read) in remember(false, tokens).iter().enumerate() {
            for (at, read) in read.iter().enumerate() {
                let at = head * head_dim + at;
                let result = read + f64::from(skips[head]) * mixed[row][at];
                gated[row][at] = result * silu(gated[row][at]);
            }
        }
    }
    let norm = weights(&part("norm.weight"), &[inner]);
    let width = inner / groups;
    for row in &mut gated {
        for (group, norm) in row.chunks_exact_mut(width).zip(norm.chunks_exact(width)) {
            let mean = group.iter().map(|x| x * x).sum::<f64>() / width as f64;
            let scale = (mean + f64::from(EPSILON)).sqrt().recip();
            group
                .iter_mut()
                .zip(norm)
                .for_each(|(x, norm)| *x *= scale * f64::from(*norm));
        }
    }
    project(&part("out_proj.weight"), HIDDEN, &gated)
}
