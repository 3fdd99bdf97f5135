//! Attention over pages on the device.

use std::ops::Range;

use riffle_attention::{Format, LANES};

use super::layout::PlaneKind;
use super::reads::{Reads, Section, check_head_dim};
use super::{check_aligned, check_bytes, positive, small, strided};
use crate::{Argument, CudaError, Grid, Kernel, ModuleSource, Region, Stream};

/// The pages of the KV heads of one layer.
#[derive(Debug, Clone, Copy)]
pub struct Pages<'a> {
    /// Addresses of key planes, u64 `[kv_heads, pages_per_head]`, multiples of 16; zero for absent pages.
    pub keys: Region<'a>,
    /// Addresses of value planes, in the same form.
    pub values: Region<'a>,
    /// KV heads.
    pub kv_heads: usize,
    /// Entries of a head in the tables: page `p` holds positions `p · page_tokens..`.
    pub pages_per_head: usize,
    /// Tokens of a page, a multiple of 16.
    pub page_tokens: usize,
    /// Elements of a key or value.
    pub head_dim: usize,
    /// Format of the key planes.
    pub key_format: Format,
    /// Format of the value planes.
    pub value_format: Format,
}

/// The queries of a chunk: row `r`, head `h` is `data[r · row_stride + h · head_dim..]`, f32.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// Data from the first head of the first row on.
    pub data: Region<'a>,
    /// Rows.
    pub rows: usize,
    /// Elements from row to row.
    pub row_stride: usize,
}

/// Target of the outputs, laid out as the queries.
#[derive(Debug, Clone, Copy)]
pub struct Outputs<'a> {
    /// f32, from the first head of the first row on.
    pub data: Region<'a>,
    /// Elements from row to row.
    pub row_stride: usize,
    /// ln Σ exp(logit) of each row and head, f32 `[rows, heads]`, if wanted; without sinks.
    pub log_sum_exp: Option<Region<'a>>,
}

/// Options that all tiles of a call share.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOptions<'a> {
    /// Factor on q·k.
    pub scale: f32,
    /// Logits become cap·tanh(logit / cap).
    pub soft_cap: Option<f32>,
    /// A logit per query head that adds to the softmax's sum without a value, f32 `[heads]`.
    pub sinks: Option<Region<'a>>,
}

/// One call of attention: queries, pages, and the keys that each tile reads.
#[derive(Debug, Clone, Copy)]
pub struct AttentionCall<'a> {
    /// The queries.
    pub queries: Queries<'a>,
    /// The pages.
    pub pages: Pages<'a>,
    /// Keys of these pages that the queries read.
    pub reads: &'a Reads,
    /// Options that all tiles share.
    pub options: AttentionOptions<'a>,
}

/// The kernels' number of a format.
pub(super) fn format_number(format: Format) -> Result<u32, CudaError> {
    match format {
        Format::F16 => Ok(1),
        Format::Bf16 => Ok(2),
        Format::Q8_0 => Ok(3),
        Format::Q4_0 => Ok(4),
        _ => Err(CudaError::Unsupported {
            what: "bits of a cached element",
            value: 8 * format.element_bytes(),
            requirement: "a page of f16, bf16, q8_0 or q4_0",
        }),
    }
}

/// A file of `kernels/` for keys and values of this width; products convert quantised formats to f16.
pub(super) fn module(file: &'static str, head_dim: usize, key_format: Format, value_format: Format) -> ModuleSource {
    let is_bf16 = |format| u32::from(format == Format::Bf16);
    ModuleSource::new(
        file,
        &[
            ("HEAD_DIM", head_dim as u32),
            ("KEY_BF16", is_bf16(key_format)),
            ("VALUE_BF16", is_bf16(value_format)),
        ],
    )
}

impl Pages<'_> {
    pub(super) fn check(&self) -> Result<(), CudaError> {
        check_head_dim(self.head_dim)?;
        if self.page_tokens == 0 || !self.page_tokens.is_multiple_of(LANES) {
            return Err(CudaError::Unsupported {
                what: "page_tokens",
                value: self.page_tokens,
                requirement: "a multiple of 16",
            });
        }
        small("page_tokens", self.page_tokens)?;
        small("pages", self.pages_per_head)?;
        let entries = self.kv_heads.saturating_mul(self.pages_per_head);
        check_bytes("page table of keys", self.keys, entries, 8)?;
        check_bytes("page table of values", self.values, entries, 8)
    }

    /// Checks that a table reaches `tokens`.
    pub(super) fn check_tokens(&self, tokens: usize) -> Result<(), CudaError> {
        if tokens.div_ceil(self.page_tokens) > self.pages_per_head {
            return Err(CudaError::Mismatch {
                what: "pages of a head",
                expected: tokens.div_ceil(self.page_tokens),
                found: self.pages_per_head,
            });
        }
        Ok(())
    }

    /// Kernel arguments for the planes of one kind: page table, pages of a head, tokens of a page, format.
    pub(super) fn arguments(&self, kind: PlaneKind) -> Result<[Argument; 4], CudaError> {
        let (planes, format) = match kind {
            PlaneKind::Keys => (self.keys, self.key_format),
            PlaneKind::Values => (self.values, self.value_format),
        };
        Ok([
            planes.into(),
            small("pages", self.pages_per_head)?.into(),
            small("page_tokens", self.page_tokens)?.into(),
            format_number(format)?.into(),
        ])
    }

    fn kernel(&self, stream: &Stream, name: &'static str) -> Result<Kernel, CudaError> {
        let module = module("decode.cu", self.head_dim, self.key_format, self.value_format);
        stream.gpu().kernel(&module, name)
    }
}

/// Bytes of workspace that [`decode_parts`] takes for these reads.
pub fn decode_workspace_bytes(reads: &Reads) -> usize {
    reads.parts() * chunks(reads) * 16 * (reads.head_dim() + 2) * 4
}

/// Attends few queries (up to 16, with all heads of a group in one block) to `parts` of the keys in `reads`. Pages of
/// other parts may be absent. Partials go to the workspace.
///
/// # Errors
/// Shapes that disagree, regions that are too short.
pub fn decode_parts(
    stream: &Stream,
    workspace: Region<'_>,
    call: &AttentionCall<'_>,
    parts: Range<usize>,
) -> Result<(), CudaError> {
    call.check()?;
    let AttentionCall {
        queries,
        pages,
        reads,
        options,
    } = call;
    let (sums, of_outputs) = workspace_parts(workspace, reads)?;
    if parts.end > reads.parts() || parts.start > parts.end {
        return Err(CudaError::Mismatch {
            what: "end of the parts of a decode",
            expected: reads.parts(),
            found: parts.end,
        });
    }
    let kernel = pages.kernel(stream, "decode")?;
    let warps = if pages.head_dim <= 128 { 4 } else { 2 };
    let shared_bytes = warps * 4 * 16 * (pages.head_dim + 8) * 2;
    let all = reads.section(Section::Parts);
    let grid = Grid::new([parts.len(), chunks(reads), 1], 32 * warps as u32).with_shared(shared_bytes);
    let before = [
        sums.into(),
        of_outputs.into(),
        queries.data.into(),
        (queries.row_stride as u64).into(),
        all.part(16 * parts.start..16 * parts.end).into(),
    ];
    let after = [
        (reads.group() as u32).into(),
        options.scale.into(),
        options.soft_cap.unwrap_or(0.0).into(),
    ];
    stream.launch(&kernel, grid, &[&before[..], &call.read_arguments()?, &after].concat())
}

/// Merges the partials of all parts in order and writes the outputs.
///
/// # Errors
/// As [`decode_parts`].
pub fn decode_merge(
    stream: &Stream,
    outputs: &Outputs<'_>,
    workspace: Region<'_>,
    call: &AttentionCall<'_>,
) -> Result<(), CudaError> {
    let heads = call.check()?;
    call.check_outputs(outputs, heads)?;
    let AttentionCall {
        pages, reads, options, ..
    } = call;
    let (sums, of_outputs) = workspace_parts(workspace, reads)?;
    let kernel = pages.kernel(stream, "merge")?;
    let arguments = [
        outputs.data.into(),
        (outputs.row_stride as u64).into(),
        outputs.log_sum_exp.into(),
        sums.into(),
        of_outputs.into(),
        reads.section(Section::Slots).into(),
        reads.section(Section::Tiles).into(),
        (chunks(reads) as u32).into(),
        (reads.group() as u32).into(),
        (heads as u32).into(),
        options.sinks.into(),
    ];
    stream.launch(
        &kernel,
        Grid::new([reads.tiles().len(), reads.packed_rows(), 1], 128),
        &arguments,
    )
}

/// All parts of a decode and their merge.
///
/// # Errors
/// As [`decode_parts`].
pub fn decode(
    stream: &Stream,
    outputs: &Outputs<'_>,
    workspace: Region<'_>,
    call: &AttentionCall<'_>,
) -> Result<(), CudaError> {
    decode_parts(stream, workspace, call, 0..call.reads.parts())?;
    decode_merge(stream, outputs, workspace, call)
}

fn chunks(reads: &Reads) -> usize {
    reads.packed_rows().div_ceil(16)
}

/// The sums and the outputs of the workspace.
fn workspace_parts<'a>(workspace: Region<'a>, reads: &Reads) -> Result<(Region<'a>, Region<'a>), CudaError> {
    check_bytes("workspace of a decode", workspace, decode_workspace_bytes(reads), 1)?;
    check_aligned("workspace of a decode", workspace, 16)?;
    let sums = reads.parts() * chunks(reads) * 16 * 2 * 4;
    Ok((
        workspace.part(0..sums),
        workspace.part(sums..decode_workspace_bytes(reads)),
    ))
}

impl AttentionCall<'_> {
    /// Kernel arguments for reads and pages: the arrays of `kernels/reads.cuh`, then page tables and formats.
    pub(super) fn read_arguments(&self) -> Result<[Argument; 11], CudaError> {
        let [tiles, runs, diagonals, ends, extras] = self.reads.arguments();
        let [keys, pages_per_head, page_tokens, key_format] = self.pages.arguments(PlaneKind::Keys)?;
        let [values, .., value_format] = self.pages.arguments(PlaneKind::Values)?;
        Ok([
            tiles,
            runs,
            diagonals,
            ends,
            extras,
            keys,
            values,
            pages_per_head,
            page_tokens,
            key_format,
            value_format,
        ])
    }

    /// Checks the common arguments. Returns the number of query heads.
    pub(super) fn check(&self) -> Result<usize, CudaError> {
        let Self {
            queries,
            pages,
            reads,
            options,
        } = self;
        pages.check()?;
        positive("KV heads", pages.kv_heads)?;
        if reads.head_dim() != pages.head_dim {
            return Err(CudaError::Mismatch {
                what: "head_dim of reads and pages",
                expected: pages.head_dim,
                found: reads.head_dim(),
            });
        }
        let heads = pages.kv_heads.saturating_mul(reads.group());
        small("query heads", heads)?;
        let width = heads.saturating_mul(pages.head_dim);
        check_bytes(
            "queries",
            queries.data,
            strided(queries.rows, queries.row_stride, width),
            4,
        )?;
        if let Some(sinks) = options.sinks {
            check_bytes("sinks", sinks, heads, 4)?;
        }
        for tile in reads.tiles() {
            if tile.row + tile.rows > queries.rows {
                return Err(CudaError::Mismatch {
                    what: "rows of queries",
                    expected: tile.row + tile.rows,
                    found: queries.rows,
                });
            }
            if tile.kv_head >= pages.kv_heads {
                return Err(CudaError::Mismatch {
                    what: "KV heads",
                    expected: tile.kv_head + 1,
                    found: pages.kv_heads,
                });
            }
            pages.check_tokens(tile.start + tile.rows)?;
        }
        Ok(heads)
    }

    /// Checks the target of the outputs of this many query heads.
    pub(super) fn check_outputs(&self, outputs: &Outputs<'_>, heads: usize) -> Result<(), CudaError> {
        let (rows, width) = (self.queries.rows, heads * self.pages.head_dim);
        check_bytes("outputs", outputs.data, strided(rows, outputs.row_stride, width), 4)?;
        match outputs.log_sum_exp {
            Some(region) => check_bytes("log-sum-exp", region, rows * heads, 4),
            None => Ok(()),
        }
    }
}
