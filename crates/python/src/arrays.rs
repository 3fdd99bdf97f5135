//! Python's arrays as rows of heads. Arrays are read in place, and gathered once for the kernels if necessary.

use std::ops::Range;

use half::f16;
use numpy::ndarray::{ArrayView3, Axis};
use numpy::{PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use rayon::prelude::*;
use riffle_attention::{LANES, bf16_to_f32};
use riffle_engine::{available_memory_bytes, human_bytes};

use crate::failure::Failure;

/// Bytes of an array that need no check of the machine's free memory.
const UNCHECKED_BYTES: u64 = 64 << 20;

/// An array `[heads, tokens, width]`. Python may not change it meanwhile.
pub(crate) struct HeadsArray<'py> {
    held: Held<'py>,
    pub(crate) heads: usize,
    pub(crate) tokens: usize,
    pub(crate) width: usize,
}

enum Held<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>),
    F16(PyReadonlyArrayDyn<'py, f16>),
    /// Bits of bfloat16; numpy has no type for it.
    Bf16(PyReadonlyArrayDyn<'py, u16>),
}

/// The elements of a [`HeadsArray`], for other threads.
#[derive(Clone, Copy)]
pub(crate) enum HeadsView<'a> {
    F32(ArrayView3<'a, f32>),
    F16(ArrayView3<'a, f16>),
    Bf16(ArrayView3<'a, u16>),
}

impl<'py> HeadsArray<'py> {
    /// An array from Python; messages call it `name`.
    pub(crate) fn new(name: &str, array: &Bound<'py, PyAny>) -> Result<Self, Failure> {
        let untyped = array
            .cast::<PyUntypedArray>()
            .map_err(|_| Failure::array(format!("{name} is no array of numpy, nor one that speaks DLPack")))?;
        let [heads, tokens, width] = untyped.shape() else {
            return Err(Failure::array(format!(
                "{name} has {} dimensions, but it must have 3: heads, tokens and elements of a head",
                untyped.ndim()
            )));
        };
        let (heads, tokens, width) = (*heads, *tokens, *width);
        if heads == 0 || tokens == 0 || width == 0 {
            return Err(Failure::array(format!(
                "{name} is empty: its shape is ({heads}, {tokens}, {width})"
            )));
        }
        check_memory(name, [heads, tokens, width])?;
        let held = if let Ok(array) = untyped.cast::<PyArrayDyn<f32>>() {
            Held::F32(readonly(name, array)?)
        } else if let Ok(array) = untyped.cast::<PyArrayDyn<f16>>() {
            Held::F16(readonly(name, array)?)
        } else if let Ok(array) = untyped.cast::<PyArrayDyn<u16>>() {
            Held::Bf16(readonly(name, array)?)
        } else {
            return Err(Failure::array(format!(
                "{name} has elements of type {}, but they must be float32, float16 or bfloat16: convert it",
                untyped.dtype()
            )));
        };
        Ok(Self {
            held,
            heads,
            tokens,
            width,
        })
    }

    /// The elements of the array.
    pub(crate) fn view(&self) -> Result<HeadsView<'_>, Failure> {
        let shape = |error: numpy::ndarray::ShapeError| Failure::array(error.to_string());
        Ok(match &self.held {
            Held::F32(array) => HeadsView::F32(array.as_array().into_dimensionality().map_err(shape)?),
            Held::F16(array) => HeadsView::F16(array.as_array().into_dimensionality().map_err(shape)?),
            Held::Bf16(array) => HeadsView::Bf16(array.as_array().into_dimensionality().map_err(shape)?),
        })
    }

    /// Elements of a head with zero padding to a multiple of 16.
    pub(crate) fn padded_width(&self) -> usize {
        self.width.next_multiple_of(LANES)
    }
}

/// Refuses an array whose elements, gathered as float32, do not fit in memory: a broadcast array may state any shape.
fn check_memory(name: &str, [heads, tokens, width]: [usize; 3]) -> Result<(), Failure> {
    let bytes = [heads, tokens, width.saturating_add(LANES), size_of::<f32>()]
        .into_iter()
        .fold(1, usize::saturating_mul) as u64;
    if bytes <= UNCHECKED_BYTES || bytes <= available_memory_bytes() {
        return Ok(());
    }
    Err(Failure::array(format!(
        "{name} has the shape ({heads}, {tokens}, {width}), which takes {} as float32, more than this machine has available",
        human_bytes(bytes)
    )))
}

fn readonly<'py, T: numpy::Element>(
    name: &str,
    array: &Bound<'py, PyArrayDyn<T>>,
) -> Result<PyReadonlyArrayDyn<'py, T>, Failure> {
    if !array.is_c_contiguous()
        && array
            .strides()
            .iter()
            .any(|stride| stride % size_of::<T>() as isize != 0)
    {
        return Err(Failure::array(format!(
            "{name} has strides that are no multiples of its elements: copy it with numpy.ascontiguousarray"
        )));
    }
    if !array.data().is_aligned() {
        return Err(Failure::array(format!(
            "{name} begins at an address that is no multiple of the size of its elements: copy it, as {name}.copy()"
        )));
    }
    let readonly = array.try_readonly();
    readonly.map_err(|_| Failure::array(format!("{name} is being written to by another call")))
}

impl HeadsView<'_> {
    /// The rows of some tokens, `[tokens, heads, padded]`, with zero padding in each head.
    pub(crate) fn rows(&self, tokens: Range<usize>, padded: usize) -> Vec<f32> {
        match self {
            Self::F32(view) => gathered(view, tokens, padded, |value| value),
            Self::F16(view) => gathered(view, tokens, padded, f16::to_f32),
            Self::Bf16(view) => gathered(view, tokens, padded, bf16_to_f32),
        }
    }
}

fn gathered<T: Copy + Sync>(
    view: &ArrayView3<'_, T>,
    tokens: Range<usize>,
    padded: usize,
    convert: impl Fn(T) -> f32 + Sync,
) -> Vec<f32> {
    let (heads, width) = (view.len_of(Axis(0)), view.len_of(Axis(2)));
    let mut rows = vec![0.0; tokens.len() * heads * padded];
    let fill = |(token, row): (usize, &mut [f32])| {
        for (head, out) in row.chunks_exact_mut(padded).enumerate() {
            let lane = view.index_axis(Axis(0), head);
            let lane = lane.index_axis_move(Axis(0), tokens.start + token);
            let out = &mut out[..width];
            match lane.as_slice() {
                Some(values) => out
                    .iter_mut()
                    .zip(values)
                    .for_each(|(out, value)| *out = convert(*value)),
                None => out
                    .iter_mut()
                    .zip(lane.iter())
                    .for_each(|(out, value)| *out = convert(*value)),
            }
        }
    };
    if rows.len() < 1 << 14 {
        rows.chunks_exact_mut(heads * padded).enumerate().for_each(fill)
    } else {
        rows.par_chunks_exact_mut(heads * padded).enumerate().for_each(fill)
    }
    rows
}

/// Rows `[tokens, heads, padded]` as `[heads, tokens, width]`.
pub(crate) fn by_heads(rows: &[f32], heads: usize, padded: usize, width: usize) -> Vec<f32> {
    let tokens = rows.len() / (heads * padded);
    let mut out = vec![0.0; heads * tokens * width];
    let fill = |(head, out): (usize, &mut [f32])| {
        for (token, out) in out.chunks_exact_mut(width).enumerate() {
            out.copy_from_slice(&rows[(token * heads + head) * padded..][..width]);
        }
    };
    if tokens < 16 {
        out.chunks_exact_mut(tokens * width).enumerate().for_each(fill)
    } else {
        out.par_chunks_exact_mut(tokens * width).enumerate().for_each(fill)
    }
    out
}

/// Rows of heads without their padding.
pub(crate) fn without_padding(rows: Vec<f32>, padded: usize, width: usize) -> Vec<f32> {
    if padded == width {
        rows
    } else {
        rows.chunks_exact(padded)
            .flat_map(|head| &head[..width])
            .copied()
            .collect()
    }
}
