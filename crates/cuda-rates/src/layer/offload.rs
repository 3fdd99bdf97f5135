//! Pages loaded from main memory, compared with pages on the device.

use std::sync::Arc;

use riffle_cuda::Stream;
use riffle_eval::{AttentionCase, EvalError, OffloadRate};
use riffle_policy::PolicySpec;

use super::{MadeLayer, Pages, median};

/// A call with all pages in one location.
struct Call {
    median_ms: f64,
    output: Vec<f32>,
    /// Bytes of loaded pages.
    bytes: f64,
}

/// Dense calls with every page on the device and with every page in pinned main memory.
pub(crate) fn offload(
    stream: &Arc<Stream>,
    case: &AttentionCase,
    repeats: usize,
    upload_gigabytes_per_s: f64,
) -> Result<OffloadRate, EvalError> {
    let layer = MadeLayer::new(stream, case, repeats)?;
    let resident = call(&layer, Pages::OnDevice, repeats)?;
    let far = call(&layer, Pages::InMemory, repeats)?;
    let (median_ms, resident_ms) = (far.median_ms, resident.median_ms);
    let gigabytes_per_s = far.bytes / median_ms / 1e6;
    let copy_ms = far.bytes / upload_gigabytes_per_s / 1e6;
    Ok(OffloadRate {
        rows: case.rows,
        tokens: case.tokens,
        median_ms,
        resident_ms,
        gigabytes_per_s,
        upload_share: gigabytes_per_s / upload_gigabytes_per_s,
        overlap_share: ((copy_ms + resident_ms - median_ms) / copy_ms.min(resident_ms)).clamp(0.0, 1.0),
        same_bits: resident.output == far.output,
    })
}

fn call(layer: &MadeLayer, pages: Pages, repeats: usize) -> Result<Call, EvalError> {
    let mut attention = layer.attention(pages, &PolicySpec::full())?;
    let chunk = layer.chunk(&attention)?;
    let mut times_ms = Vec::new();
    for repeat in 0..=repeats {
        layer.go_back(&mut attention);
        let before = attention.time()?;
        attention.attend(0, &chunk)?;
        let attended = attention.time()?;
        if repeat > 0 {
            times_ms.push(attended.attend_ms - before.attend_ms);
        }
    }
    Ok(Call {
        median_ms: median(times_ms),
        output: attention.output(&chunk)?,
        bytes: attention.transferred().bytes as f64 / (repeats + 1) as f64,
    })
}
