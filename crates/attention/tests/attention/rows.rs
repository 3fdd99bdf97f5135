//! The result of a row does not depend on its neighbours: single rows, joined rows, prompts cut anywhere.

use crate::testing::*;
use proptest::prelude::*;
use riffle_attention::*;

const ARITHMETICS: [Arithmetic; 2] = [Arithmetic::Expanded, Arithmetic::Fused];

/// The partial's bits from row `first` on.
fn bits(partial: &Partial, first: usize, rows: usize) -> Vec<u32> {
    let (group, head_dim) = (partial.group(), partial.head_dim());
    let (from, to) = (first * group, (first + rows) * group);
    let all = partial.m[from..to]
        .iter()
        .chain(&partial.l[from..to])
        .chain(&partial.o[from * head_dim..to * head_dim]);
    all.map(|x| x.to_bits()).collect()
}

/// Rows `first..first + rows` of a tile.
fn rows_of<'a>(tile: &QueryTile<'a>, first: usize, rows: usize) -> QueryTile<'a> {
    QueryTile {
        data: &tile.data[first * tile.row_stride..],
        rows,
        start: tile.start + first,
        ..*tile
    }
}

/// The pages at the time when the cache held `tokens`.
fn until<'a>(views: &[PageView<'a>], tokens: usize) -> Vec<PageView<'a>> {
    let held = views.iter().filter(|page| page.start < tokens);
    held.map(|page| PageView {
        tokens: page.tokens.min(tokens - page.start),
        ..*page
    })
    .collect()
}

/// One call of every entry point: `attend`, `attend_batch`, and a stream of two pages at a time.
fn every_way(
    tile: QueryTile,
    value_dim: usize,
    views: &[PageView],
    selection: &Selection,
    options: &AttendOptions,
) -> [Partial; 3] {
    let kv = |pages| KvView {
        head_dim: tile.head_dim,
        pages,
    };
    let job = |pages| AttendJob {
        queries: tile,
        kv: kv(pages),
        selection,
    };
    let empty = || Partial::new(tile.rows, tile.group, value_dim);
    let (mut one, mut batch, mut streamed) = (empty(), [empty()], [empty()]);
    attend(&tile, &kv(views), selection, options, &mut one).unwrap();
    attend_batch(&[job(views)], options, &mut batch).unwrap();
    let mut stream = BatchStream::new([&tile], options);
    for pages in views.chunks(2) {
        stream.attend(&[job(pages)], options, &mut streamed).unwrap();
    }
    stream.finish(&mut streamed).unwrap();
    let ([batch], [streamed]) = (batch, streamed);
    assert_eq!(batch, streamed, "pages two at a time");
    [one, batch, streamed]
}

/// Runs with every number of threads up to the machine's.
pub(crate) fn on_threads(work: impl Fn() + Sync) {
    #[cfg(feature = "parallel")]
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(&work);
    }
    #[cfg(not(feature = "parallel"))]
    work();
}

/// Rows at the end of a cache of `lengths`, in shapes of real models.
fn rows_at_the_end(
    rows: impl Strategy<Value = usize>,
    page_tokens: impl Strategy<Value = usize>,
    pages: core::ops::Range<usize>,
) -> impl Strategy<Value = Shape> {
    let sizes = (
        any::<u64>(),
        prop_oneof![Just(64usize), Just(80), Just(128), Just(256)],
        prop_oneof![Just(1usize), Just(2), Just(4), Just(8)],
        rows,
        page_tokens,
        (format(), format()),
    );
    (sizes, pages, 0..64usize)
        .prop_flat_map(|(sizes, pages, short)| (Just(sizes), value_dim(sizes.1), Just(pages), Just(short)))
        .prop_flat_map(|(sizes, value_dim, pages, short)| {
            let page_tokens = sizes.4;
            let mut lengths = vec![page_tokens; pages];
            *lengths.last_mut().unwrap() = page_tokens - short % page_tokens;
            let tokens: usize = lengths.iter().sum();
            let rows = sizes.3.min(tokens);
            let soft_cap = prop_oneof![3 => Just(None), 1 => (0.5f32..20.0).prop_map(Some)];
            let start = tokens - rows;
            (
                Just((sizes, value_dim, lengths, rows, start)),
                selection(tokens, start, rows),
                soft_cap,
            )
        })
        .prop_map(
            |((sizes, value_dim, lengths, rows, start), selection, soft_cap)| Shape {
                seed: sizes.0,
                head_dim: sizes.1,
                value_dim,
                group: sizes.2,
                rows,
                start,
                page_tokens: sizes.4,
                lengths,
                formats: sizes.5,
                selection,
                soft_cap,
                causal: true,
            },
        )
}

fn rows_together_equal_rows_alone(shape: &Shape) {
    let (pages, queries) = (shape.pages(), shape.queries());
    let views: Vec<_> = pages.iter().map(Page::view).collect();
    let tile = shape.tile(&queries);
    for arithmetic in ARITHMETICS {
        let options = shape.options().with_arithmetic(arithmetic);
        on_threads(|| {
            let together = every_way(tile, shape.value_dim, &views, &shape.selection, &options);
            for row in 0..shape.rows {
                // A decode step finds only the tokens up to its own in the cache.
                let held = until(&views, shape.start + row + 1);
                let alone = every_way(
                    rows_of(&tile, row, 1),
                    shape.value_dim,
                    &held,
                    &shape.selection,
                    &options,
                );
                for (together, alone) in together.iter().zip(&alone) {
                    assert_eq!(bits(together, row, 1), bits(alone, 0, 1), "row {row}, {arithmetic:?}");
                }
            }
        });
    }
}

/// Formats of short caches are random; long caches test every format, so that rare ones meet two parts too.
fn long_shape(format: Format, rows: usize, group: usize, selection: Selection) -> Shape {
    let page_tokens = 1024;
    Shape {
        seed: 11,
        head_dim: 64,
        value_dim: 64,
        group,
        rows,
        start: 12 * page_tokens - rows - 3,
        page_tokens,
        lengths: vec![page_tokens; 12],
        formats: (format, format),
        selection,
        soft_cap: None,
        causal: true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_row_alone_has_the_bits_of_a_row_among_others(
        shape in rows_at_the_end(1..=17usize, prop_oneof![Just(16usize), Just(32), Just(64), Just(256)], 1..5),
    ) {
        rows_together_equal_rows_alone(&shape);
    }

    #[test]
    fn a_prompt_has_the_same_bits_however_it_is_cut(
        shape in rows_at_the_end(1..=300usize, prop_oneof![Just(64usize), Just(256)], 1..6),
        cuts in proptest::collection::vec(1..120usize, 1..40),
    ) {
        let (pages, queries) = (shape.pages(), shape.queries());
        let views: Vec<_> = pages.iter().map(Page::view).collect();
        let tile = shape.tile(&queries);
        let options = shape.options();
        let whole = every_way(tile, shape.value_dim, &views, &shape.selection, &options);
        let (mut first, mut cuts) = (0, cuts.iter().cycle());
        while first < shape.rows {
            let rows = (*cuts.next().unwrap()).min(shape.rows - first);
            let held = until(&views, shape.start + first + rows);
            let rows_here = rows_of(&tile, first, rows);
            let part = every_way(rows_here, shape.value_dim, &held, &shape.selection, &options);
            for (whole, part) in whole.iter().zip(&part) {
                prop_assert_eq!(bits(whole, first, rows), bits(part, 0, rows), "rows {} to {}", first, first + rows);
            }
            first += rows;
        }
    }

    #[test]
    fn a_partial_that_holds_something_goes_on_the_same_alone_and_among_others(
        shape in rows_at_the_end(2..=17usize, Just(256usize), 2..5),
    ) {
        let (pages, queries) = (shape.pages(), shape.queries());
        let views: Vec<_> = pages.iter().map(Page::view).collect();
        let (tile, cut) = (shape.tile(&queries), views.len() / 2);
        for arithmetic in ARITHMETICS {
            let options = shape.options().with_arithmetic(arithmetic);
            let run = |tile: QueryTile, views: &[PageView]| {
                let mut partials = [Partial::new(tile.rows, tile.group, shape.value_dim)];
                let cut = cut.min(views.len());
                for pages in [&views[cut..], &views[..cut]] {
                    let kv = KvView { head_dim: tile.head_dim, pages };
                    let job = AttendJob { queries: tile, kv, selection: &shape.selection };
                    attend_batch(&[job], &options, &mut partials).unwrap();
                }
                let [partial] = partials;
                partial
            };
            let together = run(tile, &views);
            for row in 0..shape.rows {
                let alone = run(rows_of(&tile, row, 1), &until(&views, shape.start + row + 1));
                prop_assert_eq!(bits(&together, row, 1), bits(&alone, 0, 1), "row {}, {:?}", row, arithmetic);
            }
        }
    }

    #[test]
    fn block_means_give_a_row_the_same_bits_alone_and_among_others(
        seed in any::<u64>(),
        rows in 1..=17usize,
        group in prop_oneof![Just(1usize), Just(2), Just(4), Just(8)],
        format in format(),
        selection in selection(512, 480, 17),
        named in proptest::collection::vec(any::<bool>(), 32),
        parts in any::<bool>(),
    ) {
        let (head_dim, mut noise) = (64, Noise::new(seed));
        let blocks: Vec<Span> = (0..32).map(|block| Span::new(block * 16, block * 16 + 16)).collect();
        let named = blocks.iter().zip(&named).filter(|(_, named)| **named).map(|(block, _)| *block);
        let selection = selection.with_summaries(named).summarizing_parts(parts);
        let (mut keys, mut values) = (plane(format, 32, head_dim), plane(format, 32, head_dim));
        write_keys(&mut keys.plane_mut(), head_dim, 0, 32, &noise.values(32 * head_dim), head_dim).unwrap();
        write_values(&mut values.plane_mut(), head_dim, 0, 32, &noise.values(32 * head_dim), head_dim).unwrap();
        let means = SummaryView { head_dim, blocks: &blocks, keys: keys.plane(), values: values.plane() };
        let data = noise.values(rows * group * head_dim);
        let row_stride = group * head_dim;
        let tile = QueryTile { data: &data, rows, row_stride, group, head_dim, start: 480 };
        for arithmetic in ARITHMETICS {
            let options = AttendOptions::for_head_dim(head_dim).with_arithmetic(arithmetic);
            let run = |tile: QueryTile| {
                let mut partial = Partial::new(tile.rows, group, head_dim);
                attend_summaries(&tile, &means, &selection, &options, &mut partial).unwrap();
                partial
            };
            let together = run(tile);
            for row in 0..rows {
                let alone = run(rows_of(&tile, row, 1));
                prop_assert_eq!(bits(&together, row, 1), bits(&alone, 0, 1), "row {}, {:?}", row, arithmetic);
            }
        }
    }

    #[test]
    fn a_scan_weighs_for_a_row_the_same_alone_and_among_others(
        shape in rows_at_the_end(1..=17usize, prop_oneof![Just(16usize), Just(64), Just(256)], 1..5),
    ) {
        let (pages, queries) = (shape.pages(), shape.queries());
        let views: Vec<_> = pages.iter().map(Page::view).collect();
        let tile = shape.tile(&queries);
        for arithmetic in ARITHMETICS {
            let options = shape.options().with_arithmetic(arithmetic);
            let run = |tile: QueryTile| {
                let held = until(&views, tile.start + tile.rows);
                let kv = KvView { head_dim: tile.head_dim, pages: &held };
                let mut scan = Scan::default();
                scan.run(&tile, &kv, tile.start + tile.rows, &options).unwrap();
                let mut partial = Partial::new(tile.rows, tile.group, shape.value_dim);
                attend_scanned(&scan, &shape.selection, &kv, &mut partial).unwrap();
                (scan, partial)
            };
            let (scans, together) = run(tile);
            for row in 0..shape.rows {
                let (scan, alone) = run(rows_of(&tile, row, 1));
                let visible = shape.start + row + 1;
                for head in 0..shape.group {
                    let query = row * shape.group + head;
                    prop_assert_eq!(&scans.weights(query)[..visible], scan.weights(head));
                    prop_assert_eq!(scans.total(query).to_bits(), scan.total(head).to_bits());
                }
                prop_assert_eq!(bits(&together, row, 1), bits(&alone, 0, 1), "row {}, {:?}", row, arithmetic);
            }
        }
    }
}

#[test]
fn a_row_alone_has_the_bits_of_a_row_among_others_over_several_parts_of_a_cache() {
    let some = [Span::new(0, 40), Span::new(3900, 4200), Span::new(8000, 8400)];
    let selections = [
        Selection::full(1 << 20),
        Selection::from_spans(some).with_row_window(700),
        Selection::from_spans([Span::new(0, 1)])
            .with_row_window(100)
            .with_diagonals([128, 512, 4096, 8192]),
    ];
    for format in Format::ALL {
        for (group, rows) in [(1, 17), (2, 9), (4, 5), (8, 3)] {
            for selection in &selections {
                rows_together_equal_rows_alone(&long_shape(format, rows, group, selection.clone()));
            }
        }
    }
}

#[test]
fn a_cache_that_is_read_as_parts_equals_the_reference() {
    for format in [Format::F32, Format::Q8_0] {
        let shape = long_shape(format, 3, 4, Selection::full(1 << 20));
        let (pages, queries) = (shape.pages(), shape.queries());
        let views: Vec<_> = pages.iter().map(Page::view).collect();
        let (tile, options) = (shape.tile(&queries), shape.options().with_arithmetic(Arithmetic::Fused));
        let [_, parts, _] = every_way(tile, shape.value_dim, &views, &shape.selection, &options);
        assert_matches(&parts, &shape.exact(&views), 2e-4);
    }
}
