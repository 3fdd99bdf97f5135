//! Gated DeltaNet: convolution, gates and the delta rule.

use super::{MAP_THREADS, Rows, check_bytes, map_blocks, positive, small};
use crate::{Argument, CudaError, Grid, ModuleSource, Region, Stream};

/// Tokens per chunk.
const CHUNK: usize = 64;
/// Prompts with fewer tokens are read one by one.
const FEW: usize = 16;

/// The sizes of the heads of a recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads; each has a memory of its own.
    pub value_heads: usize,
    /// Width of a query or key, up to 256.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// True if value heads that share a key head are as many heads apart as there are key heads; false if they are
    /// adjacent.
    pub heads_tiled: bool,
}

/// Inputs of the delta rule for some consecutive tokens.
#[derive(Debug, Clone, Copy)]
pub struct DeltaTokens<'a> {
    /// Tokens.
    pub rows: usize,
    /// True to read tokens one by one, whatever their number; each then has the bits of a separate call.
    pub one_by_one: bool,
    /// f32 `[rows, channels]`: queries and keys of every key head, values of every value head.
    pub mixed: Region<'a>,
    /// f32 `[rows, value_heads]`, write strength of each value.
    pub strength: Region<'a>,
    /// f32 `[rows, value_heads]`, logarithm of the share of the memory that remains.
    pub decay: Region<'a>,
}

impl DeltaShape {
    /// Values of a token that pass the convolution.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// f32 values of the memories: `[value_heads, key_dim, value_dim]`.
    pub fn memory_values(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    fn check(&self) -> Result<(), CudaError> {
        positive("key heads", self.key_heads)?;
        positive("value heads", self.value_heads)?;
        positive("value_dim", self.value_dim)?;
        small("channels", self.channels())?;
        if !self.value_heads.is_multiple_of(self.key_heads) {
            return Err(CudaError::Unsupported {
                what: "value heads",
                value: self.value_heads,
                requirement: "a multiple of the key heads",
            });
        }
        if !(1..=256).contains(&self.key_dim) {
            return Err(CudaError::Unsupported {
                what: "key_dim",
                value: self.key_dim,
                requirement: "from 1 to 256",
            });
        }
        Ok(())
    }
}

fn launch(
    stream: &Stream,
    key_dim: Option<usize>,
    name: &'static str,
    grid: Grid,
    arguments: &[Argument],
) -> Result<(), CudaError> {
    let defines: Vec<_> = key_dim.map(|key_dim| ("KEY_DIM", key_dim as u32)).into_iter().collect();
    let kernel = stream.gpu().kernel(&ModuleSource::new("delta.cu", &defines), name)?;
    stream.launch(&kernel, grid, arguments)
}

/// `output[row, c] = silu(Σ taps[tap, c] · input[row + tap − (kernel − 1), c])`, both `[rows, channels]`. `before`,
/// `[kernel − 1, channels]`, holds the rows before the first, and receives the last rows of the input.
///
/// # Errors
/// Regions that are too short.
pub fn convolve(
    stream: &Stream,
    output: Region<'_>,
    input: &Rows<'_>,
    before: Region<'_>,
    taps: Region<'_>,
    kernel: usize,
) -> Result<(), CudaError> {
    let Rows {
        data,
        rows,
        width: channels,
    } = *input;
    let count = rows.saturating_mul(channels);
    check_bytes("convolved rows", output, count, 4)?;
    check_bytes("rows", data, count, 4)?;
    check_bytes("taps", taps, kernel.saturating_mul(channels), 4)?;
    let earlier = positive("kernel", kernel)? - 1;
    let width = positive("channels", channels)?;
    check_bytes("rows before", before, (kernel - 1).saturating_mul(channels), 4)?;
    let arguments = [
        output.into(),
        data.into(),
        before.into(),
        taps.into(),
        (kernel as u32).into(),
        width.into(),
        (count as u64).into(),
    ];
    launch(
        stream,
        None,
        "convolve",
        Grid::line(map_blocks(count), MAP_THREADS),
        &arguments,
    )?;
    let arguments = [
        before.into(),
        data.into(),
        earlier.into(),
        width.into(),
        (rows as u64).into(),
    ];
    let grid = Grid::line(channels.div_ceil(MAP_THREADS as usize), MAP_THREADS);
    launch(stream, None, "convolved", grid, &arguments)
}

/// The gates of tokens, both f32 `[rows, heads]`.
#[derive(Debug, Clone, Copy)]
pub struct DeltaGates<'a> {
    /// Write strength of each value.
    pub strength: Region<'a>,
    /// Logarithm of the share of the memory that remains.
    pub decay: Region<'a>,
    /// Tokens.
    pub rows: usize,
    /// Value heads.
    pub heads: usize,
}

/// `strength = sigmoid(strength)` and `decay = rate · softplus(decay + bias)`, with rates and biases `[heads]`.
///
/// # Errors
/// Regions that are too short.
pub fn delta_gates(
    stream: &Stream,
    gates: &DeltaGates<'_>,
    rates: Region<'_>,
    biases: Region<'_>,
) -> Result<(), CudaError> {
    let DeltaGates {
        strength,
        decay,
        rows,
        heads,
    } = *gates;
    let count = rows.saturating_mul(heads);
    check_bytes("strengths", strength, count, 4)?;
    check_bytes("decays", decay, count, 4)?;
    check_bytes("decay rates", rates, heads, 4)?;
    check_bytes("decay biases", biases, heads, 4)?;
    let arguments = [
        strength.into(),
        decay.into(),
        rates.into(),
        biases.into(),
        positive("heads", heads)?.into(),
        (count as u64).into(),
    ];
    launch(
        stream,
        None,
        "delta_gates",
        Grid::line(map_blocks(count), MAP_THREADS),
        &arguments,
    )
}

/// Bytes of scratch of [`delta_rule`] for `rows` rows.
pub fn delta_scratch_bytes(shape: &DeltaShape, rows: usize) -> usize {
    let relations = if rows < FEW {
        0
    } else {
        2 * rows.div_ceil(CHUNK) * shape.value_heads * CHUNK * CHUNK
    };
    4 * (rows * shape.key_heads * 2 * shape.key_dim + relations)
}

/// Reads tokens by the gated delta rule. `read` receives f32 `[rows, value_heads, value_dim]`; `memory`, f32
/// `[value_heads, key_dim, value_dim]`, receives the state after the tokens. Queries and keys are normalised first.
///
/// # Errors
/// Sizes without a kernel, regions that are too short.
pub fn delta_rule(
    stream: &Stream,
    shape: &DeltaShape,
    read: Region<'_>,
    memory: Region<'_>,
    tokens: &DeltaTokens<'_>,
    scratch: Region<'_>,
) -> Result<(), CudaError> {
    shape.check()?;
    let rows = tokens.rows;
    check_bytes(
        "reads",
        read,
        rows.saturating_mul(shape.value_heads * shape.value_dim),
        4,
    )?;
    check_bytes("memories", memory, shape.memory_values(), 4)?;
    check_bytes("mixed rows", tokens.mixed, rows.saturating_mul(shape.channels()), 4)?;
    check_bytes("strengths", tokens.strength, rows.saturating_mul(shape.value_heads), 4)?;
    check_bytes("decays", tokens.decay, rows.saturating_mul(shape.value_heads), 4)?;
    check_bytes("scratch of a delta rule", scratch, delta_scratch_bytes(shape, rows), 1)?;
    let unit_bytes = 4 * rows * shape.key_heads * 2 * shape.key_dim;
    let rule = DeltaRule {
        shape,
        tokens,
        read,
        memory,
        units: scratch.part(0..unit_bytes),
    };
    rule.normalise(stream)?;
    if rows < FEW || tokens.one_by_one {
        return rule.read_one_by_one(stream);
    }
    rule.read_chunks(stream, scratch.part(unit_bytes..scratch.bytes()))
}

/// Tokens for the delta rule.
struct DeltaRule<'a> {
    shape: &'a DeltaShape,
    tokens: &'a DeltaTokens<'a>,
    read: Region<'a>,
    memory: Region<'a>,
    /// Normalised queries and keys, f32 `[rows, key_heads, 2, key_dim]`.
    units: Region<'a>,
}

impl DeltaRule<'_> {
    fn launch(&self, stream: &Stream, name: &'static str, grid: Grid, arguments: &[Argument]) -> Result<(), CudaError> {
        launch(stream, Some(self.shape.key_dim), name, grid, arguments)
    }

    /// Key heads and value heads.
    fn heads(&self) -> [Argument; 2] {
        [self.shape.key_heads, self.shape.value_heads].map(|heads| (heads as u32).into())
    }

    fn value_dim(&self) -> Argument {
        (self.shape.value_dim as u32).into()
    }

    fn heads_tiled(&self) -> Argument {
        u32::from(self.shape.heads_tiled).into()
    }

    fn rows(&self) -> Result<Argument, CudaError> {
        Ok(small("rows", self.tokens.rows)?.into())
    }

    /// Queues the normalisation of queries and keys.
    fn normalise(&self, stream: &Stream) -> Result<(), CudaError> {
        let [key_heads, value_heads] = self.heads();
        let arguments = [
            self.units.into(),
            self.tokens.mixed.into(),
            key_heads,
            value_heads,
            self.value_dim(),
            self.rows()?,
        ];
        let heads = self.tokens.rows * self.shape.key_heads * 2;
        self.launch(stream, "delta_units", Grid::line(heads.div_ceil(4), 128), &arguments)
    }

    /// Queues the rule token by token.
    fn read_one_by_one(&self, stream: &Stream) -> Result<(), CudaError> {
        let [key_heads, value_heads] = self.heads();
        let arguments = [
            self.read.into(),
            self.memory.into(),
            self.units.into(),
            self.tokens.mixed.into(),
            self.tokens.strength.into(),
            self.tokens.decay.into(),
            key_heads,
            value_heads,
            self.value_dim(),
            self.heads_tiled(),
            self.rows()?,
        ];
        let grid = Grid::new([self.shape.value_dim.div_ceil(16), self.shape.value_heads, 1], 128);
        self.launch(stream, "delta_tokens", grid, &arguments)
    }

    /// Queues the rule chunk by chunk.
    fn read_chunks(&self, stream: &Stream, scratch: Region<'_>) -> Result<(), CudaError> {
        let shape = self.shape;
        let chunks = self.tokens.rows.div_ceil(CHUNK);
        let half = 4 * chunks * shape.value_heads * CHUNK * CHUNK;
        let (scores, inverse) = (scratch.part(0..half), scratch.part(half..2 * half));
        let [key_heads, value_heads] = self.heads();
        let (decay, tiled, rows) = (self.tokens.decay.into(), self.heads_tiled(), self.rows()?);
        let arguments = [
            scores.into(),
            inverse.into(),
            self.units.into(),
            self.tokens.strength.into(),
            decay,
            key_heads,
            value_heads,
            tiled,
            rows,
        ];
        let grid = Grid::new([chunks, shape.value_heads, 1], 256);
        self.launch(stream, "delta_relations", grid, &arguments)?;
        let shared_bytes = (shape.key_dim + 2 * CHUNK) * 32 * 4;
        let grid = Grid::new([shape.value_dim.div_ceil(32), shape.value_heads, 1], 256).with_shared(shared_bytes);
        let arguments = [
            self.read.into(),
            self.memory.into(),
            self.units.into(),
            self.tokens.mixed.into(),
            scores.into(),
            inverse.into(),
            decay,
            key_heads,
            value_heads,
            self.value_dim(),
            tiled,
            rows,
        ];
        self.launch(stream, "delta_chunks", grid, &arguments)
    }
}
