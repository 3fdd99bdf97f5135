//! Page summaries and policy scores, with the same bits as the scores of `riffle-policy`.

use super::attention::{Pages, Queries, format_number};
use super::layout::PlaneKind;
use super::reads::check_head_dim;
use super::{check_bytes, positive, small, strided};
use crate::{Argument, CudaError, Grid, ModuleSource, Region, Stream};

/// A pair of vectors for each block of tokens of each KV head.
#[derive(Debug, Clone, Copy)]
pub struct BlockSummaries<'a> {
    /// f32 `[kv_heads, capacity, 2, head_dim]`: the smallest and the largest of keys, or the means of keys and of
    /// values.
    pub data: Region<'a>,
    /// Blocks of memory per head.
    pub capacity: usize,
    /// Tokens in a block.
    pub block_tokens: usize,
}

/// A chunk of queries and all keys of one KV head.
#[derive(Debug, Clone, Copy)]
pub struct Estimate<'a> {
    /// The chunk's queries.
    pub queries: Queries<'a>,
    /// Position of the first row.
    pub start: usize,
    /// The KV head.
    pub kv_head: usize,
    /// Query heads of a KV head.
    pub group: usize,
    /// The pages of the layer.
    pub pages: Pages<'a>,
    /// Number of keys.
    pub tokens: usize,
    /// Factor on q·k.
    pub scale: f32,
}

/// The heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadShape {
    /// KV heads.
    pub kv_heads: usize,
    /// Query heads of a KV head.
    pub group: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// Mass of the lines of an attention map, f32 `[tokens]` each.
#[derive(Debug, Clone, Copy)]
pub struct LineSums<'a> {
    /// Mass by key.
    pub columns: Region<'a>,
    /// Mass by distance, query − key.
    pub distances: Region<'a>,
    /// True if the regions already hold the sums of earlier queries.
    pub continues: bool,
}

fn launch(
    stream: &Stream,
    head_dim: usize,
    name: &'static str,
    grid: Grid,
    arguments: &[Argument],
) -> Result<(), CudaError> {
    let kernel = stream
        .gpu()
        .kernel(&ModuleSource::new("scoring.cu", &[("HEAD_DIM", head_dim as u32)]), name)?;
    stream.launch(&kernel, grid, arguments)
}

fn channel_threads(head_dim: usize) -> u32 {
    head_dim.next_multiple_of(32) as u32
}

/// Adds keys to the channel bounds of their blocks: for each KV head the keys from `ranges[0]` to `ranges[1]`, u32
/// `[kv_heads, 2]`, at most `longest` tokens each. A block that begins before them continues from its earlier bounds.
///
/// # Errors
/// Shapes that disagree, regions that are too short.
pub fn key_bounds(
    stream: &Stream,
    bounds: &BlockSummaries<'_>,
    pages: &Pages<'_>,
    ranges: Region<'_>,
    longest: usize,
) -> Result<(), CudaError> {
    let [grid_blocks, kv_heads] = check_ranges(bounds, pages, ranges, longest)?;
    let grid = Grid::new([grid_blocks, kv_heads, 1], channel_threads(pages.head_dim));
    let [planes, pages_per_head, page_tokens, format] = pages.arguments(PlaneKind::Keys)?;
    let arguments = [
        bounds.data.into(),
        (bounds.capacity as u32).into(),
        planes,
        pages_per_head,
        page_tokens,
        format,
        ranges.into(),
        positive("block", bounds.block_tokens)?.into(),
    ];
    launch(stream, pages.head_dim, "key_bounds", grid, &arguments)
}

/// Adds keys and values to the means of their blocks, as [`key_bounds`] adds keys. Whole blocks have the CPU's bits;
/// incomplete blocks hold sums.
///
/// # Errors
/// Shapes that disagree, regions that are too short.
pub fn block_means(
    stream: &Stream,
    means: &BlockSummaries<'_>,
    pages: &Pages<'_>,
    ranges: Region<'_>,
    longest: usize,
) -> Result<(), CudaError> {
    let [grid_blocks, kv_heads] = check_ranges(means, pages, ranges, longest)?;
    let grid = Grid::new([grid_blocks, kv_heads, 2], channel_threads(pages.head_dim));
    let [keys, pages_per_head, page_tokens, key_format] = pages.arguments(PlaneKind::Keys)?;
    let [values, .., value_format] = pages.arguments(PlaneKind::Values)?;
    let arguments = [
        means.data.into(),
        (means.capacity as u32).into(),
        keys,
        pages_per_head,
        page_tokens,
        key_format,
        values,
        value_format,
        ranges.into(),
        positive("block", means.block_tokens)?.into(),
    ];
    launch(stream, pages.head_dim, "block_means", grid, &arguments)
}

/// Checks the ranges to be added to summaries; returns the blocks of a grid and the KV heads.
fn check_ranges(
    summaries: &BlockSummaries<'_>,
    pages: &Pages<'_>,
    ranges: Region<'_>,
    longest: usize,
) -> Result<[usize; 2], CudaError> {
    pages.check()?;
    positive("block", summaries.block_tokens)?;
    check_summaries(summaries, (pages.kv_heads, pages.head_dim), 0)?;
    check_bytes("ranges of tokens", ranges, 2 * pages.kv_heads, 4)?;
    // A range may begin and end within a block.
    Ok([longest.div_ceil(summaries.block_tokens) + 1, pages.kv_heads])
}

/// Quest's bound of each of the first `blocks` blocks, summed over the queries and the heads of the group: f32
/// `[kv_heads, blocks]`.
///
/// # Errors
/// Shapes that disagree, regions that are too short.
pub fn bound_scores(
    stream: &Stream,
    scores: Region<'_>,
    bounds: &BlockSummaries<'_>,
    queries: &Queries<'_>,
    heads: HeadShape,
    blocks: usize,
) -> Result<(), CudaError> {
    let HeadShape {
        kv_heads,
        group,
        head_dim,
    } = heads;
    check_head_dim(head_dim)?;
    check_summaries(bounds, (kv_heads, head_dim), blocks)?;
    let width = kv_heads.saturating_mul(group).saturating_mul(head_dim);
    check_bytes(
        "queries",
        queries.data,
        strided(queries.rows, queries.row_stride, width),
        4,
    )?;
    check_bytes("scores", scores, kv_heads.saturating_mul(blocks), 4)?;
    let arguments = [
        scores.into(),
        small("blocks", blocks)?.into(),
        bounds.data.into(),
        (bounds.capacity as u32).into(),
        queries.data.into(),
        (queries.row_stride as u64).into(),
        small("rows", queries.rows)?.into(),
        positive("group", group)?.into(),
    ];
    launch(
        stream,
        head_dim,
        "bound_scores",
        Grid::new([blocks.div_ceil(128), kv_heads, 1], 128),
        &arguments,
    )
}

/// Bytes of scratch of [`xattention_scores`]: the weights of all long queries on all long keys.
pub fn xattention_scratch_bytes(start: usize, rows: usize, tokens: usize, group: usize, stride: usize) -> usize {
    let (first, end) = (start / stride, (start + rows).div_ceil(stride));
    (end - first) * group * logit_stride(tokens.div_ceil(stride)) * 4
}

/// XAttention's score of each block of keys for each block of the chunk's queries: f32 `[query blocks, blocks]`, zero
/// above the diagonal. Query block `r` is block `start / block + r`.
///
/// # Errors
/// Shapes that disagree, regions that are too short, a stride that does not divide the block.
pub fn xattention_scores(
    stream: &Stream,
    scores: Region<'_>,
    scratch: Region<'_>,
    estimate: &Estimate<'_>,
    stride: usize,
    block: usize,
) -> Result<(), CudaError> {
    estimate.check()?;
    positive("stride", stride)?;
    if block == 0 || !block.is_multiple_of(stride) {
        return Err(CudaError::Unsupported {
            what: "block",
            value: block,
            requirement: "a multiple of the stride",
        });
    }
    let (start, rows) = (estimate.start, estimate.queries.rows);
    let (first, end) = (start / stride, (start + rows).div_ceil(stride));
    let (groups, blocks) = (estimate.tokens.div_ceil(stride), estimate.tokens.div_ceil(block));
    let (first_row, row_end) = (start / block, (start + rows).div_ceil(block));
    check_bytes("scores", scores, (row_end - first_row) * blocks, 4)?;
    let needed = xattention_scratch_bytes(start, rows, estimate.tokens, estimate.group, stride);
    check_bytes("scratch of an estimate", scratch, needed, 1)?;
    let per_head = end - first;
    let long = LongVectors {
        stride,
        first,
        per_head,
        groups,
    };
    estimate.weights(stream, scratch, &long)?;
    let arguments = [
        scores.into(),
        small("blocks", blocks)?.into(),
        scratch.into(),
        (logit_stride(groups) as u64).into(),
        (first as u32).into(),
        (per_head as u32).into(),
        (estimate.group as u32).into(),
        (groups as u32).into(),
        ((block / stride) as u32).into(),
        (first_row as u32).into(),
    ];
    let grid = Grid::new([blocks.div_ceil(128), row_end - first_row, 1], 128);
    launch(stream, estimate.pages.head_dim, "antidiagonal_scores", grid, &arguments)
}

/// Bytes of scratch of [`line_mass`].
pub fn line_mass_scratch_bytes(rows: usize, tokens: usize, group: usize) -> usize {
    rows * group * logit_stride(tokens) * 4
}

/// The attention mass of every column, and of every distance query − key, under all keys. It is the sum over the
/// estimate's queries and the heads of the group.
///
/// # Errors
/// Shapes that disagree, regions that are too short.
pub fn line_mass(
    stream: &Stream,
    sums: &LineSums<'_>,
    scratch: Region<'_>,
    estimate: &Estimate<'_>,
) -> Result<(), CudaError> {
    let LineSums { columns, distances, .. } = *sums;
    estimate.check()?;
    let (rows, tokens) = (estimate.queries.rows, estimate.tokens);
    check_bytes("mass of columns", columns, tokens, 4)?;
    check_bytes("mass of distances", distances, tokens, 4)?;
    let needed = line_mass_scratch_bytes(rows, tokens, estimate.group);
    check_bytes("scratch of an estimate", scratch, needed, 1)?;
    let single = LongVectors {
        stride: 1,
        first: estimate.start,
        per_head: rows,
        groups: tokens,
    };
    estimate.weights(stream, scratch, &single)?;
    let arguments = [
        columns.into(),
        distances.into(),
        scratch.into(),
        (logit_stride(tokens) as u64).into(),
        (estimate.start as u32).into(),
        (rows as u32).into(),
        (estimate.group as u32).into(),
        (tokens as u32).into(),
        u32::from(sums.continues).into(),
    ];
    let grid = Grid::line(tokens.div_ceil(128), 128);
    launch(stream, estimate.pages.head_dim, "line_mass", grid, &arguments)
}

/// Queries and keys in groups of `stride` neighbours, each group joined to one long vector.
struct LongVectors {
    stride: usize,
    /// Index of the first long query, and the number per head.
    first: usize,
    per_head: usize,
    /// Long keys.
    groups: usize,
}

impl Estimate<'_> {
    fn check(&self) -> Result<(), CudaError> {
        self.pages.check()?;
        self.pages.check_tokens(self.tokens)?;
        positive("group", self.group)?;
        small("tokens", self.tokens)?;
        let width = self
            .pages
            .kv_heads
            .saturating_mul(self.group)
            .saturating_mul(self.pages.head_dim);
        let queries = &self.queries;
        check_bytes(
            "queries",
            queries.data,
            strided(queries.rows, queries.row_stride, width),
            4,
        )?;
        for (what, limit, found) in [
            ("KV heads", self.pages.kv_heads, self.kv_head + 1),
            ("last query of an estimate", self.tokens, self.start + queries.rows),
        ] {
            if found > limit {
                return Err(CudaError::Mismatch {
                    what,
                    expected: limit,
                    found,
                });
            }
        }
        positive("rows of an estimate", queries.rows)?;
        Ok(())
    }

    /// The weights exp(logit − largest) of long queries on long keys, `[group × per_head, logit_stride]`. The last
    /// element of each row is the factor that turns the row into a softmax.
    fn weights(&self, stream: &Stream, scratch: Region<'_>, long: &LongVectors) -> Result<(), CudaError> {
        let LongVectors {
            stride,
            first,
            per_head,
            groups,
        } = *long;
        let vectors = per_head * self.group;
        let head_dim = self.pages.head_dim;
        let heads = self
            .queries
            .data
            .part(4 * self.kv_head * self.group * head_dim..self.queries.data.bytes());
        let entry = 8 * self.kv_head * self.pages.pages_per_head;
        let planes = self.pages.keys.part(entry..entry + 8 * self.pages.pages_per_head);
        let row = logit_stride(groups) as u64;
        let arguments = [
            scratch.into(),
            row.into(),
            heads.into(),
            (self.queries.row_stride as u64).into(),
            (self.start as u32).into(),
            (self.queries.rows as u32).into(),
            (first as u32).into(),
            (per_head as u32).into(),
            small("long queries", vectors)?.into(),
            planes.into(),
            (self.pages.page_tokens as u32).into(),
            format_number(self.pages.key_format)?.into(),
            (stride as u32).into(),
            (groups as u32).into(),
            (self.tokens as u32).into(),
            (self.scale / stride as f32).into(),
        ];
        let grid = Grid::new([groups.div_ceil(64), vectors.div_ceil(64), 1], 256);
        launch(stream, head_dim, "long_logits", grid, &arguments)?;
        let arguments = [
            scratch.into(),
            row.into(),
            (first as u32).into(),
            (per_head as u32).into(),
            (groups as u32).into(),
        ];
        launch(
            stream,
            head_dim,
            "ordered_weights",
            Grid::line(vectors, 256),
            &arguments,
        )
    }
}

/// Elements from row to row of logits, including their factor.
fn logit_stride(groups: usize) -> usize {
    (groups + 1).next_multiple_of(32)
}

pub(super) fn check_summaries(
    summaries: &BlockSummaries<'_>,
    (kv_heads, head_dim): (usize, usize),
    blocks: usize,
) -> Result<(), CudaError> {
    if blocks > summaries.capacity {
        return Err(CudaError::Mismatch {
            what: "blocks of summaries",
            expected: blocks,
            found: summaries.capacity,
        });
    }
    small("blocks", summaries.capacity)?;
    let count = kv_heads.saturating_mul(summaries.capacity).saturating_mul(2 * head_dim);
    check_bytes("summaries", summaries.data, count, 4)
}
