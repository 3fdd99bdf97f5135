//! Attention of many queries over pages on the device.

use super::attention::module;
use super::instructions::{PrefillChoice, PrefillInstructions};
use super::reads::Section;
use super::{AttentionCall, Outputs, Reads, check_aligned, check_bytes};
use crate::{CudaError, Grid, Region, Stream};

/// Intermediate state that a prefill over some keys leaves for the next keys, f32 in units of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct PrefillState<'a> {
    /// `[rows, heads, 5]`.
    pub sums: Region<'a>,
    /// `[rows, heads, head_dim]`.
    pub outputs: Region<'a>,
    /// True if an earlier call has stored state.
    pub resume: bool,
    /// True for the last call, which writes the outputs.
    pub finish: bool,
}

impl PrefillState<'_> {
    /// Bytes of `sums` and `outputs`.
    pub fn bytes(rows: usize, heads: usize, head_dim: usize) -> (usize, usize) {
        (rows * heads * 5 * 4, rows * heads * head_dim * 4)
    }
}

/// Attends many queries to the keys in the call's reads, with the instructions of [`PrefillChoice::choose`]. A call
/// over some of the keys continues the sums in `state` and stores its own there; all calls with one `state` use the
/// same instructions.
///
/// # Errors
/// Shapes that disagree, regions that are too short, and errors of [`PrefillChoice::choose`].
pub fn prefill(
    stream: &Stream,
    outputs: &Outputs<'_>,
    call: &AttentionCall<'_>,
    state: Option<&PrefillState<'_>>,
) -> Result<(), CudaError> {
    let pages = &call.pages;
    let choice = PrefillChoice::choose(stream.gpu(), pages.head_dim, pages.key_format, pages.value_format)?;
    prefill_by(stream, choice.instructions, outputs, call, state)
}

/// Like [`prefill`], with these instructions.
///
/// # Errors
/// Shapes that disagree, regions that are too short, instructions that [this device
/// lacks](PrefillInstructions::are_on).
pub fn prefill_by(
    stream: &Stream,
    instructions: PrefillInstructions,
    outputs: &Outputs<'_>,
    call: &AttentionCall<'_>,
    state: Option<&PrefillState<'_>>,
) -> Result<(), CudaError> {
    let heads = call.check()?;
    call.check_outputs(outputs, heads)?;
    let AttentionCall {
        queries,
        pages,
        reads,
        options,
    } = call;
    if !instructions.are_on(stream.gpu(), pages.head_dim) {
        return Err(CudaError::Unsupported {
            what: "head_dim",
            value: pages.head_dim,
            requirement: "64 or 128 on compute capability 9.0 for prefill by wgmma",
        });
    }
    if let Some(state) = state {
        let (sums, of_outputs) = PrefillState::bytes(queries.rows, heads, pages.head_dim);
        check_bytes("sums of a state", state.sums, sums, 1)?;
        check_bytes("outputs of a state", state.outputs, of_outputs, 1)?;
        check_aligned("outputs of a state", state.outputs, 16)?;
    }
    let (resume, finish) = state.map_or((false, true), |state| (state.resume, state.finish));
    let file = match instructions {
        PrefillInstructions::Mma => "prefill.cu",
        PrefillInstructions::Wgmma => "warpgroup_prefill.cu",
    };
    let module = module(file, pages.head_dim, pages.key_format, pages.value_format);
    let kernel = stream.gpu().kernel(&module, "prefill")?;
    let before = [
        outputs.data.into(),
        (outputs.row_stride as u64).into(),
        outputs.log_sum_exp.into(),
        queries.data.into(),
        (queries.row_stride as u64).into(),
        reads.section(Section::Work).into(),
    ];
    let after = [
        (reads.group() as u32).into(),
        (heads as u32).into(),
        options.scale.into(),
        options.soft_cap.unwrap_or(0.0).into(),
        options.sinks.into(),
        state.map(|state| state.sums).into(),
        state.map(|state| state.outputs).into(),
        u32::from(resume).into(),
        u32::from(finish).into(),
    ];
    let arguments = [&before[..], &call.read_arguments()?, &after].concat();
    stream.launch(&kernel, grid(instructions, reads), &arguments)
}

/// Blocks, threads and shared memory of a call.
fn grid(instructions: PrefillInstructions, reads: &Reads) -> Grid {
    let head_dim = reads.head_dim();
    // Queries pass through shared memory, one row per packed row.
    let query_bytes = |warps: usize| 2 * 16 * warps * (head_dim + 8);
    let (warps, shared_bytes) = match instructions {
        // Two buffers of keys and of values; queries share this memory if they move to registers.
        PrefillInstructions::Mma if head_dim <= 128 => (8, (2 * 4 * 64 * (head_dim + 8)).max(query_bytes(8))),
        PrefillInstructions::Mma => (4, 2 * 4 * 32 * (head_dim + 8) + query_bytes(4)),
        // Three tiles of 64 keys and four of values, from a multiple of 1024 bytes on; queries share this memory.
        PrefillInstructions::Wgmma => (8, (2 * 7 * 64 * head_dim).max(query_bytes(8)) + 1024),
    };
    Grid::line(reads.work_items(), 32 * warps).with_shared(shared_bytes)
}
