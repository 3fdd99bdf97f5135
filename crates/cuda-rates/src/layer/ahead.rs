//! Pages that are loaded while the device computes something else.

use std::sync::Arc;

use riffle_cuda::{CudaError, DeviceBuffer, Stream, TransferCount};
use riffle_eval::{AheadRate, AttentionCase, EvalError};
use riffle_policy::PolicySpec;

use super::{LAYERS, MadeLayer, Pages, SLOTS, elapsed_ms, failed, median};

/// The device's work between two calls: a copy.
struct Work {
    from: DeviceBuffer,
    to: DeviceBuffer,
}

/// Alternating calls on the layers.
struct Turns {
    median_ms: f64,
    /// Outputs by layer.
    outputs: Vec<Vec<f32>>,
    transferred: TransferCount,
}

/// Alternating dense calls on two layers with pages in pinned main memory, with and without reading ahead.
pub(crate) fn ahead(
    stream: &Arc<Stream>,
    case: &AttentionCase,
    repeats: usize,
    copy_gigabytes_per_s: f64,
    upload_gigabytes_per_s: f64,
) -> Result<AheadRate, EvalError> {
    // The context is short, so that the pages read ahead are a large part of all.
    let shape = case.cache_shape();
    let most = 4 * SLOTS.div_ceil(case.kv_heads) * shape.page_tokens;
    let tokens = case.tokens.min(most);
    let case = AttentionCase {
        rows: case.rows.min(tokens),
        tokens,
        ..*case
    };
    let layer = MadeLayer::new(stream, &case, repeats)?;
    // About as long as the page copies that can hide behind it. A copy reads and writes.
    let page = shape.key_format.plane_bytes(shape.page_tokens, case.head_dim)
        + shape.value_format.plane_bytes(shape.page_tokens, case.head_dim);
    let bytes = ((SLOTS * page) as f64 * copy_gigabytes_per_s / upload_gigabytes_per_s / 2.0).clamp(1.0, 1e9) as usize;
    let work = Work::new(stream, bytes).map_err(failed)?;
    let without = turns(&layer, false, &work, repeats)?;
    let with = turns(&layer, true, &work, repeats)?;
    let (came, median_ms, without_ms) = (with.transferred, with.median_ms, without.median_ms);
    let ahead_bytes = came.pages_ahead as f64 * page as f64 / (LAYERS * (repeats + 1)) as f64;
    let copy_ms = ahead_bytes / upload_gigabytes_per_s / 1e6;
    Ok(AheadRate {
        rows: case.rows,
        tokens: case.tokens,
        median_ms,
        without_ms,
        between_ms: elapsed_ms(stream, || work.queue(stream).map_err(failed))?,
        ahead_share: came.pages_ahead as f64 / came.pages as f64,
        overlap_share: ((without_ms - median_ms) / copy_ms).clamp(0.0, 1.0),
        same_bits: without.outputs == with.outputs,
    })
}

fn turns(layer: &MadeLayer, reads_ahead: bool, work: &Work, repeats: usize) -> Result<Turns, EvalError> {
    let mut attention = layer.attention(Pages::InMemory, &PolicySpec::full())?;
    if !reads_ahead {
        attention = attention.without_reading_ahead();
    }
    let chunks = (0..LAYERS).map(|_| layer.chunk(&attention));
    let chunks = chunks.collect::<Result<Vec<_>, _>>()?;
    let mut times_ms = Vec::new();
    for repeat in 0..=repeats {
        layer.go_back(&mut attention);
        let elapsed_ms = elapsed_ms(&layer.stream, || {
            for (number, chunk) in chunks.iter().enumerate() {
                attention.attend(number, chunk)?;
                work.queue(&layer.stream).map_err(failed)?;
            }
            Ok(())
        })?;
        if repeat > 0 {
            times_ms.push(elapsed_ms / LAYERS as f64);
        }
    }
    let outputs = chunks.iter().map(|chunk| attention.output(chunk));
    Ok(Turns {
        median_ms: median(times_ms),
        outputs: outputs.collect::<Result<_, _>>()?,
        transferred: attention.transferred(),
    })
}

impl Work {
    fn new(stream: &Stream, bytes: usize) -> Result<Self, CudaError> {
        Ok(Self {
            from: stream.gpu().allocate(bytes)?,
            to: stream.gpu().allocate(bytes)?,
        })
    }

    fn queue(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.copy_on_device(self.to.all(), self.from.all())
    }
}
