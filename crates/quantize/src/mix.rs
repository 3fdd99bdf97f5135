//! Mixes: the type of every tensor, by llama.cpp's rules (`llama-quant.cpp`, `llama_tensor_get_type`).

use std::str::FromStr;

use riffle_linear::WeightFormat::{self, *};

use crate::QuantizeError;
use crate::rules::unknown_mix;

/// A mix of types by llama.cpp's name, such as `Q4_K_M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    row: &'static Row,
}

#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: &'static str,
    /// Number of the mix in `general.file_type`.
    file_type: u32,
    /// The type of tensors without a rule.
    format: WeightFormat,
    kind: Kind,
}

/// Kinds of mixes, by their rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One type for all tensors except the head.
    Plain,
    Q2K,
    Q2KS,
    Q3KM,
    Q3KL,
    Q4KS,
    Q4KM,
    Q5KM,
    Iq4,
    Iq3Xxs,
    Iq3Xs,
    Iq3S,
    Iq3M,
    /// Mixes of at most two bits. True raises important tensors to IQ3_S; false raises them to Q2_K.
    Low(bool),
    Q4_0,
    Q5_0,
    Ternary,
}

const fn row(name: &'static str, file_type: u32, format: WeightFormat, kind: Kind) -> Row {
    Row {
        name,
        file_type,
        format,
        kind,
    }
}

const MIXES: &[Row] = &[
    row("F32", 0, F32, Kind::Plain),
    row("F16", 1, F16, Kind::Plain),
    row("BF16", 32, Bf16, Kind::Plain),
    row("Q8_0", 7, Q8_0, Kind::Plain),
    row("Q6_K", 18, Q6K, Kind::Plain),
    row("Q5_K_M", 17, Q5K, Kind::Q5KM),
    row("Q5_K_S", 16, Q5K, Kind::Plain),
    row("Q5_1", 9, Q5_1, Kind::Plain),
    row("Q5_0", 8, Q5_0, Kind::Q5_0),
    row("Q4_K_M", 15, Q4K, Kind::Q4KM),
    row("Q4_K_S", 14, Q4K, Kind::Q4KS),
    row("IQ4_NL", 25, Iq4Nl, Kind::Iq4),
    row("IQ4_XS", 30, Iq4Xs, Kind::Iq4),
    row("Q4_1", 3, Q4_1, Kind::Plain),
    row("Q4_0", 2, Q4_0, Kind::Q4_0),
    row("Q3_K_L", 13, Q3K, Kind::Q3KL),
    row("Q3_K_M", 12, Q3K, Kind::Q3KM),
    row("Q3_K_S", 11, Q3K, Kind::Plain),
    row("IQ3_M", 27, Iq3S, Kind::Iq3M),
    row("IQ3_S", 26, Iq3S, Kind::Iq3S),
    row("IQ3_XS", 22, Iq3S, Kind::Iq3Xs),
    row("IQ3_XXS", 23, Iq3Xxs, Kind::Iq3Xxs),
    row("Q2_K", 10, Q2K, Kind::Q2K),
    row("Q2_K_S", 21, Q2K, Kind::Q2KS),
    row("IQ2_M", 29, Iq2S, Kind::Low(true)),
    row("IQ2_S", 28, Iq2Xs, Kind::Low(true)),
    row("IQ2_XS", 20, Iq2Xs, Kind::Low(false)),
    row("IQ2_XXS", 19, Iq2Xxs, Kind::Low(false)),
    row("IQ1_M", 31, Iq1M, Kind::Low(false)),
    row("IQ1_S", 24, Iq1S, Kind::Low(false)),
    row("TQ2_0", 37, Tq2_0, Kind::Ternary),
    row("TQ1_0", 36, Tq1_0, Kind::Ternary),
];

/// A tensor's role in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Output,
    Embedding,
    Query,
    Key,
    Value,
    QueryKeyValue,
    AttentionOutput,
    Up,
    Gate,
    Down,
    Other,
}

/// Facts of a model that decide its mix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    /// Query heads of a KV head.
    pub(crate) group: usize,
    pub(crate) experts: usize,
    /// True if the embedding is the head too.
    pub(crate) is_tied: bool,
    pub(crate) has_importance: bool,
    /// True for 80 layers with groups of eight: models of 70 billion weights with small values.
    pub(crate) is_70b: bool,
}

impl Mix {
    /// Every mix, from large to small.
    pub fn all() -> impl Iterator<Item = Mix> {
        MIXES.iter().map(|row| Mix { row })
    }

    /// Name of the mix.
    pub fn name(self) -> &'static str {
        self.row.name
    }

    /// Number of the mix in `general.file_type`.
    pub fn file_type(self) -> u32 {
        self.row.file_type
    }

    /// The type of tensors without a rule.
    pub fn format(self) -> WeightFormat {
        self.row.format
    }

    /// The type of a matrix, by its name and layer.
    pub(crate) fn format_of(self, name: &str, columns: usize, shape: &Shape) -> WeightFormat {
        let format = self.row.format;
        if matches!(format, F32 | F16 | Bf16) {
            return format;
        }
        let part = part_of(name);
        let is_head = part == Part::Output || part == Part::Embedding && shape.is_tied;
        match (is_head, part) {
            // Rows that do not fit the mix's own type get eight bits in every mix.
            (true, _) if !columns.is_multiple_of(format.block_weights()) => Q8_0,
            (true, _) => match self.row.kind {
                Kind::Low(_) | Kind::Iq3Xxs => Q5K,
                _ if format == Q8_0 => format,
                _ => Q6K,
            },
            (_, Part::Embedding) => match self.row.kind {
                Kind::Low(true) | Kind::Iq3Xxs => Iq3S,
                Kind::Low(false) => Q2K,
                Kind::Ternary => Q4K,
                _ => format,
            },
            _ => self.in_layer(part, layer_of(name), shape).unwrap_or(format),
        }
    }

    /// The type of a part of a layer, if it differs from the mix's type.
    fn in_layer(self, part: Part, layer: usize, shape: &Shape) -> Option<WeightFormat> {
        let kind = self.row.kind;
        if let Kind::Low(raises) = kind {
            let is_one_bit = matches!(self.row.format, Iq1S | Iq1M);
            return match part {
                Part::AttentionOutput if is_one_bit && shape.experts != 8 => Some(Iq2Xxs),
                _ => low(part, layer, shape, if raises { Iq3S } else { Q2K }, raises),
            };
        }
        match part {
            Part::Value | Part::QueryKeyValue if shape.experts == 8 => Some(Q8_0),
            Part::Value | Part::QueryKeyValue => {
                let format = self.value(layer, shape).unwrap_or(self.row.format);
                let format = if shape.is_70b && matches!(format, Q3K | Q4K) {
                    Q5K
                } else {
                    format
                };
                Some(format)
            }
            Part::Key if shape.experts == 8 => Some(Q8_0),
            Part::Query | Part::Key => match kind {
                Kind::Iq3Xs => Some(Iq3Xxs),
                Kind::Iq3Xxs => Some(Iq2S),
                _ => None,
            },
            Part::Down => self.down(layer, shape),
            Part::AttentionOutput => attention_output(kind, shape),
            Part::Gate | Part::Up => {
                let is_inner = layer >= shape.layers / 8 && layer < 7 * shape.layers / 8;
                (kind == Kind::Iq3Xs && is_inner).then_some(Iq3Xxs)
            }
            Part::Output | Part::Embedding | Part::Other => None,
        }
    }

    fn value(self, layer: usize, shape: &Shape) -> Option<WeightFormat> {
        let is_grouped = shape.group >= 4;
        match self.row.kind {
            Kind::Q2K => Some(if is_grouped { Q4K } else { Q3K }),
            Kind::Q2KS | Kind::Iq3Xs | Kind::Iq3S => is_grouped.then_some(Q4K),
            Kind::Iq3Xxs if is_grouped => Some(Q4K),
            Kind::Iq3Xxs => Some(if shape.has_importance { Iq3Xxs } else { Iq3S }),
            Kind::Iq3M => Some(Q4K),
            Kind::Q3KM => Some(if layer < 2 { Q5K } else { Q4K }),
            Kind::Q3KL => Some(Q5K),
            Kind::Iq4 => is_grouped.then_some(Q5K),
            Kind::Q4KM | Kind::Q5KM => uses_more_bits(layer, shape.layers).then_some(Q6K),
            Kind::Q4KS => (layer < 4).then_some(Q5K),
            _ => None,
        }
    }

    fn down(self, layer: usize, shape: &Shape) -> Option<WeightFormat> {
        let (layers, is_early) = (shape.layers, layer < shape.layers / 8);
        match self.row.kind {
            Kind::Q2K => Some(Q3K),
            Kind::Q2KS => is_early.then_some(Q4K),
            Kind::Iq3Xxs if !shape.has_importance => Some(if is_early { Q4K } else { Q3K }),
            Kind::Q3KM => Some(if layer < layers / 16 { Q5K } else { Q4K }),
            Kind::Iq3M => {
                let is_raised = is_early || shape.experts == 8 && uses_more_bits(layer, layers);
                is_raised.then_some(Q4K)
            }
            Kind::Q3KL => Some(Q5K),
            Kind::Q4KM | Kind::Q5KM => uses_more_bits(layer, layers).then_some(Q6K),
            Kind::Iq4 => (is_early && !shape.has_importance).then_some(Q5K),
            Kind::Q4KS => is_early.then_some(Q5K),
            Kind::Q4_0 => (is_early && shape.has_importance).then_some(Q4_1),
            Kind::Q5_0 => (is_early && shape.has_importance).then_some(Q5_1),
            _ => None,
        }
    }
}

impl FromStr for Mix {
    type Err = QuantizeError;

    fn from_str(name: &str) -> Result<Mix, QuantizeError> {
        // llama.cpp's own short names.
        let name = match name.to_ascii_uppercase().as_str() {
            short @ ("Q3_K" | "Q4_K" | "Q5_K") => format!("{short}_M"),
            name => name.to_owned(),
        };
        let mut mixes = Mix::all();
        mixes.find(|mix| mix.name() == name).ok_or_else(|| unknown_mix(&name))
    }
}

/// Types of mixes of two bits. `raised` is the type of important tensors.
fn low(part: Part, layer: usize, shape: &Shape, raised: WeightFormat, raises: bool) -> Option<WeightFormat> {
    match part {
        Part::Value | Part::QueryKeyValue if shape.group >= 4 || shape.experts >= 4 => Some(Q4K),
        Part::Value | Part::QueryKeyValue => Some(raised),
        Part::Key if shape.experts == 8 => Some(Q4K),
        Part::Down => (layer < shape.layers / 8).then_some(raised),
        Part::AttentionOutput if shape.experts == 8 => Some(Q5K),
        Part::AttentionOutput => raises.then_some(raised),
        _ => None,
    }
}

fn attention_output(kind: Kind, shape: &Shape) -> Option<WeightFormat> {
    if shape.experts == 8 {
        let is_raised = !matches!(
            kind,
            Kind::Plain | Kind::Q5KM | Kind::Q3KL | Kind::Q2KS | Kind::Q4_0 | Kind::Q5_0
        );
        return is_raised.then_some(Q5K);
    }
    match kind {
        Kind::Q2K => Some(Q3K),
        Kind::Iq3Xxs => Some(Iq3S),
        Kind::Q3KM | Kind::Iq3M => Some(Q4K),
        Kind::Q3KL => Some(Q5K),
        _ => None,
    }
}

/// True for the first and the last eighth of the layers, and every third layer between them.
fn uses_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

fn layer_of(name: &str) -> usize {
    let below = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    below.and_then(|(layer, _)| layer.parse().ok()).unwrap_or(0)
}

fn part_of(name: &str) -> Part {
    if name == "output.weight" {
        return Part::Output;
    }
    if name == "token_embd.weight" {
        return Part::Embedding;
    }
    let parts = [
        ("attn_qkv.", Part::QueryKeyValue),
        ("attn_kv_b.", Part::Value),
        ("attn_v.", Part::Value),
        ("attn_k.", Part::Key),
        ("attn_q.", Part::Query),
        ("attn_output.", Part::AttentionOutput),
        ("ffn_up", Part::Up),
        ("ffn_gate", Part::Gate),
        ("ffn_down", Part::Down),
    ];
    let found = parts.iter().find(|(text, _)| name.contains(text));
    found.map_or(Part::Other, |(_, part)| *part)
}

/// True if llama.cpp quantises the tensor: matrices of linear layers, embeddings and heads, except small important
/// ones.
pub(crate) fn is_quantised(name: &str, shape: &[usize]) -> bool {
    const KEPT: [&str; 12] = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        "ssm_conv1d",
        "shortconv.conv.weight",
        "altup",
        "laurel",
        "per_layer_model_proj",
        "position_embd",
        "token_types",
        "attn_rel_b.weight",
        "patch_embd",
        "rel_pos",
    ];
    let is_matrix = shape.iter().filter(|dimension| **dimension > 1).count() >= 2;
    is_matrix && name.ends_with("weight") && !KEPT.iter().any(|kept| name.contains(kept))
}

/// The type for rows that are not a whole number of the format's blocks.
pub(crate) fn fallback(format: WeightFormat, columns: usize) -> WeightFormat {
    let fits = |format: WeightFormat| columns.is_multiple_of(format.block_weights());
    if fits(format) {
        return format;
    }
    let smaller = match format {
        Iq1S | Iq1M | Iq2Xxs | Iq2Xs | Iq2S | Iq3Xxs | Iq3S | Iq4Xs => Iq4Nl,
        Q2K | Q3K | Tq1_0 | Tq2_0 | Q2_0 => Q4_0,
        Q4K => Q5_0,
        Q5K => Q5_1,
        Q6K => Q8_0,
        _ => F16,
    };
    if fits(smaller) { smaller } else { F16 }
}
