//! Launches of kernels: each checks shapes, computes the grid and queues one kernel.
//!
//! Activations are f32 and row-major unless a function says otherwise.

mod append;
mod arrange;
mod attention;
mod delta;
mod elementwise;
mod instructions;
mod layout;
mod linear;
mod mass;
mod means;
mod prefill;
mod reads;
mod rows;
mod scoring;
mod weights;

pub use append::{AppendTargets, NewTokens, append, rotate_heads};
pub(crate) use arrange::{PlaneLayout, PlaneMove, arrange_planes};
pub use attention::{
    AttentionCall, AttentionOptions, Outputs, Pages, Queries, decode, decode_merge, decode_parts,
    decode_workspace_bytes,
};
pub use delta::{DeltaGates, DeltaShape, DeltaTokens, convolve, delta_gates, delta_rule, delta_scratch_bytes};
pub use elementwise::{
    Activation, Columns, activate, add, add_to_rows, copy_columns, gate_product, multiply, soft_cap,
};
pub use instructions::{PrefillChoice, PrefillInstructions};
pub use layout::{PlaneKind, plane_to_cpu, plane_to_device};
pub use linear::{DeviceMatrix, FEW_ROWS};
pub use mass::{KeyMass, column_mass};
pub use means::{MeanReads, attend_means, means_workspace_bytes};
pub use prefill::{PrefillState, prefill, prefill_by};
pub use reads::{KEY_BLOCK, Reads, TileReads};
pub use rows::{HeadRows, Rows, argmax, head_norm, layer_norm, rms_norm, rotary};
pub use scoring::{
    BlockSummaries, Estimate, HeadShape, LineSums, block_means, bound_scores, key_bounds, line_mass,
    line_mass_scratch_bytes, xattention_scores, xattention_scratch_bytes,
};

use crate::{CudaError, Region};

/// Threads of a block in maps over arrays.
const MAP_THREADS: u32 = 256;

/// Blocks that cover `count` elements, up to a number that fills any device.
fn map_blocks(count: usize) -> usize {
    count.div_ceil(MAP_THREADS as usize).min(65_535)
}

/// Checks that a region holds `count` elements of `size` bytes.
fn check_bytes(what: &'static str, region: Region<'_>, count: usize, size: usize) -> Result<(), CudaError> {
    let needed_bytes = count.saturating_mul(size);
    if region.bytes() < needed_bytes {
        return Err(CudaError::Short {
            what,
            needed_bytes,
            found_bytes: region.bytes(),
        });
    }
    Ok(())
}

/// Checks that a region for vector accesses is aligned.
fn check_aligned(what: &'static str, region: Region<'_>, bytes: usize) -> Result<(), CudaError> {
    if !region.address().is_multiple_of(bytes as u64) {
        return Err(CudaError::Unsupported {
            what,
            value: region.address() as usize,
            requirement: "the address of a region that begins at a multiple of 16 bytes",
        });
    }
    Ok(())
}

/// Elements of `rows` that begin `stride` apart and are `width` wide.
fn strided(rows: usize, stride: usize, width: usize) -> usize {
    if rows == 0 {
        0
    } else {
        (rows - 1).saturating_mul(stride).saturating_add(width)
    }
}

fn small(what: &'static str, value: usize) -> Result<u32, CudaError> {
    u32::try_from(value)
        .ok()
        .filter(|value| *value <= i32::MAX as u32)
        .ok_or(CudaError::Unsupported {
            what,
            value,
            requirement: "below 2^31",
        })
}

fn positive(what: &'static str, value: usize) -> Result<u32, CudaError> {
    if value == 0 {
        let requirement = "at least 1";
        return Err(CudaError::Unsupported {
            what,
            value,
            requirement,
        });
    }
    small(what, value)
}
