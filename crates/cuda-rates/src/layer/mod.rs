//! One layer with a device page cache: the time of the engine's attention by the location of pages, and under
//! policies with their selection.

mod ahead;
mod offload;
mod policy;

use std::sync::Arc;

use riffle_cuda::{CudaError, PinnedMemory, RoomBytes, RoomOptions, Stream};
use riffle_device::{DeviceError, DeviceQueue};
use riffle_engine::{ChunkRows, EngineError, LayerAttention};
use riffle_eval::measuring::noise;
use riffle_eval::{AttentionCase, EvalError};
use riffle_kv::{CacheShape, KvCache, KvTiers, LayerShapes};
use riffle_policy::{Phase, PolicySpec};

pub(crate) use ahead::ahead;
pub(crate) use offload::offload;
pub(crate) use policy::policy;

/// Number of equal layers, read alternately.
const LAYERS: usize = 2;

/// Maximum number of pages in transit.
const SLOTS: usize = 64;

/// Location of a call's pages.
#[derive(Debug, Clone, Copy)]
enum Pages {
    /// All pages are on the device.
    OnDevice,
    /// All pages are in pinned main memory, except pages in transit.
    InMemory,
}

/// Two equal layers with their context, and the last chunk of their prompt.
struct MadeLayer {
    stream: Arc<Stream>,
    case: AttentionCase,
    /// Cache of all layers, in memory that the device copies from by itself, as in an engine.
    cache: KvCache,
    held: usize,
}

impl MadeLayer {
    /// A chunk of a prompt is read again each time. An answer continues: the last of `repeats` tokens after a first one
    /// is the token at the end of the case.
    fn new(stream: &Arc<Stream>, case: &AttentionCase, repeats: usize) -> Result<Self, EvalError> {
        const FILL_TOKENS: usize = 4096;
        let tiers = KvTiers {
            device: Arc::new(PinnedMemory::new(stream.gpu())),
            ..KvTiers::memory(None)
        };
        let of_one = case.cache_shape();
        let shape = CacheShape {
            layers: LayerShapes::alike(LAYERS, of_one.layer(0)),
            ..of_one
        };
        let mut cache = KvCache::with_tiers(shape, tiers).map_err(EngineError::from)?;
        let after = if case.rows == 1 { 1 + repeats } else { case.rows };
        let held = case.tokens.saturating_sub(after);
        for start in (0..held).step_by(FILL_TOKENS) {
            let tokens = FILL_TOKENS.min(held - start);
            let (keys, values) = keys_and_values(case, start, tokens);
            for layer in 0..LAYERS {
                cache.append(layer, &keys, &values).map_err(EngineError::from)?;
            }
        }
        Ok(Self {
            stream: Arc::clone(stream),
            case: *case,
            cache,
            held,
        })
    }

    /// The attention of the layers under a policy.
    fn attention(&self, pages: Pages, policy: &PolicySpec) -> Result<LayerAttention, EvalError> {
        let (case, phase) = (&self.case, self.phase());
        let mut room = RoomOptions {
            shape: *self.cache.shape(),
            heads: case.heads,
            budget_bytes: 0,
            slots: SLOTS,
            estimate_bytes: 256 << 20,
            bound_bytes: (LAYERS as u64) * (64 << 20),
            mean_bytes: 0,
        };
        room.budget_bytes = match pages {
            Pages::OnDevice => room.bytes_for(case.tokens),
            Pages::InMemory => room.least_bytes(),
        };
        let attention = LayerAttention::new(self.cache.fork(), case.heads, policy, phase, case.rows)?;
        let queue: Arc<dyn DeviceQueue> = Arc::clone(&self.stream) as _;
        Ok(attention.on_device(&queue, room)?)
    }

    fn chunk(&self, attention: &LayerAttention) -> Result<ChunkRows, EvalError> {
        let mut queries = noise(self.case.rows * self.case.heads * self.case.head_dim, 7);
        queries.iter_mut().for_each(|x| *x += 1.0);
        let (keys, values) = keys_and_values(&self.case, self.held, self.case.rows);
        Ok(attention.chunk(self.case.rows, queries, keys, values)?)
    }

    /// Truncates to before a prompt's chunk. An answer continues instead, because its next token needs the page with
    /// the token before.
    fn go_back(&self, attention: &mut LayerAttention) {
        match self.phase() {
            Phase::Prefill => attention.truncate(self.held),
            Phase::Decode => {}
        }
    }

    fn phase(&self) -> Phase {
        match self.case.rows {
            1 => Phase::Decode,
            _ => Phase::Prefill,
        }
    }
}

/// Keys of about every twentieth block get logits of about six from all queries. Few blocks then hold most of the mass.
fn keys_and_values(case: &AttentionCase, start: usize, tokens: usize) -> (Vec<f32>, Vec<f32>) {
    const BLOCK: usize = 128;
    let width = case.kv_heads * case.head_dim;
    let more = 6.0 / (case.head_dim as f32).sqrt();
    let mut keys = noise(tokens * width, start as u64 + 1);
    for (token, key) in keys.chunks_exact_mut(width).enumerate() {
        // Multiples of the golden ratio modulo 1 spread evenly.
        let place = ((start + token) / BLOCK) as f64 * 0.618_033_988_749_895;
        if place.fract() < 0.05 {
            key.iter_mut().for_each(|x| *x += more);
        }
    }
    (keys, noise(tokens * width, start as u64 + 2))
}

pub(crate) fn failed(error: CudaError) -> EvalError {
    EngineError::from(DeviceError::from(error)).into()
}

/// Milliseconds of the work that `queue` queues, by events around it.
fn elapsed_ms(stream: &Stream, queue: impl FnOnce() -> Result<(), EvalError>) -> Result<f64, EvalError> {
    let event = || stream.gpu().event().map_err(failed);
    let (start, end) = (event()?, event()?);
    stream.record(&start).map_err(failed)?;
    queue()?;
    stream.record(&end).map_err(failed)?;
    stream.synchronize().map_err(failed)?;
    Ok(f64::from(end.elapsed_ms_since(&start).map_err(failed)?))
}

/// The median of some times.
pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    // A coarse clock may give zero, which must not be a divisor.
    times[times.len() / 2].max(1e-6)
}
