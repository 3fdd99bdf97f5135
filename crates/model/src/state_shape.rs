//! Kinds and sizes of layers' recurrent states.

use riffle_linear::Columns;

/// The recurrent state of a layer. Its size is independent of the context. All kinds store the last inputs of a
/// causal convolution; kinds with heads also store a matrix for each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateShape {
    /// State of a [`GatedDeltaNet`](crate::GatedDeltaNet).
    GatedDeltaNet(GatedDeltaNetShape),
    /// State of a [`ShortConvolution`](crate::ShortConvolution).
    ShortConvolution(ShortConvolutionShape),
    /// State of a [`Mamba2`](crate::Mamba2).
    Mamba2(Mamba2Shape),
    /// State of a [`KimiDeltaAttention`](crate::KimiDeltaAttention).
    KimiDelta(KimiDeltaShape),
    /// State of a [`LightningAttention`](crate::LightningAttention), which has no convolution.
    Lightning(LightningShape),
    /// State of an [`NgramTable`](crate::NgramTable).
    Ngrams(NgramShape),
}

/// The sizes of a [`GatedDeltaNet`](crate::GatedDeltaNet).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaNetShape {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads; each has its own memory.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Tokens that the causal convolution reads, including the current one.
    pub kernel: usize,
}

/// The sizes of a [`ShortConvolution`](crate::ShortConvolution).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvolutionShape {
    /// Values per token in the convolution.
    pub channels: usize,
    /// Tokens that the convolution reads, including the current one.
    pub kernel: usize,
}

/// The sizes of a [`Mamba2`](crate::Mamba2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mamba2Shape {
    /// Heads, a multiple of the groups; each has its own memory.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// State values per element of a head.
    pub state_width: usize,
    /// Groups of heads that share `B` and `C`.
    pub groups: usize,
    /// Tokens that the causal convolution reads, including the current one.
    pub kernel: usize,
}

/// The sizes of a [`KimiDeltaAttention`](crate::KimiDeltaAttention).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KimiDeltaShape {
    /// Heads of queries, keys and values; each has its own memory.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens that the causal convolution reads, including the current one.
    pub kernel: usize,
}

/// The sizes of a [`LightningAttention`](crate::LightningAttention).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LightningShape {
    /// Heads of queries, keys and values; each has its own memory.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

/// The sizes of an [`NgramTable`](crate::NgramTable).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramShape {
    /// Number of values of all residual streams of a token.
    pub channels: usize,
    /// Number of a token's values from the table.
    pub inputs: usize,
    /// Tokens before the current one that n-grams and the convolution reach.
    pub window: usize,
}

impl KimiDeltaShape {
    /// Number of values of all heads of a token: of queries, of keys or of values.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values per token in the convolution: queries, keys, values.
    pub fn channels(&self) -> usize {
        3 * self.width()
    }
}

impl LightningShape {
    /// Number of values of all heads of a token: of queries, of keys or of values.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values per token that the rule reads: queries, keys, values.
    pub fn channels(&self) -> usize {
        3 * self.width()
    }
}

impl Mamba2Shape {
    /// Values of all heads of a token.
    pub fn inner_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values per token in the convolution: the values of all heads, `B` and `C`.
    pub fn channels(&self) -> usize {
        self.inner_width() + 2 * self.groups * self.state_width
    }
}

impl GatedDeltaNetShape {
    /// Values of all value heads of a token.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Values per token in the convolution: queries, keys, values.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_width()
    }
}

/// The memories of a state: a matrix for each head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryShape {
    pub(crate) heads: usize,
    /// Rows of a head's matrix: the width of a key.
    pub(crate) rows: usize,
    /// Columns of a head's matrix: the width of a value.
    pub(crate) columns: usize,
}

impl MemoryShape {
    /// Values of all heads of a token.
    pub(crate) fn width(&self) -> usize {
        self.heads * self.columns
    }

    /// Pieces of 64 columns for a head's values.
    pub(crate) fn column_pieces(&self) -> usize {
        self.columns.div_ceil(Columns::COUNT)
    }

    /// Memory pieces of one head, `[column piece, rows]`.
    pub(crate) fn head_pieces(&self) -> usize {
        self.column_pieces() * self.rows
    }

    /// Pieces of the memory of all heads.
    pub(crate) fn pieces(&self) -> usize {
        self.heads * self.head_pieces()
    }
}

impl StateShape {
    /// The kind's name, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            StateShape::GatedDeltaNet(_) => "Gated DeltaNet",
            StateShape::ShortConvolution(_) => "short convolution",
            StateShape::Mamba2(_) => "Mamba2",
            StateShape::KimiDelta(_) => "Kimi Delta Attention",
            StateShape::Lightning(_) => "lightning attention",
            StateShape::Ngrams(_) => "table of n-grams",
        }
    }

    /// The kind's name in a `layer_types` list of config.json.
    pub(crate) fn layer_type(&self) -> &'static str {
        match self {
            StateShape::ShortConvolution(_) => "conv",
            _ => "linear_attention",
        }
    }

    /// Values per token in the convolution. A table of n-grams also keeps the token.
    pub(crate) fn channels(&self) -> usize {
        match self {
            StateShape::GatedDeltaNet(shape) => shape.channels(),
            StateShape::ShortConvolution(shape) => shape.channels,
            StateShape::Mamba2(shape) => shape.channels(),
            StateShape::KimiDelta(shape) => shape.channels(),
            StateShape::Lightning(shape) => shape.channels(),
            StateShape::Ngrams(shape) => shape.channels + 1,
        }
    }

    fn kernel(&self) -> usize {
        match self {
            StateShape::GatedDeltaNet(GatedDeltaNetShape { kernel, .. })
            | StateShape::ShortConvolution(ShortConvolutionShape { kernel, .. })
            | StateShape::Mamba2(Mamba2Shape { kernel, .. })
            | StateShape::KimiDelta(KimiDeltaShape { kernel, .. }) => *kernel,
            StateShape::Ngrams(shape) => shape.window + 1,
            StateShape::Lightning(_) => 1,
        }
    }

    /// The memories of the heads: none in a short convolution or in a table of n-grams.
    pub(crate) fn memory(&self) -> MemoryShape {
        match self {
            StateShape::GatedDeltaNet(shape) => MemoryShape {
                heads: shape.value_heads,
                rows: shape.key_dim,
                columns: shape.value_dim,
            },
            StateShape::ShortConvolution(_) | StateShape::Ngrams(_) => MemoryShape::default(),
            StateShape::Mamba2(shape) => MemoryShape {
                heads: shape.heads,
                rows: shape.state_width,
                columns: shape.head_dim,
            },
            StateShape::KimiDelta(KimiDeltaShape { heads, head_dim, .. })
            | StateShape::Lightning(LightningShape { heads, head_dim }) => MemoryShape {
                heads: *heads,
                rows: *head_dim,
                columns: *head_dim,
            },
        }
    }

    /// Values of the convolution's last inputs, `[kernel - 1, channels]`.
    pub(crate) fn convolution_values(&self) -> usize {
        (self.kernel() - 1) * self.channels()
    }

    /// Bytes of one layer's state, including its position.
    pub(crate) fn bytes(&self) -> u64 {
        let values = self.convolution_values() + self.memory().pieces() * Columns::COUNT;
        size_of::<u64>() as u64 + (values * size_of::<f32>()) as u64
    }

    /// Decays per token: one for each head, or for each row of its memory.
    pub(crate) fn decays(&self) -> usize {
        let memory = self.memory();
        match self {
            StateShape::KimiDelta(_) => memory.heads * memory.rows,
            _ => memory.heads,
        }
    }

    /// Input values per token: the convolution's inputs, the heads' strengths, and decays.
    pub(crate) fn input_width(&self) -> usize {
        self.channels() + self.memory().heads + self.decays()
    }

    /// Scratch values per token in the layer's mixer.
    pub(crate) fn scratch_width(&self) -> usize {
        match self {
            StateShape::ShortConvolution(shape) => 3 * shape.channels,
            StateShape::Ngrams(shape) => shape.inputs + 4 * (shape.channels + 1),
            _ => {
                let memory = self.memory();
                2 * (self.channels() + memory.width()) + memory.heads + self.decays()
            }
        }
    }

    /// A problem with the sizes, if they disagree.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let heads = match self {
            StateShape::GatedDeltaNet(shape) => (shape.value_heads, shape.key_heads),
            StateShape::ShortConvolution(_) | StateShape::Ngrams(_) => (1, 1),
            StateShape::Mamba2(shape) => (shape.heads, shape.groups),
            StateShape::KimiDelta(KimiDeltaShape { heads, .. })
            | StateShape::Lightning(LightningShape { heads, .. }) => (*heads, *heads),
        };
        if self.kernel() == 0 {
            Some("has a convolution of no token")
        } else if heads.1 == 0 || !heads.0.is_multiple_of(heads.1) {
            Some("has heads that are not a multiple of those that they share")
        } else {
            None
        }
    }
}
