//! A policy's selection from pages in main memory.

use std::sync::Arc;

use riffle_attention::Format;
use riffle_cuda::{Gpu, PinnedMemory, RoomBytes, RoomOptions, Stream};
use riffle_device::DeviceQueue;
use riffle_engine::LayerAttention;
use riffle_kv::{CacheShape, KvCache, KvTiers, LayerShape, LayerShapes};
use riffle_policy::{Phase, PolicySpec};

use crate::testing::{noise, on_every_device};

const HEADS: usize = 2;
const WIDTH: usize = HEADS * 64;
const TOKENS: usize = 3200;

#[test]
fn a_choice_of_more_spans_than_there_are_pages_is_read_from_main_memory_with_the_same_bits() {
    on_every_device(|gpu, stream| {
        // Some keys of most pages: more pages than the device can load at a time, and unread pages between them.
        let policy: PolicySpec = "quest:from=0,dense_layers=0,threshold=0,block=16,topk=60"
            .parse()
            .unwrap();
        let stream = Arc::new(stream.gpu().stream().unwrap());
        let resident = answer(gpu, &stream, &policy, |room| room.bytes_for(TOKENS));
        assert_eq!(answer(gpu, &stream, &policy, RoomOptions::least_bytes), resident);
    });
}

/// Attention of one query after many, within a budget of device pages.
fn answer(gpu: &Gpu, stream: &Arc<Stream>, policy: &PolicySpec, budget: impl Fn(&RoomOptions) -> u64) -> Vec<f32> {
    let shape = CacheShape {
        layers: LayerShapes::alike(1, LayerShape::new(HEADS, 64)),
        page_tokens: 64,
        key_format: Format::F16,
        value_format: Format::F16,
    };
    let tiers = KvTiers {
        device: Arc::new(PinnedMemory::new(gpu)),
        ..KvTiers::memory(None)
    };
    let mut cache = KvCache::with_tiers(shape, tiers).unwrap();
    let rows = |tokens: usize, seed: usize| noise(tokens * WIDTH, seed);
    cache.append(0, &rows(TOKENS - 1, 1), &rows(TOKENS - 1, 2)).unwrap();
    let mut room = RoomOptions {
        shape,
        heads: HEADS,
        budget_bytes: 0,
        slots: 2,
        estimate_bytes: 0,
        bound_bytes: 1 << 20,
        mean_bytes: 0,
    };
    room.budget_bytes = budget(&room);
    let queue: Arc<dyn DeviceQueue> = Arc::clone(stream) as _;
    let attention = LayerAttention::new(cache, HEADS, policy, Phase::Decode, 1).unwrap();
    let mut attention = attention.on_device(&queue, room).unwrap();
    let chunk = attention.chunk(1, rows(1, 3), rows(1, 4), rows(1, 5)).unwrap();
    attention.attend(0, &chunk).unwrap();
    attention.output(&chunk).unwrap()
}
