//! Appends new keys and values to pages.

use riffle_attention::{Format, LANES};

use super::attention::format_number;
use super::reads::check_head_dim;
use super::rows::HeadRows;
use super::{check_bytes, positive, small};
use crate::{CudaError, Grid, ModuleSource, Region, Stream};

/// Multiplies every head by the normalised Walsh–Hadamard matrix, with the same bits as
/// `riffle_attention::rotate_heads`. The matrix is its own inverse.
///
/// # Errors
/// A region that is too short, a width without a kernel.
pub fn rotate_heads(stream: &Stream, heads: &HeadRows<'_>) -> Result<(), CudaError> {
    heads.check("heads")?;
    check_head_dim(heads.head_dim)?;
    let kernel = stream.gpu().kernel(&module(heads.head_dim), "rotate_heads")?;
    let count = heads.rows * heads.heads;
    let arguments = [
        heads.data.into(),
        small("heads", heads.heads)?.into(),
        (heads.stride as u64).into(),
        (count as u64).into(),
    ];
    stream.launch(&kernel, Grid::line(count.div_ceil(4), 128), &arguments)
}

/// New tokens of all KV heads of a layer: rows of keys and of values, side by side.
#[derive(Debug, Clone, Copy)]
pub struct NewTokens<'a> {
    /// Keys.
    pub keys: HeadRows<'a>,
    /// Values, with the same number of rows and stride.
    pub values: HeadRows<'a>,
    /// Formats of stored keys and values.
    pub formats: [Format; 2],
    /// True for keys (first) or values (second) that pass through [`rotate_heads`].
    pub rotated: [bool; 2],
}

/// Pages that take the new tokens of each KV head.
#[derive(Debug, Clone, Copy)]
pub struct AppendTargets<'a> {
    /// u64 `[kv_heads, 1 + 2 · pages]`: the slot of the head's first new token, then addresses of planes of keys and of
    /// values, from this token's page on. Addresses are multiples of 16, or zero for absent pages.
    pub list: Region<'a>,
    /// Pages per head in the list.
    pub pages: usize,
    /// Tokens of a page, a multiple of 16.
    pub page_tokens: usize,
    /// Maximum number of stripes of 16 tokens with new tokens of a head.
    pub stripes: usize,
}

impl NewTokens<'_> {
    /// Bytes of the new tokens in the format of main memory, for this many stripes per head.
    pub fn stripe_bytes(&self, stripes: usize) -> usize {
        let plane = |format: Format| format.plane_bytes(LANES * stripes, self.keys.head_dim);
        self.keys.heads * (plane(self.formats[0]) + plane(self.formats[1]))
    }
}

/// Writes new tokens to pages, in their formats and with the CPU's bits, and to `stripes` in the format of main
/// memory: planes of `[kv_heads]` keys, then of values. Each has `targets.stripes` stripes, from the stripe of the
/// head's first new token on; other tokens in them are zero.
///
/// # Errors
/// Shapes that disagree, regions that are too short.
pub fn append(
    stream: &Stream,
    stripes: Region<'_>,
    targets: &AppendTargets<'_>,
    new: &NewTokens<'_>,
) -> Result<(), CudaError> {
    let NewTokens { keys, values, .. } = new;
    keys.check("new keys")?;
    values.check("new values")?;
    check_head_dim(keys.head_dim)?;
    for (what, expected, found) in [
        ("heads of new values", keys.heads, values.heads),
        ("head_dim of new values", keys.head_dim, values.head_dim),
        ("rows of new values", keys.rows, values.rows),
        ("row stride of new values", keys.stride, values.stride),
        ("page tokens in stripes of 16", 0, targets.page_tokens % LANES),
    ] {
        if expected != found {
            return Err(CudaError::Mismatch { what, expected, found });
        }
    }
    check_bytes(
        "targets of new tokens",
        targets.list,
        keys.heads * (1 + 2 * targets.pages),
        8,
    )?;
    check_bytes("stripes of new tokens", stripes, new.stripe_bytes(targets.stripes), 1)?;
    let kernel = stream.gpu().kernel(&module(keys.head_dim), "append")?;
    let arguments = [
        stripes.into(),
        small("stripes", targets.stripes)?.into(),
        targets.list.into(),
        small("pages", targets.pages)?.into(),
        positive("page tokens", targets.page_tokens)?.into(),
        keys.data.into(),
        format_number(new.formats[0])?.into(),
        u32::from(new.rotated[0]).into(),
        values.data.into(),
        format_number(new.formats[1])?.into(),
        u32::from(new.rotated[1]).into(),
        (keys.stride as u64).into(),
        small("new tokens", keys.rows)?.into(),
    ];
    stream.launch(&kernel, Grid::new([targets.stripes, keys.heads, 2], 128), &arguments)
}

fn module(head_dim: usize) -> ModuleSource {
    ModuleSource::new("append.cu", &[("HEAD_DIM", head_dim as u32)])
}
