//! Several sequences in one device page cache: each reads the same as alone, and pages are loaded once.

use std::sync::Arc;

use riffle_attention::{AttendOptions, Format, PageView, Selection};
use riffle_cuda::ops::Queries;
use riffle_cuda::{
    CallRows, DeviceBuffer, DeviceRoom, Gpu, LayerPages, PagedTile, PinnedMemory, RoomBytes, RoomOptions, SequenceId,
    Stream, SummaryKind,
};
use riffle_kv::{CacheShape, KvCache, KvTiers, LayerShape, LayerShapes, PagePool};

use crate::testing::{noise, on_every_device};

const HEADS: usize = 4;
const LAYERS: usize = 2;
const LAYER: LayerShape = LayerShape::new(2, 32);
const SHAPE: CacheShape = CacheShape {
    layers: LayerShapes::alike(LAYERS, LAYER),
    page_tokens: 64,
    key_format: Format::F16,
    value_format: Format::Q8_0,
};
const WIDTH: usize = HEADS * LAYER.key_width;
/// Rows of a batch; each call uses some of them.
const BATCH: usize = 40;
/// Pages of one row of pages: one for each layer and KV head.
const ROW: u64 = (LAYERS * LAYER.kv_heads) as u64;

/// A page cache with the rows of a batch.
struct Bench {
    stream: Arc<Stream>,
    room: DeviceRoom,
    queries: DeviceBuffer,
    attended: DeviceBuffer,
    log_sum_exp: DeviceBuffer,
    options: RoomOptions,
}

impl Bench {
    /// A page cache with slots for `pages` pages.
    fn new(gpu: &Gpu, pages: u64) -> Self {
        let stream = Arc::new(gpu.stream().unwrap());
        let mut options = RoomOptions {
            shape: SHAPE,
            heads: HEADS,
            budget_bytes: 0,
            slots: 4,
            estimate_bytes: 0,
            bound_bytes: (8 * SHAPE.layer(0).key_width * SHAPE.layer(0).kv_heads * SHAPE.layers.count() * 128) as u64,
            mean_bytes: 0,
        };
        let page = (options.bytes_for(64) - options.least_bytes()) / ROW;
        options.budget_bytes = options.least_bytes() + pages * page;
        Self {
            room: DeviceRoom::new(&stream, options).unwrap(),
            queries: gpu.upload(&noise(BATCH * WIDTH, 3)).unwrap(),
            attended: gpu.upload(&[7.0f32; BATCH * WIDTH]).unwrap(),
            log_sum_exp: gpu.allocate(4 * BATCH * HEADS).unwrap(),
            options,
            stream,
        }
    }

    /// For each KV head the number of summarised tokens; once all are, also the scores of their blocks for the first
    /// row.
    fn bound_scores(&mut self, cache: &KvCache, of: LayerPages<'_>) -> (Vec<usize>, Vec<Vec<f32>>) {
        let (reader, tokens) = (cache.read(), cache.tokens(of.layer));
        let known = self.room.summaries_known(SummaryKind::Bounds, of, 8, tokens);
        let known = known.unwrap().unwrap();
        let shown: Vec<Vec<PageView<'_>>> = (0..SHAPE.layer(0).kv_heads)
            .map(|head| reader.pages_from(of.layer, head, known[head]).collect())
            .collect();
        self.room.extend_summaries(SummaryKind::Bounds, of, &shown).unwrap();
        let queries = Queries {
            data: self.queries.region(0..4 * WIDTH),
            rows: 1,
            row_stride: WIDTH,
        };
        let found = self.room.bound_scores(of, queries, &[tokens; 2]).unwrap();
        assert!(self.room.device_bytes() <= self.options.budget_bytes + self.options.bound_bytes);
        (known, found)
    }

    /// Attention output of the batch's rows `rows`, which are the last of a sequence, in a layer.
    fn attend(
        &mut self,
        sequence: SequenceId,
        cache: &KvCache,
        layer: usize,
        rows: std::ops::Range<usize>,
    ) -> Vec<f32> {
        let end = cache.tokens(layer);
        let everything = Selection::full(end);
        let tile = |kv_head| PagedTile {
            kv_head,
            first_row: 0,
            rows: rows.len(),
            start: end - rows.len(),
            selection: &everything,
        };
        let tiles: Vec<PagedTile<'_>> = (0..SHAPE.layer(0).kv_heads).map(tile).collect();
        let floats = |width: usize| 4 * rows.start * width..4 * rows.end * width;
        let call_rows = CallRows {
            queries: Queries {
                data: self.queries.region(floats(WIDTH)),
                rows: rows.len(),
                row_stride: WIDTH,
            },
            attended: self.attended.region(floats(WIDTH)),
            log_sum_exp: self.log_sum_exp.region(floats(HEADS)),
        };
        let reader = cache.read();
        let versions = reader.page_versions(layer);
        let of = LayerPages {
            sequence,
            layer,
            versions: &versions,
        };
        let shown: Vec<Vec<PageView<'_>>> = (0..SHAPE.layer(0).kv_heads)
            .map(|head| reader.pages(layer, head).collect())
            .collect();
        let mut call = self
            .room
            .begin(of, &tiles, call_rows, end, &AttendOptions::new(0.3))
            .unwrap();
        call.attend(&shown).unwrap();
        call.finish().unwrap();
        let pages = self.room.resident_bytes() + self.options.least_bytes();
        assert!(pages <= self.options.budget_bytes, "{pages} bytes");
        assert!(self.room.device_bytes() <= self.options.budget_bytes + self.options.bound_bytes);
        self.stream.gpu().download(call_rows.attended, &self.stream).unwrap()
    }

    /// Attention of a token in every layer, without earlier reads.
    fn alone(gpu: &Gpu, cache: &KvCache) -> Vec<Vec<f32>> {
        let mut bench = Self::new(gpu, 0);
        let sequence = bench.room.begin_sequence();
        (0..SHAPE.layers.count())
            .map(|layer| bench.attend(sequence, cache, layer, 0..1))
            .collect()
    }

    fn check(&mut self, gpu: &Gpu, sequence: SequenceId, cache: &KvCache, what: &str) {
        let expected = Self::alone(gpu, cache);
        for (layer, expected) in expected.iter().enumerate() {
            assert_eq!(
                &self.attend(sequence, cache, layer, 0..1),
                expected,
                "{what}, layer {layer}"
            );
        }
    }

    fn pages(&self) -> u64 {
        self.room.transferred().pages
    }
}

fn pool(gpu: &Gpu) -> PagePool {
    let tiers = KvTiers {
        device: Arc::new(PinnedMemory::new(gpu)),
        ..KvTiers::memory(None)
    };
    PagePool::new(SHAPE, tiers).unwrap()
}

fn append(cache: &mut KvCache, tokens: usize, seed: usize) {
    let width = SHAPE.layer(0).kv_heads * SHAPE.layer(0).key_width;
    for layer in 0..SHAPE.layers.count() {
        let [keys, values] = [0, 1].map(|kind| noise(tokens * width, 10 * seed + 2 * layer + kind));
        cache.append(layer, &keys, &values).unwrap();
    }
}

#[test]
fn sequences_that_take_turns_layer_by_layer_read_what_each_reads_alone_and_pages_come_once() {
    on_every_device(|gpu, _| {
        let mut bench = Bench::new(gpu, 20 * ROW);
        let pools = [pool(gpu), pool(gpu)];
        // Two caches of one pool of main memory, and one of another.
        let mut caches = [pools[0].cache(), pools[0].cache(), pools[1].cache()];
        let sequences = [(); 3].map(|()| bench.room.begin_sequence());
        for (number, cache) in caches.iter_mut().enumerate() {
            append(cache, [200, 130, 70][number], number + 1);
        }
        let expected: Vec<_> = caches.iter().map(|cache| Bench::alone(gpu, cache)).collect();
        for pass in 0..2 {
            for layer in 0..SHAPE.layers.count() {
                for (number, cache) in caches.iter().enumerate() {
                    let found = bench.attend(sequences[number], cache, layer, 0..1);
                    assert_eq!(found, expected[number][layer], "pass {pass}, layer {layer}, {number}");
                }
            }
            assert_eq!(bench.pages(), (4 + 3 + 2) * ROW, "pass {pass}");
        }
        // A page that grows must be copied again, and no other page.
        for (number, cache) in caches.iter_mut().enumerate() {
            append(cache, 1, number + 7);
            bench.check(gpu, sequences[number], cache, "a token more");
        }
        assert_eq!(bench.pages(), (4 + 3 + 2 + 3) * ROW);
    });
}

#[test]
fn forks_hold_pages_on_the_device_once_and_what_one_writes_the_other_does_not_read() {
    on_every_device(|gpu, _| {
        let mut bench = Bench::new(gpu, 20 * ROW);
        let mut book = pool(gpu).cache();
        append(&mut book, 150, 1);
        let reader = bench.room.begin_sequence();
        bench.check(gpu, reader, &book, "the book");
        let (bytes, came) = (bench.room.resident_bytes(), bench.pages());
        let mut answer = book.fork();
        let fork = bench.room.fork(reader);
        bench.check(gpu, fork, &answer, "the fork");
        assert_eq!((bench.room.resident_bytes(), bench.pages()), (bytes, came));
        assert_eq!(bench.room.resident_bytes_of(fork), bytes);
        // A sequence without a known origin also finds the pages.
        let other = bench.room.begin_sequence();
        bench.check(gpu, other, &book, "beside");
        assert_eq!(bench.pages(), came);
        bench.room.end_sequence(other);
        // The last page is copied before a write.
        append(&mut answer, 3, 5);
        bench.check(gpu, fork, &answer, "an answer");
        append(&mut book, 4, 6);
        bench.check(gpu, reader, &book, "the book goes on");
        assert_eq!(bench.pages(), came + 2 * ROW);
        bench.room.end_sequence(reader);
        drop(book);
        bench.check(gpu, fork, &answer, "the book is closed");
        assert_eq!(bench.room.resident_bytes(), bytes);
        bench.room.end_sequence(fork);
        assert_eq!(bench.room.resident_bytes(), 0);
    });
}

#[test]
fn pages_that_are_freed_cut_replaced_moved_or_evicted_are_never_read_stale_though_nobody_says_so() {
    on_every_device(|gpu, _| {
        for pages in [30 * ROW, 9, 2 * ROW + 1] {
            let mut bench = Bench::new(gpu, pages);
            let kept = pool(gpu);
            let (mut first, mut second) = (kept.cache(), kept.cache());
            let sequences = [bench.room.begin_sequence(), bench.room.begin_sequence()];
            append(&mut first, 260, 1);
            append(&mut second, 140, 2);
            let mut check = |first: &KvCache, second: &KvCache, what: &str| {
                bench.check(gpu, sequences[0], first, what);
                bench.check(gpu, sequences[1], second, what);
            };
            check(&first, &second, "as read");
            first.truncate(100);
            append(&mut first, 90, 3);
            check(&first, &second, "cut within a page and read on");
            let keys = noise(70 * SHAPE.layer(0).kv_heads * SHAPE.layer(0).key_width, 9);
            first.replace_keys(1, 20, &keys).unwrap();
            check(&first, &second, "keys replaced");
            for layer in 0..SHAPE.layers.count() {
                second.remove_first_pages(layer, 1).unwrap();
            }
            check(&first, &second, "a window moved");
            for head in 0..SHAPE.layer(0).kv_heads {
                let retained: Vec<usize> = (0..190).filter(|token| token % 3 > 0).collect();
                first.retain(0, head, &retained).unwrap();
            }
            check(&first, &second, "tokens evicted");
            let ids = first.page_ids(1, 0).to_vec();
            first.truncate(0);
            append(&mut first, 200, 4);
            assert!(first.page_ids(1, 0).iter().any(|id| ids.contains(id)));
            check(&first, &second, "ids used again");
        }
    });
}

#[test]
fn a_window_that_moves_by_whole_pages_brings_none_again() {
    on_every_device(|gpu, _| {
        let mut bench = Bench::new(gpu, 20 * ROW);
        let mut cache = pool(gpu).cache();
        let sequence = bench.room.begin_sequence();
        append(&mut cache, 300, 1);
        bench.check(gpu, sequence, &cache, "before");
        let came = bench.pages();
        cache.remove_pages(1, 2);
        bench.check(gpu, sequence, &cache, "after");
        assert_eq!(bench.pages(), came);
        assert_eq!(bench.room.resident_bytes_of(sequence), bench.room.resident_bytes());
    });
}

#[test]
fn bounds_are_of_one_sequence_and_are_made_again_when_another_took_their_room() {
    on_every_device(|gpu, _| {
        // Memory for 128 blocks of each layer of one sequence. Both sequences fit while they are short.
        let mut bench = Bench::new(gpu, 20 * ROW);
        let kept = pool(gpu);
        let mut caches = [kept.cache(), kept.cache()];
        let sequences = [(); 2].map(|()| bench.room.begin_sequence());
        for (number, cache) in caches.iter_mut().enumerate() {
            append(cache, 96, number + 1);
        }
        let mut scores: Vec<Vec<Vec<f32>>> = Vec::new();
        for pass in 0..3 {
            for (number, cache) in caches.iter_mut().enumerate() {
                if pass > 0 {
                    append(cache, [160, 704][pass - 1], number + 5);
                }
                for layer in 0..SHAPE.layers.count() {
                    let versions = cache.read().page_versions(layer);
                    let of = LayerPages {
                        sequence: sequences[number],
                        layer,
                        versions: &versions,
                    };
                    // Once both sequences are long, each displaces the other's bounds.
                    let (known, found) = bench.bound_scores(cache, of);
                    let at = number * SHAPE.layers.count() + layer;
                    if pass == 0 {
                        scores.push(found);
                        continue;
                    }
                    // Blocks scored in an earlier pass have the same scores.
                    for (now, before) in found.iter().zip(&scores[at]) {
                        assert_eq!(now[..before.len()], before[..], "{pass} {at}");
                    }
                    let kept = match (pass, at) {
                        (1, _) => 96,
                        (_, 0) => 256,
                        _ => 0,
                    };
                    assert_eq!(known, vec![kept; SHAPE.layer(0).kv_heads], "{pass} {at}");
                }
            }
        }
        assert_ne!(scores[0], scores[2]);
        let of = LayerPages {
            sequence: sequences[0],
            layer: 0,
            versions: &[],
        };
        assert_eq!(
            bench.room.summaries_known(SummaryKind::Bounds, of, 8, 1025).unwrap(),
            None
        );
    });
}

#[test]
fn rows_that_begin_within_a_batch_read_what_they_read_at_its_beginning() {
    on_every_device(|gpu, _| {
        let mut cache = pool(gpu).cache();
        append(&mut cache, 150, 1);
        let rows: Vec<f32> = noise(BATCH * WIDTH, 3);
        // Few rows and many rows: parts of a decode, and a prefill that resumes its state.
        for (first, count) in [(7, 1), (3, 2), (11, 29)] {
            for pages in [0, 20 * ROW] {
                let mut bench = Bench::new(gpu, pages);
                let sequence = bench.room.begin_sequence();
                let within = bench.attend(sequence, &cache, 1, first..first + count);
                let all: Vec<f32> = gpu.download(bench.attended.all(), &bench.stream).unwrap();
                let (before, after) = (&all[..first * WIDTH], &all[(first + count) * WIDTH..]);
                assert!(before.iter().chain(after).all(|x| *x == 7.0));
                let mut moved = Bench::new(gpu, pages);
                moved.queries = gpu.upload(&rows[first * WIDTH..]).unwrap();
                let sequence = moved.room.begin_sequence();
                assert_eq!(
                    moved.attend(sequence, &cache, 1, 0..count),
                    within,
                    "{first} {count} {pages}"
                );
                let sums = |bench: &Bench, first: usize| -> Vec<f32> {
                    let sums = bench.log_sum_exp.region(4 * first * HEADS..4 * (first + count) * HEADS);
                    gpu.download(sums, &bench.stream).unwrap()
                };
                assert_eq!(sums(&moved, 0), sums(&bench, first));
            }
        }
    });
}
