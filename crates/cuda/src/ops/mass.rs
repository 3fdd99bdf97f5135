//! Column mass: the attention that each key received.

use std::ops::Range;

use riffle_attention::Format;

use super::attention::AttentionCall;
use super::layout::PlaneKind;
use super::reads::KEY_BLOCK;
use super::{check_bytes, small, strided};
use crate::{CudaError, Grid, ModuleSource, Region, Stream};

/// Target of the mass of neighbouring keys.
#[derive(Debug, Clone)]
pub struct KeyMass<'a> {
    /// f32, the keys of a KV head in order, from the first key on.
    pub data: Region<'a>,
    /// Elements from head to head.
    pub stride: usize,
    /// Range of the keys; it begins at a multiple of 64.
    pub keys: Range<usize>,
}

/// Adds the softmax weight that each key of `mass` receives. It is the sum over the rows of the call and the heads of
/// the group.
///
/// `log_sum_exp`, f32 `[rows, heads]`, covers the whole attention, so parts of a cache may be visited in any order.
///
/// # Errors
/// Shapes that disagree, regions that are too short.
pub fn column_mass(
    stream: &Stream,
    mass: &KeyMass<'_>,
    log_sum_exp: Region<'_>,
    call: &AttentionCall<'_>,
) -> Result<(), CudaError> {
    let heads = call.check()?;
    let AttentionCall {
        queries,
        pages,
        reads,
        options,
    } = call;
    let KeyMass { data, stride, keys } = mass;
    if !keys.start.is_multiple_of(KEY_BLOCK) {
        return Err(CudaError::Unsupported {
            what: "first key of a column mass",
            value: keys.start,
            requirement: "a multiple of 64",
        });
    }
    check_bytes("column mass", *data, strided(pages.kv_heads, *stride, keys.len()), 4)?;
    check_bytes("log-sum-exp", log_sum_exp, queries.rows.saturating_mul(heads), 4)?;
    let is_bf16 = u32::from(pages.key_format == Format::Bf16);
    let defines = [("HEAD_DIM", pages.head_dim as u32), ("KEY_BF16", is_bf16)];
    let kernel = stream
        .gpu()
        .kernel(&ModuleSource::new("column_mass.cu", &defines), "column_mass")?;
    let shared_bytes = (KEY_BLOCK + 4 * 16) * (pages.head_dim + 8) * 2;
    let grid = Grid::new([keys.len().div_ceil(KEY_BLOCK), pages.kv_heads, 1], 128).with_shared(shared_bytes);
    let [tiles, arrays @ ..] = reads.arguments();
    let before = [
        (*data).into(),
        small("stride of masses", *stride)?.into(),
        small("keys", keys.len())?.into(),
        small("first key", keys.start)?.into(),
        log_sum_exp.into(),
        queries.data.into(),
        (queries.row_stride as u64).into(),
        tiles,
        small("tiles", reads.tiles().len())?.into(),
    ];
    let after = [
        (reads.group() as u32).into(),
        (heads as u32).into(),
        options.scale.into(),
        options.soft_cap.unwrap_or(0.0).into(),
    ];
    let planes = pages.arguments(PlaneKind::Keys)?;
    stream.launch(&kernel, grid, &[&before[..], &arrays, &planes, &after].concat())
}
