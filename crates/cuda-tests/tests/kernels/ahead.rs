//! Pages that are read ahead of their call, while their memory is freed or reused.

use std::sync::Arc;

use riffle_attention::{AttendOptions, Format, PageView, Selection};
use riffle_cuda::ops::Queries;
use riffle_cuda::{
    CallRows, DeviceBuffer, DeviceRoom, EmulatedOptions, Gpu, LayerPages, PagedTile, PinnedMemory, RoomBytes,
    RoomOptions, SequenceId, Stream,
};
use riffle_kv::{CacheShape, KvCache, KvTiers, LayerShape, LayerShapes, PageVersion};

use crate::testing::{emulated, noise, on_every_device};

const PAGE_TOKENS: usize = 64;
const TOKENS: usize = 5 * PAGE_TOKENS + 10;
const HEADS: usize = 4;
const SHAPE: CacheShape = CacheShape {
    layers: LayerShapes::alike(2, LayerShape::new(2, 32)),
    page_tokens: PAGE_TOKENS,
    key_format: Format::F16,
    value_format: Format::Q8_0,
};

/// Two layers in the device's main memory, and a device page cache without slots.
struct Bench {
    stream: Arc<Stream>,
    room: DeviceRoom,
    sequence: SequenceId,
    queries: DeviceBuffer,
    attended: DeviceBuffer,
    log_sum_exp: DeviceBuffer,
}

impl Bench {
    fn new(gpu: &Gpu, slots: usize) -> Self {
        let stream = Arc::new(gpu.stream().unwrap());
        let mut options = RoomOptions {
            shape: SHAPE,
            heads: HEADS,
            budget_bytes: 0,
            slots,
            estimate_bytes: 0,
            bound_bytes: 0,
            mean_bytes: 0,
        };
        options.budget_bytes = options.least_bytes();
        let width = HEADS * SHAPE.layer(0).key_width;
        let mut room = DeviceRoom::new(&stream, options).unwrap();
        Self {
            sequence: room.begin_sequence(),
            room,
            queries: gpu.upload(&noise(width, 3)).unwrap(),
            attended: gpu.allocate(4 * width).unwrap(),
            log_sum_exp: gpu.allocate(4 * HEADS).unwrap(),
            stream,
        }
    }

    /// Attention output of the token after the first `tokens` of a layer.
    fn attend(&mut self, cache: &KvCache, layer: usize) -> Vec<f32> {
        self.attend_as(cache, layer, &cache.page_versions(layer))
    }

    /// As [`attend`](Self::attend), for pages with these versions.
    fn attend_as(&mut self, cache: &KvCache, layer: usize, versions: &[Vec<PageVersion>]) -> Vec<f32> {
        let end = cache.tokens(layer);
        let everything = Selection::full(end);
        let tiles: Vec<PagedTile<'_>> = (0..SHAPE.layer(0).kv_heads)
            .map(|kv_head| PagedTile {
                kv_head,
                first_row: 0,
                rows: 1,
                start: end - 1,
                selection: &everything,
            })
            .collect();
        let rows = CallRows {
            queries: Queries {
                data: self.queries.all(),
                rows: 1,
                row_stride: HEADS * SHAPE.layer(0).key_width,
            },
            attended: self.attended.all(),
            log_sum_exp: self.log_sum_exp.all(),
        };
        let reader = cache.read();
        let shown: Vec<Vec<PageView<'_>>> = (0..SHAPE.layer(0).kv_heads)
            .map(|head| reader.pages(layer, head).collect())
            .collect();
        let of = self.layer_pages(layer, versions);
        let mut call = self
            .room
            .begin(of, &tiles, rows, end, &AttendOptions::new(0.3))
            .unwrap();
        call.attend(&shown).unwrap();
        call.finish().unwrap();
        self.stream.gpu().download(self.attended.all(), &self.stream).unwrap()
    }

    fn layer_pages<'a>(&self, layer: usize, versions: &'a [Vec<PageVersion>]) -> LayerPages<'a> {
        LayerPages {
            sequence: self.sequence,
            layer,
            versions,
        }
    }

    /// Starts to copy the pages that the layer is expected to read. Returns their number.
    fn read_ahead(&mut self, cache: &KvCache, layer: usize) -> usize {
        let reader = cache.read();
        let versions = reader.page_versions(layer);
        let of = self.layer_pages(layer, &versions);
        let expected = self.room.expected(of).into_iter();
        let shown: Vec<(usize, PageView<'_>)> = expected
            .map(|(kv_head, page)| (kv_head, reader.near_page(layer, kv_head, page).unwrap()))
            .collect();
        self.room.read_ahead(of, &shown).unwrap();
        shown.len()
    }
}

fn append(cache: &mut KvCache, tokens: usize, seed: usize) {
    let width = SHAPE.layer(0).kv_heads * SHAPE.layer(0).key_width;
    for layer in 0..SHAPE.layers.count() {
        let [keys, values] = [0, 1].map(|kind| noise(tokens * width, 10 * seed + 2 * layer + kind));
        cache.append(layer, &keys, &values).unwrap();
    }
}

/// A cache whose tokens depend only on the seed.
fn cache(gpu: &Gpu, seed: usize) -> KvCache {
    let tiers = KvTiers {
        device: Arc::new(PinnedMemory::new(gpu)),
        ..KvTiers::memory(None)
    };
    let mut cache = KvCache::with_tiers(SHAPE, tiers).unwrap();
    append(&mut cache, TOKENS, seed);
    cache
}

/// Each seed gives another order of the streams.
fn on_devices_of_several_orders(body: impl Fn(&Gpu)) {
    on_every_device(|gpu, _| body(gpu));
    for seed in 2..6 {
        let options = EmulatedOptions {
            seed: Some(seed),
            ..EmulatedOptions::default()
        };
        if let Some(gpu) = emulated(options) {
            body(&gpu);
        }
    }
}

#[test]
fn calls_whose_pages_were_read_ahead_give_the_bits_of_calls_that_bring_them() {
    on_devices_of_several_orders(|gpu| {
        for slots in [1, 2, 4, 7] {
            let cache = cache(gpu, 1);
            let mut bench = Bench::new(gpu, slots);
            let expected = [0, 1].map(|layer| bench.attend(&cache, layer));
            let (mut ahead, before) = (0, bench.room.transferred().pages);
            for _ in 0..3 {
                for layer in [0, 1] {
                    ahead += bench.read_ahead(&cache, layer);
                    assert_eq!(bench.attend(&cache, layer), expected[layer], "{slots} slots");
                }
            }
            let found = bench.room.transferred();
            assert_eq!(found.pages_ahead, ahead as u64, "{slots} slots");
            assert_eq!(ahead, 6 * (slots / slots.min(2) * slots.min(2)));
            // No page was loaded twice.
            assert_eq!(found.pages, 4 * before);
        }
    });
}

#[test]
fn a_guess_that_is_wrong_costs_no_bit() {
    on_devices_of_several_orders(|gpu| {
        let cache = cache(gpu, 1);
        let mut bench = Bench::new(gpu, 4);
        let expected = [0, 1].map(|layer| bench.attend(&cache, layer));
        // The guess names the other layer, or the same layer twice.
        for (guess, layer) in [(0, 1), (1, 0), (1, 1), (0, 0), (0, 1)] {
            bench.read_ahead(&cache, guess);
            assert_eq!(bench.attend(&cache, layer), expected[layer]);
            assert_eq!(bench.attend(&cache, layer), expected[layer]);
        }
    });
}

#[test]
fn memory_that_is_read_ahead_changes_or_goes_only_when_it_has_been_copied() {
    on_devices_of_several_orders(|gpu| {
        let elsewhere = cache(gpu, 1);
        let mut bench = Bench::new(gpu, 4);
        let expected = [0, 1].map(|layer| bench.attend(&elsewhere, layer));
        for goes in [false, true] {
            let before = bench.room.transferred().pages_ahead;
            for layer in [1, 0] {
                let mut here = cache(gpu, 1);
                bench.attend(&here, layer);
                assert!(bench.read_ahead(&here, layer) > 0);
                let versions = here.page_versions(layer);
                // Both cases act like pages that move to another tier: other pages take their memory.
                if goes {
                    drop(here);
                } else {
                    here.truncate(PAGE_TOKENS);
                    append(&mut here, TOKENS - PAGE_TOKENS, 7);
                }
                assert_eq!(bench.attend_as(&elsewhere, layer, &versions), expected[layer], "{goes}");
            }
            assert!(bench.room.transferred().pages_ahead > before);
        }
    });
}

#[test]
fn pages_that_were_forgotten_are_not_read_where_they_came_ahead() {
    on_devices_of_several_orders(|gpu| {
        let mut here = cache(gpu, 1);
        let mut bench = Bench::new(gpu, 8);
        let old = bench.attend(&here, 1);
        bench.read_ahead(&here, 1);
        bench.room.truncate(bench.sequence, 2 * PAGE_TOKENS);
        here.truncate(2 * PAGE_TOKENS);
        append(&mut here, TOKENS - 2 * PAGE_TOKENS, 7);
        let found = bench.attend(&here, 1);
        assert_ne!(found, old);
        // Pages before the truncation must still be used from reading ahead.
        let ahead = bench.room.transferred().pages_ahead;
        assert_eq!(ahead, 4);
        assert_eq!(found, Bench::new(gpu, 8).attend(&here, 1));
        // The first page of both heads is overwritten without a notice.
        bench.read_ahead(&here, 1);
        let keys = noise(PAGE_TOKENS * SHAPE.layer(0).kv_heads * SHAPE.layer(0).key_width, 99);
        here.replace_keys(1, 0, &keys).unwrap();
        let other = bench.attend(&here, 1);
        assert_ne!(other, found);
        assert_eq!(other, Bench::new(gpu, 8).attend(&here, 1));
        assert_eq!(bench.room.transferred().pages_ahead, ahead + 6);
    });
}

#[test]
fn memory_that_nobody_guards_is_not_read_ahead() {
    on_every_device(|gpu, _| {
        let mut plain = KvCache::new(SHAPE, None).unwrap();
        append(&mut plain, TOKENS, 1);
        let mut bench = Bench::new(gpu, 4);
        let expected = bench.attend(&plain, 0);
        assert!(bench.read_ahead(&plain, 0) > 0);
        assert_eq!(bench.attend(&plain, 0), expected);
        assert_eq!(bench.room.transferred().pages_ahead, 0);
    });
}
