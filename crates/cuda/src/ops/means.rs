//! Attention to block means.

use riffle_attention::Format;

use super::attention::{AttentionOptions, Outputs, Queries};
use super::reads::{Reads, Section};
use super::scoring::{BlockSummaries, check_summaries};
use super::{check_aligned, check_bytes, positive, small, strided};
use crate::{CudaError, Grid, Kernel, ModuleSource, Region, Stream};

/// The block means that tiles of [`Reads`] read in addition to keys.
#[derive(Debug, Clone, Copy)]
pub struct MeanReads<'a> {
    /// The tiles.
    pub reads: &'a Reads,
    /// Means of all KV heads.
    pub means: BlockSummaries<'a>,
    /// KV heads.
    pub kv_heads: usize,
    /// Format to which keys and values are rounded: bf16 for bf16, else f16, as in pages.
    pub formats: [Format; 2],
    /// u64 `[tiles, words]`: a bit for each block. It is set if the tile's selection names the block's mean and its
    /// spans read no token of the block. Blocks after the tile's rows may be named; all others must be complete.
    pub named: Region<'a>,
    /// Blocks / 64.
    pub words: usize,
    /// Number of parts of the words, each with a workspace.
    pub splits: usize,
}

/// Bytes of the sums and of the outputs of [`attend_means`]' workspace.
pub fn means_workspace_bytes(rows: usize, heads: usize, head_dim: usize, splits: usize) -> (usize, usize) {
    let each = splits * rows * heads;
    (each * 2 * 4, each * head_dim * 4)
}

/// Adds the means that tiles read to `outputs`. These hold normalised attention over keys, without sinks, with its
/// log-sum-exp. A row reads a mean if its block ends before the row and the row reads no token of the block.
///
/// # Errors
/// Shapes that disagree, regions that are too short.
pub fn attend_means(
    stream: &Stream,
    outputs: &Outputs<'_>,
    workspace: [Region<'_>; 2],
    queries: &Queries<'_>,
    read: &MeanReads<'_>,
    options: &AttentionOptions<'_>,
) -> Result<(), CudaError> {
    read.check(outputs, workspace, queries)?;
    let Some(log_sum_exp) = outputs.log_sum_exp.filter(|_| options.sinks.is_none()) else {
        return Err(CudaError::Unsupported {
            what: "means",
            value: 0,
            requirement: "read beside a log-sum-exp and no sinks",
        });
    };
    let sums = queries.rows.saturating_mul(read.heads());
    check_bytes("log-sum-exp", log_sum_exp, sums, 4)?;
    read.check_tiles(queries)?;
    read.sum(stream, workspace, queries, options)?;
    read.merge(stream, workspace, (outputs, log_sum_exp), queries.rows)
}

impl MeanReads<'_> {
    /// Query heads.
    fn heads(&self) -> usize {
        self.kv_heads.saturating_mul(self.reads.group())
    }

    fn check(&self, outputs: &Outputs<'_>, workspace: [Region<'_>; 2], queries: &Queries<'_>) -> Result<(), CudaError> {
        let (head_dim, rows, heads) = (self.reads.head_dim(), queries.rows, self.heads());
        let (width, tiles) = (heads.saturating_mul(head_dim), self.reads.tiles().len());
        check_summaries(&self.means, (self.kv_heads, head_dim), 0)?;
        check_aligned("means", self.means.data, 16)?;
        check_bytes("means that are named", self.named, tiles.saturating_mul(self.words), 8)?;
        check_bytes("queries", queries.data, strided(rows, queries.row_stride, width), 4)?;
        check_bytes("outputs", outputs.data, strided(rows, outputs.row_stride, width), 4)?;
        let (sums, of_outputs) = means_workspace_bytes(rows, heads, head_dim, self.splits);
        check_bytes("sums of means", workspace[0], sums, 1)?;
        check_bytes("outputs of means", workspace[1], of_outputs, 1)?;
        check_aligned("outputs of means", workspace[1], 16)
    }

    fn check_tiles(&self, queries: &Queries<'_>) -> Result<(), CudaError> {
        for tile in self.reads.tiles() {
            for (what, limit, found) in [
                ("rows of queries", queries.rows, tile.row + tile.rows),
                ("KV heads", self.kv_heads, tile.kv_head + 1),
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
        Ok(())
    }

    fn kernel(&self, stream: &Stream, name: &'static str) -> Result<Kernel, CudaError> {
        let is_bf16 = self.formats.map(|format| u32::from(format == Format::Bf16));
        let defines = [
            ("HEAD_DIM", self.reads.head_dim() as u32),
            ("KEY_BF16", is_bf16[0]),
            ("VALUE_BF16", is_bf16[1]),
        ];
        stream.gpu().kernel(&ModuleSource::new("means.cu", &defines), name)
    }

    /// Queues the sums of each part of the words for each row, into the workspace.
    fn sum(
        &self,
        stream: &Stream,
        workspace: [Region<'_>; 2],
        queries: &Queries<'_>,
        options: &AttentionOptions<'_>,
    ) -> Result<(), CudaError> {
        let head_dim = self.reads.head_dim();
        let [all_tiles, _, diagonals, ends, extras] = self.reads.arguments();
        let arguments = [
            workspace[0].into(),
            workspace[1].into(),
            queries.data.into(),
            (queries.row_stride as u64).into(),
            small("rows", queries.rows)?.into(),
            all_tiles,
            diagonals,
            ends,
            extras,
            self.means.data.into(),
            (self.means.capacity as u32).into(),
            self.named.into(),
            small("blocks that are named", self.words)?.into(),
            positive("block", self.means.block_tokens)?.into(),
            (self.reads.group() as u32).into(),
            small("heads", self.heads())?.into(),
            options.scale.into(),
            options.soft_cap.unwrap_or(0.0).into(),
        ];
        let (keys, warps) = if head_dim <= 128 { (64, 8) } else { (32, 4) };
        let chunks = self.reads.packed_rows().div_ceil(16 * warps);
        let shared_bytes = (2 * keys + 16 * warps) * (head_dim + 8) * 2;
        let blocks = [self.reads.tiles().len(), chunks, self.splits];
        let grid = Grid::new(blocks, 32 * warps as u32).with_shared(shared_bytes);
        stream.launch(&self.kernel(stream, "attend_means")?, grid, &arguments)
    }

    /// Queues the merge of the workspace with the outputs of `rows` and their log-sum-exp.
    fn merge(
        &self,
        stream: &Stream,
        workspace: [Region<'_>; 2],
        (outputs, log_sum_exp): (&Outputs<'_>, Region<'_>),
        rows: usize,
    ) -> Result<(), CudaError> {
        let weight = (self.means.block_tokens as f32).log2();
        let arguments = [
            outputs.data.into(),
            (outputs.row_stride as u64).into(),
            log_sum_exp.into(),
            workspace[0].into(),
            workspace[1].into(),
            small("splits", self.splits)?.into(),
            small("rows", rows)?.into(),
            self.reads.section(Section::Tiles).into(),
            (self.reads.group() as u32).into(),
            small("heads", self.heads())?.into(),
            weight.into(),
        ];
        let grid = Grid::new([self.reads.tiles().len(), self.reads.packed_rows(), 1], 128);
        stream.launch(&self.kernel(stream, "merge_means")?, grid, &arguments)
    }
}
