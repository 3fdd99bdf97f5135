//! New keys and values into pages.

use super::attention::{Pages, format_number};
use super::layout::PlaneKind;
use super::reads::check_head_dim;
use super::rows::HeadRows;
use super::small;
use crate::{CudaError, Grid, ModuleSource, Region, Stream};

/// Multiplies every head by the normalised Walsh–Hadamard matrix, as `riffle_attention::rotate_heads` to the bit. Its own
/// inverse.
///
/// # Errors
/// A region that is too short, a width no kernel is written for.
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

/// Writes the keys or values of new tokens, `[rows, kv_heads, head_dim]` f32, to positions `start..` of the pages, in
/// their format and with the CPU's roundings to the bit; `rotated` applies [`rotate_heads`] on the way. The pages must
/// be there.
///
/// # Errors
/// Shapes that disagree, regions that are too short.
pub fn append(
    stream: &Stream,
    pages: &Pages<'_>,
    kind: PlaneKind,
    source: &HeadRows<'_>,
    start: usize,
    rotated: bool,
) -> Result<(), CudaError> {
    pages.check()?;
    source.check("new keys or values")?;
    pages.check_tokens(start.saturating_add(source.rows))?;
    for (what, expected, found) in [
        ("heads of new keys or values", pages.kv_heads, source.heads),
        ("head_dim of new keys or values", pages.head_dim, source.head_dim),
    ] {
        if expected != found {
            return Err(CudaError::Mismatch { what, expected, found });
        }
    }
    let (planes, format): (Region<'_>, _) = match kind {
        PlaneKind::Keys => (pages.keys, pages.key_format),
        PlaneKind::Values => (pages.values, pages.value_format),
    };
    let kernel = stream.gpu().kernel(&module(pages.head_dim), "append")?;
    let count = source.rows * source.heads;
    let arguments = [
        planes.into(),
        (pages.pages_per_head as u32).into(),
        (pages.page_tokens as u32).into(),
        format_number(format)?.into(),
        source.data.into(),
        (source.stride as u64).into(),
        (source.heads as u32).into(),
        small("position", start)?.into(),
        u32::from(rotated).into(),
        (count as u64).into(),
    ];
    stream.launch(&kernel, Grid::line(count.div_ceil(4), 128), &arguments)
}

fn module(head_dim: usize) -> ModuleSource {
    ModuleSource::new("append.cu", &[("HEAD_DIM", head_dim as u32)])
}
