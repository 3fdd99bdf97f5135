//! Maps over arrays of f32, and copies of columns.

use super::{MAP_THREADS, check_bytes, map_blocks, positive, strided};
use crate::{Argument, CudaError, Grid, ModuleSource, Region, Stream};

/// The non-linearity of a gate or a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// The tanh form of x · Φ(x).
    GeluTanh,
    /// 1 / (1 + e^−x), only for gates.
    Sigmoid,
}

/// Columns of a strided array: each row has `pieces` runs of columns, `piece_stride` apart.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    /// The array, from the first column of the first row on.
    pub data: Region<'a>,
    /// Elements from row to row.
    pub row_stride: usize,
    /// Elements between the starts of two pieces.
    pub piece_stride: usize,
}

fn launch(stream: &Stream, name: &'static str, count: usize, arguments: &[Argument]) -> Result<(), CudaError> {
    let kernel = stream.gpu().kernel(&ModuleSource::new("elementwise.cu", &[]), name)?;
    stream.launch(&kernel, Grid::line(map_blocks(count), MAP_THREADS), arguments)
}

/// `to[i] += from[i]` for `count` elements.
///
/// # Errors
/// Regions that are too short.
pub fn add(stream: &Stream, to: Region<'_>, from: Region<'_>, count: usize) -> Result<(), CudaError> {
    check_bytes("sum", to, count, 4)?;
    check_bytes("addend", from, count, 4)?;
    launch(stream, "add", count, &[to.into(), from.into(), (count as u64).into()])
}

/// `to[row, i] += bias[i]`, `to` `[rows, width]`.
///
/// # Errors
/// Regions that are too short.
pub fn add_to_rows(
    stream: &Stream,
    to: Region<'_>,
    bias: Region<'_>,
    rows: usize,
    width: usize,
) -> Result<(), CudaError> {
    let count = rows.saturating_mul(width);
    check_bytes("rows", to, count, 4)?;
    check_bytes("bias", bias, width, 4)?;
    let width = positive("row width", width)?;
    let arguments = [to.into(), bias.into(), width.into(), (count as u64).into()];
    launch(stream, "add_to_rows", count, &arguments)
}

/// `values[i] *= factor`.
///
/// # Errors
/// A region that is too short.
pub fn multiply(stream: &Stream, values: Region<'_>, factor: f32, count: usize) -> Result<(), CudaError> {
    check_bytes("values", values, count, 4)?;
    launch(
        stream,
        "multiply",
        count,
        &[values.into(), factor.into(), (count as u64).into()],
    )
}

/// `values[i] = activation(values[i])`.
///
/// # Errors
/// A region that is too short, [`Activation::Sigmoid`] (only for gates).
pub fn activate(stream: &Stream, values: Region<'_>, activation: Activation, count: usize) -> Result<(), CudaError> {
    check_bytes("values", values, count, 4)?;
    if activation == Activation::Sigmoid {
        return Err(CudaError::Unsupported {
            what: "activation",
            value: activation as usize,
            requirement: "SiLU or GELU",
        });
    }
    let arguments = [values.into(), (activation as u32).into(), (count as u64).into()];
    launch(stream, "activate", count, &arguments)
}

/// `gate[i] = activation(gate[i]) · up[i]`.
///
/// # Errors
/// Regions that are too short.
pub fn gate_product(
    stream: &Stream,
    gate: Region<'_>,
    up: Region<'_>,
    activation: Activation,
    count: usize,
) -> Result<(), CudaError> {
    check_bytes("gate", gate, count, 4)?;
    check_bytes("gated values", up, count, 4)?;
    let arguments = [
        gate.into(),
        up.into(),
        (activation as u32).into(),
        (count as u64).into(),
    ];
    launch(stream, "gate_product", count, &arguments)
}

/// `logits[i] = cap · tanh(logits[i] / cap)`.
///
/// # Errors
/// A region that is too short.
pub fn soft_cap(stream: &Stream, logits: Region<'_>, cap: f32, count: usize) -> Result<(), CudaError> {
    check_bytes("logits", logits, count, 4)?;
    launch(
        stream,
        "soft_cap",
        count,
        &[logits.into(), cap.into(), (count as u64).into()],
    )
}

/// Copies `pieces` runs of `width` columns from each of `rows` rows.
///
/// # Errors
/// Arrays that are too short.
pub fn copy_columns(
    stream: &Stream,
    to: &Columns<'_>,
    from: &Columns<'_>,
    rows: usize,
    pieces: usize,
    width: usize,
) -> Result<(), CudaError> {
    for (what, columns) in [("copied columns", to), ("columns", from)] {
        let row = strided(pieces, columns.piece_stride, width);
        check_bytes(what, columns.data, strided(rows, columns.row_stride, row), 4)?;
    }
    let count = rows.saturating_mul(pieces).saturating_mul(width);
    let arguments = [
        to.data.into(),
        (to.row_stride as u64).into(),
        positive("pieces", to.piece_stride.max(1))?.into(),
        from.data.into(),
        (from.row_stride as u64).into(),
        positive("pieces", from.piece_stride.max(1))?.into(),
        positive("pieces", pieces)?.into(),
        positive("columns", width)?.into(),
        (count as u64).into(),
    ];
    launch(stream, "copy_columns", count, &arguments)
}
