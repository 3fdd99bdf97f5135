//! Attention to means of blocks.

use riffle_attention::Format;

use super::attention::{AttentionOptions, Outputs, Queries};
use super::reads::{Reads, Section};
use super::scoring::{BlockSummaries, check_summaries};
use super::{check_aligned, check_bytes, positive, small, strided};
use crate::{Argument, CudaError, Grid, ModuleSource, Region, Stream};

/// The means that tiles of [`Reads`] read beside their keys.
#[derive(Debug, Clone, Copy)]
pub struct MeanReads<'a> {
    /// Of every KV head.
    pub means: BlockSummaries<'a>,
    /// KV heads.
    pub kv_heads: usize,
    /// What keys and values are rounded to: bf16 for bf16, else f16, as those of pages are.
    pub formats: [Format; 2],
    /// u64 `[tiles, words]`: a bit for each block that the tile's selection names and reads no token of by a span. Blocks behind the
    /// tile's rows may be named; others must be whole.
    pub named: Region<'a>,
    /// Blocks / 64.
    pub words: usize,
    /// Parts that the words are split into, each of which takes a workspace.
    pub splits: usize,
}

/// Bytes of the sums and of the outputs of [`attend_means`]' workspace.
pub fn means_workspace_bytes(rows: usize, heads: usize, head_dim: usize, splits: usize) -> (usize, usize) {
    let each = splits * rows * heads;
    (each * 2 * 4, each * head_dim * 4)
}

/// Adds the means that tiles read to `outputs`, which hold what they have read of keys, normalised and without sinks, with its
/// log-sum-exp. A row sees a mean when its block ends before the row and the row reads no token of it.
///
/// # Errors
/// Shapes that disagree, regions that are too short.
pub fn attend_means(
    stream: &Stream,
    outputs: &Outputs<'_>,
    workspace: [Region<'_>; 2],
    queries: &Queries<'_>,
    reads: &Reads,
    read: &MeanReads<'_>,
    options: &AttentionOptions<'_>,
) -> Result<(), CudaError> {
    let (head_dim, group, rows) = (reads.head_dim(), reads.group(), queries.rows);
    let heads = read.kv_heads.saturating_mul(group);
    let (width, tiles) = (heads.saturating_mul(head_dim), reads.tiles().len());
    check_summaries(&read.means, (read.kv_heads, head_dim), 0)?;
    check_aligned("means", read.means.data, 16)?;
    check_bytes("means that are named", read.named, tiles.saturating_mul(read.words), 8)?;
    check_bytes("queries", queries.data, strided(rows, queries.row_stride, width), 4)?;
    check_bytes("outputs", outputs.data, strided(rows, outputs.row_stride, width), 4)?;
    let (sums, of_outputs) = means_workspace_bytes(rows, heads, head_dim, read.splits);
    check_bytes("sums of means", workspace[0], sums, 1)?;
    check_bytes("outputs of means", workspace[1], of_outputs, 1)?;
    check_aligned("outputs of means", workspace[1], 16)?;
    let Some(log_sum_exp) = outputs.log_sum_exp.filter(|_| options.sinks.is_none()) else {
        return Err(CudaError::Unsupported {
            what: "means",
            value: 0,
            requirement: "read beside a log-sum-exp and no sinks",
        });
    };
    check_bytes("log-sum-exp", log_sum_exp, rows.saturating_mul(heads), 4)?;
    for tile in reads.tiles() {
        for (what, limit, found) in [
            ("rows of queries", rows, tile.row + tile.rows),
            ("KV heads", read.kv_heads, tile.kv_head + 1),
        ] {
            if found > limit {
                return Err(CudaError::Mismatch {
                    what,
                    expected: found,
                    found: limit,
                });
            }
        }
    }
    let is_bf16 = read.formats.map(|format| u32::from(format == Format::Bf16));
    let defines = [
        ("HEAD_DIM", head_dim as u32),
        ("KEY_BF16", is_bf16[0]),
        ("VALUE_BF16", is_bf16[1]),
    ];
    let module = ModuleSource::new("means.cu", &defines);
    let [all_tiles, _, diagonals, ends, extras] = reads.arguments();
    let (group_argument, heads_argument): (Argument, Argument) = ((group as u32).into(), small("heads", heads)?.into());
    let rows_argument: Argument = small("rows", rows)?.into();
    let arguments = [
        workspace[0].into(),
        workspace[1].into(),
        queries.data.into(),
        (queries.row_stride as u64).into(),
        rows_argument,
        all_tiles,
        diagonals,
        ends,
        extras,
        read.means.data.into(),
        (read.means.capacity as u32).into(),
        read.named.into(),
        small("blocks that are named", read.words)?.into(),
        positive("block", read.means.block_tokens)?.into(),
        group_argument,
        heads_argument,
        options.scale.into(),
        options.soft_cap.unwrap_or(0.0).into(),
    ];
    let (keys, warps) = if head_dim <= 128 { (64, 8) } else { (32, 4) };
    let chunks = reads.packed_rows().div_ceil(16 * warps);
    let shared_bytes = (2 * keys + 16 * warps) * (head_dim + 8) * 2;
    let grid = Grid::of([tiles, chunks, read.splits], 32 * warps as u32).with_shared(shared_bytes);
    stream.launch(&stream.gpu().kernel(&module, "attend_means")?, grid, &arguments)?;
    let weight = (read.means.block_tokens as f32).log2();
    let arguments = [
        outputs.data.into(),
        (outputs.row_stride as u64).into(),
        log_sum_exp.into(),
        workspace[0].into(),
        workspace[1].into(),
        small("splits", read.splits)?.into(),
        rows_argument,
        reads.section(Section::Tiles).into(),
        group_argument,
        heads_argument,
        weight.into(),
    ];
    let grid = Grid::of([tiles, reads.packed_rows(), 1], 128);
    stream.launch(&stream.gpu().kernel(&module, "merge_means")?, grid, &arguments)
}
