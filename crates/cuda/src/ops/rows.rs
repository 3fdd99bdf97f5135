//! Kernels over rows of f32.

use super::{MAP_THREADS, check_bytes, map_blocks, positive, strided};
use crate::{Argument, CudaError, Grid, ModuleSource, Region, Stream};

/// Rows of f32, `[rows, width]`.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Data from the first row on.
    pub data: Region<'a>,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
}

/// Heads of rows: head `h` of row `r` begins at `data[r · stride + h · head_dim]`.
#[derive(Debug, Clone, Copy)]
pub struct HeadRows<'a> {
    /// f32 data from the first head of the first row on.
    pub data: Region<'a>,
    /// Rows.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements from row to row.
    pub stride: usize,
}

impl HeadRows<'_> {
    pub(super) fn check(&self, what: &'static str) -> Result<(), CudaError> {
        let width = self.heads.saturating_mul(self.head_dim);
        if self.rows > 1 && self.stride < width {
            return Err(CudaError::Mismatch {
                what: "row stride and heads × head_dim",
                expected: width,
                found: self.stride,
            });
        }
        check_bytes(what, self.data, strided(self.rows, self.stride, width), 4)
    }
}

fn launch(stream: &Stream, name: &'static str, grid: Grid, arguments: &[Argument]) -> Result<(), CudaError> {
    let kernel = stream.gpu().kernel(&ModuleSource::new("rows.cu", &[]), name)?;
    stream.launch(&kernel, grid, arguments)
}

/// `output[row] = input[row] / rms(input[row]) · weight`; both may be the same rows.
///
/// # Errors
/// Regions that are too short.
pub fn rms_norm(
    stream: &Stream,
    output: Region<'_>,
    input: &Rows<'_>,
    weight: Region<'_>,
    epsilon: f32,
) -> Result<(), CudaError> {
    let Rows { data, rows, width } = *input;
    check_bytes("normalised rows", output, rows.saturating_mul(width), 4)?;
    check_bytes("rows", data, rows.saturating_mul(width), 4)?;
    check_bytes("norm weights", weight, width, 4)?;
    let (stride, width) = (width as u64, positive("row width", width)?);
    let arguments = [
        output.into(),
        data.into(),
        weight.into(),
        width.into(),
        stride.into(),
        epsilon.into(),
    ];
    launch(stream, "rms_norm", Grid::line(rows, MAP_THREADS), &arguments)
}

/// `output[row] = (input[row] − mean) / deviation · weight + bias`; both may be the same rows.
///
/// # Errors
/// Regions that are too short.
pub fn layer_norm(
    stream: &Stream,
    output: Region<'_>,
    input: &Rows<'_>,
    weight: Region<'_>,
    bias: Region<'_>,
    epsilon: f32,
) -> Result<(), CudaError> {
    let Rows { data, rows, width } = *input;
    check_bytes("normalised rows", output, rows.saturating_mul(width), 4)?;
    check_bytes("rows", data, rows.saturating_mul(width), 4)?;
    check_bytes("norm weights", weight, width, 4)?;
    check_bytes("norm biases", bias, width, 4)?;
    let (stride, width) = (width as u64, positive("row width", width)?);
    let arguments = [
        output.into(),
        data.into(),
        weight.into(),
        bias.into(),
        width.into(),
        stride.into(),
        epsilon.into(),
    ];
    launch(stream, "layer_norm", Grid::line(rows, MAP_THREADS), &arguments)
}

/// `head / rms(head) · weight` for each head, times silu(gate) if there is a gate of the same shape; `weight` is
/// `[head_dim]`.
///
/// # Errors
/// Regions that are too short, a gate of another shape.
pub fn head_norm(
    stream: &Stream,
    heads: &HeadRows<'_>,
    weight: Region<'_>,
    gate: Option<&HeadRows<'_>>,
    epsilon: f32,
) -> Result<(), CudaError> {
    heads.check("heads")?;
    check_bytes("norm weights", weight, heads.head_dim, 4)?;
    if let Some(gate) = gate {
        gate.check("gate")?;
        let pairs = [
            ("rows of heads and gate", heads.rows, gate.rows),
            ("heads and gates", heads.heads, gate.heads),
            ("head_dim of heads and gate", heads.head_dim, gate.head_dim),
        ];
        for (what, expected, found) in pairs {
            if expected != found {
                return Err(CudaError::Mismatch { what, expected, found });
            }
        }
    }
    let count = heads.rows * heads.heads;
    let arguments = [
        heads.data.into(),
        weight.into(),
        gate.map(|gate| gate.data).into(),
        positive("heads", heads.heads)?.into(),
        positive("head_dim", heads.head_dim)?.into(),
        (heads.stride as u64).into(),
        (gate.map_or(0, |gate| gate.stride) as u64).into(),
        epsilon.into(),
        (count as u64).into(),
    ];
    launch(stream, "head_norm", Grid::line(count.div_ceil(4), 128), &arguments)
}

/// Rotates pairs (i, i + turned / 2) of the first `turned` dimensions of every head by the angles of its row.
///
/// `turns` is `[rows, turned / 2, 2]`: cosine and sine of each pair.
///
/// # Errors
/// Regions that are too short, an odd `turned` or one above `head_dim`.
pub fn rotary(stream: &Stream, heads: &HeadRows<'_>, turns: Region<'_>, turned: usize) -> Result<(), CudaError> {
    heads.check("heads")?;
    if turned == 0 || !turned.is_multiple_of(2) || turned > heads.head_dim {
        return Err(CudaError::Unsupported {
            what: "rotary width",
            value: turned,
            requirement: "even, from 2 to head_dim",
        });
    }
    check_bytes("turns", turns, heads.rows.saturating_mul(turned), 4)?;
    let count = heads.rows * heads.heads * (turned / 2);
    let arguments = [
        heads.data.into(),
        turns.into(),
        positive("heads", heads.heads)?.into(),
        positive("head_dim", heads.head_dim)?.into(),
        positive("rotary width", turned)?.into(),
        (heads.stride as u64).into(),
        (count as u64).into(),
    ];
    launch(stream, "rotary", Grid::line(map_blocks(count), MAP_THREADS), &arguments)
}

/// `index[row]`, u32: the index of the largest of `input[row]`; ties go to the lowest.
///
/// # Errors
/// Regions that are too short.
pub fn argmax(stream: &Stream, index: Region<'_>, input: &Rows<'_>) -> Result<(), CudaError> {
    let Rows { data, rows, width } = *input;
    check_bytes("indices", index, rows, 4)?;
    check_bytes("logits", data, rows.saturating_mul(width), 4)?;
    let arguments = [index.into(), data.into(), positive("row width", width)?.into()];
    launch(stream, "argmax", Grid::line(rows, MAP_THREADS), &arguments)
}
