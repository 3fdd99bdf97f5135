//! Block means and attention to them.

use std::sync::Arc;

use riffle_attention::reference::{self, ReferenceSummary};
use riffle_attention::{AttendOptions, Format, KvView, PageView, Partial, QueryTile, Selection, Span};
use riffle_cuda::ops::{BlockSummaries, Queries, block_means};
use riffle_cuda::{CallRows, DeviceRoom, Gpu, PagedTile, RoomBytes, RoomOptions, SequenceId, SummaryKind};

use crate::paged::Cache;
use crate::testing::{assert_near, noise, on_every_device};

/// The whole blocks of a KV head with the means of their keys and values. Sums in f32 run by position, as in the
/// engine on a CPU.
fn means_of(cache: &Cache, head: usize, block: usize) -> Vec<ReferenceSummary> {
    let (head_dim, tokens) = (cache.head_dim, cache.tokens);
    let (mut keys, mut values) = (vec![0.0f32; tokens * head_dim], vec![0.0f32; tokens * head_dim]);
    for page in cache.views(head) {
        let from = page.start * head_dim;
        riffle_attention::read_keys(&page.keys, head_dim, 0, page.tokens, &mut keys[from..], head_dim).unwrap();
        riffle_attention::read_values(&page.values, head_dim, 0, page.tokens, &mut values[from..], head_dim).unwrap();
    }
    let factor = 1.0 / block as f32;
    let mean = |rows: &[f32]| {
        let mut sums = vec![0.0f32; head_dim];
        for row in rows.chunks_exact(head_dim) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        sums.iter().map(|sum| sum * factor).collect()
    };
    let of_block = |number: usize| {
        let rows = number * block * head_dim..(number + 1) * block * head_dim;
        ReferenceSummary {
            block: Span::new(number * block, (number + 1) * block),
            key: mean(&keys[rows.clone()]),
            value: mean(&values[rows]),
        }
    };
    (0..tokens / block).map(of_block).collect()
}

#[test]
fn means_equal_the_cpus_to_the_bit_however_tokens_come() {
    on_every_device(|gpu, stream| {
        for formats in [
            [Format::F16, Format::Q4_0],
            [Format::Q8_0, Format::Bf16],
            [Format::Q4_0, Format::Q8_0],
            [Format::Bf16, Format::F16],
        ] {
            let (head_dim, kv_heads, tokens, block, capacity) = (80, 2, 200, 24, 9);
            let cache = Cache::new(gpu, head_dim, kv_heads, tokens, 48, formats);
            let buffer = gpu.allocate(4 * kv_heads * capacity * 2 * head_dim).unwrap();
            let means = BlockSummaries {
                data: buffer.all(),
                capacity,
                block_tokens: block,
            };
            // Ends within a page, within a block, at the end of both, and no tokens for one head.
            for ranges in [
                [0, 30, 0, 0],
                [30, 31, 0, 150],
                [31, 144, 150, 150],
                [144, 200, 150, 200],
            ] {
                let longest = 150;
                let list = gpu.upload::<u32>(&ranges).unwrap();
                block_means(stream, &means, &cache.pages(), list.all(), longest).unwrap();
                stream.synchronize().unwrap();
            }
            let found: Vec<f32> = gpu.download(buffer.all(), stream).unwrap();
            for head in 0..kv_heads {
                let of_head = &found[head * capacity * 2 * head_dim..];
                for (found, expected) in of_head.chunks_exact(2 * head_dim).zip(means_of(&cache, head, block)) {
                    assert!(found == [expected.key, expected.value].concat(), "{formats:?}");
                }
            }
        }
    });
}

/// Queries at the end of a cache, with selections of means.
struct Case {
    cache: Cache,
    group: usize,
    rows: usize,
    tile_rows: usize,
    block: usize,
    soft_cap: Option<f32>,
}

impl Case {
    fn start(&self) -> usize {
        self.cache.tokens - self.rows
    }

    fn width(&self) -> usize {
        self.cache.kv_heads * self.group * self.cache.head_dim
    }

    fn options(&self) -> AttendOptions<'static> {
        AttendOptions::new(1.0 / (self.cache.head_dim as f32).sqrt()).with_soft_cap(self.soft_cap)
    }

    /// Selections of every kind with means; the last has none.
    fn selections(&self) -> Vec<Selection> {
        let block = self.block;
        let blocks = |numbers: &mut dyn Iterator<Item = usize>| -> Vec<Span> {
            numbers.map(|n| Span::new(n * block, (n + 1) * block)).collect()
        };
        let count = self.cache.tokens / block;
        let extras =
            (0..self.rows).map(|row| vec![row, 5 * block + row % 7, self.start() / 2 + row, self.start() + row]);
        vec![
            Selection::from_spans([Span::new(0, 1)])
                .with_row_window(9)
                .with_diagonals((4..10).map(|power| 1 << power))
                .with_summaries(blocks(&mut (0..count))),
            Selection::from_spans([Span::new(2 * block, 3 * block + 1), Span::new(60, 61)])
                .with_row_extras(self.start(), extras)
                .with_summaries(blocks(&mut (0..count).filter(|n| n % 5 != 1))),
            Selection::none().with_summaries(blocks(&mut (1..count).step_by(2))),
            Selection::from_spans([Span::new(0, 40)]).with_row_window(3),
        ]
    }

    /// Adds the tokens to the means. Some are added twice, after a truncation within a block.
    fn extend_means(&self, room: &mut DeviceRoom, sequence: SequenceId, shown: &[Vec<PageView<'_>>]) {
        let (cache, of) = (&self.cache, self.cache.layer(sequence));
        let known = |room: &mut DeviceRoom, tokens: usize| {
            room.summaries_known(SummaryKind::Means, of, self.block, tokens)
                .unwrap()
        };
        assert_eq!(known(room, cache.tokens), Some(vec![0; cache.kv_heads]));
        assert_eq!(known(room, cache.tokens + self.block), None);
        room.extend_summaries(SummaryKind::Means, of, shown).unwrap();
        room.truncate(sequence, cache.tokens - self.block - 1);
        let known = known(room, cache.tokens).unwrap();
        assert!(known[0] < cache.tokens - self.block && known[0].is_multiple_of(self.block));
        let page = known[0] / cache.page_tokens;
        let lacking: Vec<_> = shown.iter().map(|shown| shown[page..].to_vec()).collect();
        room.extend_summaries(SummaryKind::Means, of, &lacking).unwrap();
    }

    fn run(&self, gpu: &Gpu, budget: fn(&RoomOptions, usize) -> u64) -> Vec<Partial> {
        let stream = Arc::new(gpu.stream().unwrap());
        let cache = &self.cache;
        let (kv_heads, head_dim) = (cache.kv_heads, cache.head_dim);
        let mut options = cache.room_options(self.group);
        options.mean_bytes = (8 * kv_heads * head_dim * cache.tokens.div_ceil(self.block)) as u64;
        options.budget_bytes = budget(&options, cache.tokens);
        let mut room = DeviceRoom::new(&stream, options).unwrap();
        let sequence = room.begin_sequence();
        let of = cache.layer(sequence);
        let shown: Vec<_> = (0..kv_heads).map(|head| cache.views(head)).collect();
        self.extend_means(&mut room, sequence, &shown);

        let queries = gpu.upload(&self.queries()).unwrap();
        let attended = gpu.allocate(4 * self.rows * self.width()).unwrap();
        let log_sum_exp = gpu.allocate(4 * self.rows * kv_heads * self.group).unwrap();
        let rows = CallRows {
            queries: Queries {
                data: queries.all(),
                rows: self.rows,
                row_stride: self.width(),
            },
            attended: attended.all(),
            log_sum_exp: log_sum_exp.all(),
        };
        let selections = self.selections();
        let tiles: Vec<_> = self.tiles(&selections).collect();
        let mut call = room.begin(of, &tiles, rows, cache.tokens, &self.options()).unwrap();
        call.include_means();
        // The pages with at least one selected token, as in the engine.
        let is_read = |kv_head: usize, page: &PageView<'_>| {
            let page = Span::new(page.start, page.start + page.tokens);
            let of_head = tiles.iter().filter(|tile| tile.kv_head == kv_head);
            let mut reads = of_head.flat_map(|tile| tile.selection.reads(tile.start, tile.rows));
            reads.any(|span| !span.intersect(&page).is_empty())
        };
        let heads = shown.into_iter().enumerate();
        let wanted = heads.map(|(kv_head, pages)| pages.into_iter().filter(|page| is_read(kv_head, page)).collect());
        call.attend(&wanted.collect::<Vec<_>>()).unwrap();
        let mut partials: Vec<Partial> = tiles
            .iter()
            .map(|tile| Partial::new(tile.rows, self.group, head_dim))
            .collect();
        call.finish().unwrap();
        room.bring_partials(&tiles, &rows, &mut partials).unwrap();
        partials
    }

    fn queries(&self) -> Vec<f32> {
        let queries = noise(self.rows * self.width(), 77);
        queries.into_iter().map(|x| 2.0 * x).collect()
    }

    fn tiles<'s>(&self, selections: &'s [Selection]) -> impl Iterator<Item = PagedTile<'s>> {
        let firsts = (0..self.rows).step_by(self.tile_rows).enumerate();
        let (rows, tile_rows, start) = (self.rows, self.tile_rows, self.start());
        (0..self.cache.kv_heads).flat_map(move |kv_head| {
            firsts.clone().map(move |(number, first_row)| PagedTile {
                kv_head,
                first_row,
                rows: tile_rows.min(rows - first_row),
                start: start + first_row,
                selection: &selections[(kv_head + number) % selections.len()],
            })
        })
    }

    fn check(&self, partials: &[Partial], what: &str) {
        let (queries, selections, head_dim) = (self.queries(), self.selections(), self.cache.head_dim);
        let bf16 = self.cache.formats.contains(&Format::Bf16);
        for (tile, partial) in self.tiles(&selections).zip(partials) {
            let pages = self.cache.views(tile.kv_head);
            let kv = KvView {
                head_dim,
                pages: &pages,
            };
            let view = QueryTile {
                data: &queries[tile.first_row * self.width() + tile.kv_head * self.group * head_dim..],
                rows: tile.rows,
                row_stride: self.width(),
                group: self.group,
                head_dim,
                start: tile.start,
            };
            let means = means_of(&self.cache, tile.kv_head, self.block);
            let expected =
                reference::attend_with_summaries(&view, &kv, tile.selection, &means, &self.options(), None).unwrap();
            let width = self.group * head_dim;
            let mut found = vec![0.0; tile.rows * width];
            partial.finish_into(&mut found, width, None).unwrap();
            assert_near(&found, &expected.output, if bf16 { 2e-2 } else { 3e-3 }, what);
            for (at, expected) in expected.log_sum_exp.into_iter().enumerate() {
                let found = f64::from(partial.log_sum_exp(at / self.group, at % self.group));
                let same = found == expected || (found - expected).abs() < if bf16 { 4e-2 } else { 5e-3 };
                assert!(same, "{what}: log-sum-exp {found}, expected {expected}");
            }
        }
    }
}

#[test]
fn attention_to_means_equals_the_reference_wherever_pages_lie() {
    on_every_device(|gpu, _| {
        for (head_dim, group, rows, tile_rows, block, formats, soft_cap) in [
            // Many rows are one part. In the last case blocks are longer than a tile and a page.
            (32, 2, 70, 16, 4, [Format::F16, Format::F16], None),
            (64, 3, 40, 40, 16, [Format::Bf16, Format::Bf16], None),
            (256, 1, 33, 16, 5, [Format::Q8_0, Format::F16], Some(5.0)),
            (128, 4, 20, 20, 100, [Format::Q4_0, Format::Q8_0], None),
            // Few rows: several parts, and one.
            (128, 4, 1, 1, 3, [Format::F16, Format::Q8_0], None),
            (256, 2, 3, 2, 2, [Format::Bf16, Format::F16], None),
            (80, 16, 1, 1, 32, [Format::Q8_0, Format::Q4_0], Some(3.0)),
        ] {
            let case = Case {
                cache: Cache::new(gpu, head_dim, 3, 811, 64, formats),
                group,
                rows,
                tile_rows,
                block,
                soft_cap,
            };
            let what = format!("{head_dim} wide, {rows} rows, blocks of {block}, {formats:?}");
            let resident = case.run(gpu, RoomOptions::bytes_for);
            case.check(&resident, &what);
            assert!(case.run(gpu, |options, _| options.least_bytes()) == resident, "{what}");
        }
    });
}
