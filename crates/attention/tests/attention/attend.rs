//! `attend` against the f64 reference, and the algebra of partials.

use crate::laws;
use crate::testing::*;
use proptest::prelude::*;
use riffle_attention::*;

/// Single precision; for quantised planes in small tiles, queries and weights have 15 bits instead of 24.
pub(crate) fn tolerance(shape: &Shape) -> f64 {
    let quantised = Format::is_quantised;
    if quantised(shape.formats.0) || quantised(shape.formats.1) {
        2e-4
    } else {
        3e-5
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn attend_equals_the_reference(shape in shape()) {
        laws::equals_the_reference(&shape, &shape.options(), tolerance(&shape));
    }

    #[test]
    fn page_by_page_gives_the_same_bits_as_one_call(shape in shape()) {
        laws::pages_may_come_one_by_one(&shape, &shape.options());
    }

    #[test]
    fn partials_merge_the_same_in_any_order(shape in shape(), order in any::<u64>()) {
        let (pages, queries) = (shape.pages(), shape.queries());
        let views: Vec<_> = pages.iter().map(Page::view).collect();
        let mut parts = vec![shape.partial()];
        for page in &views {
            let kv = shape.kv(core::slice::from_ref(page));
            let mut part = shape.partial();
            attend(&shape.tile(&queries), &kv, &shape.selection, &shape.options(), &mut part).unwrap();
            parts.push(part);
        }
        let mut state = order | 1;
        let mut merged = shape.partial();
        while !parts.is_empty() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let part = parts.swap_remove((state >> 33) as usize % parts.len());
            merged.merge(&part).unwrap();
        }
        assert_matches(&merged, &shape.exact(&views), tolerance(&shape));
    }

    #[test]
    fn a_later_token_never_changes_an_earlier_row(shape in shape(), from in 0usize..600) {
        prop_assume!(shape.causal);
        laws::later_tokens_change_no_earlier_row(&shape, &shape.options(), from);
    }

    #[test]
    fn a_batch_equals_its_jobs(shape in shape()) {
        let (pages, queries) = (shape.pages(), shape.queries());
        let views: Vec<_> = pages.iter().map(Page::view).collect();
        let kv = shape.kv(&views);
        let job = AttendJob { queries: shape.tile(&queries), kv, selection: &shape.selection };
        let mut partials = [shape.partial(), shape.partial(), shape.partial()];
        attend_batch(&[job; 3], &shape.options(), &mut partials).unwrap();
        let exact = shape.exact(&views);
        for partial in &partials {
            assert_matches(partial, &exact, tolerance(&shape));
        }
    }

    #[test]
    fn planes_round_trip(format in format(), head_dim in prop_oneof![Just(16usize), Just(80), Just(96), Just(128)], seed in any::<u64>(), first in 0usize..20) {
        let source = Noise::new(seed).values(9 * head_dim);
        let mut buffer = plane(format, 32, head_dim);
        let mut out = vec![0.0; 9 * head_dim];
        let tolerance = match format {
            Format::F32 => 0.0,
            Format::F16 => 5e-4,
            Format::Bf16 => 4e-3,
            Format::Q8_0 => 0.5 / 127.0 + 5e-4,
            // The tolerance of 4 bits, the coarsest format.
            _ => 0.125 + 1e-3,
        };
        for keys in [true, false] {
            if keys {
                write_keys(&mut buffer.plane_mut(), head_dim, first, 9, &source, head_dim).unwrap();
                read_keys(&buffer.plane(), head_dim, first, 9, &mut out, head_dim).unwrap();
            } else {
                write_values(&mut buffer.plane_mut(), head_dim, first, 9, &source, head_dim).unwrap();
                read_values(&buffer.plane(), head_dim, first, 9, &mut out, head_dim).unwrap();
            }
            for (a, b) in source.iter().zip(&out) {
                prop_assert!((a - b).abs() <= tolerance, "{} became {}", a, b);
            }
        }
    }
}

/// Changes of a tile of two rows over a page of 16 tokens; each is refused.
fn refused(
    change: impl FnOnce(&mut QueryTile, &mut PageView, &mut AttendOptions),
    head_dim: usize,
    copies: usize,
) -> Option<AttendError> {
    let data = [0.0f32; 16 * 64];
    let mut page = PageView {
        start: 0,
        tokens: 16,
        keys: Plane::F32(&data),
        values: Plane::F32(&data),
    };
    let mut tile = QueryTile {
        data: &data,
        rows: 2,
        row_stride: 64,
        group: 1,
        head_dim: 64,
        start: 0,
    };
    let mut options = AttendOptions::new(1.0);
    change(&mut tile, &mut page, &mut options);
    let pages = vec![page; copies];
    let kv = KvView {
        head_dim,
        pages: &pages,
    };
    let mut partial = Partial::new(2, 1, 64);
    let error = attend(&tile, &kv, &Selection::full(16), &options, &mut partial).err();
    if error.is_some() {
        assert_eq!(partial, Partial::new(2, 1, 64), "nothing is written");
    }
    error
}

#[test]
fn bad_shapes_are_refused_and_nothing_is_written() {
    use AttendError::{HeadDim, Mismatch, NotFinite, PageOrder, Short};
    assert_eq!(refused(|_, _, _| (), 64, 1), None);
    assert!(matches!(refused(|_, _, _| (), 60, 1), Some(HeadDim { .. })));
    assert!(matches!(refused(|_, _, _| (), 48, 1), Some(Mismatch { .. })));
    assert!(matches!(refused(|_, _, _| (), 64, 2), Some(PageOrder { .. })));
    assert!(matches!(
        refused(|tile, _, _| tile.rows = 20, 64, 1),
        Some(Short { .. })
    ));
    assert!(refused(|tile, _, _| tile.rows = usize::MAX, 64, 1).is_some());
    assert!(matches!(
        refused(|tile, _, _| tile.row_stride = 8, 64, 1),
        Some(Mismatch { .. })
    ));
    assert!(refused(|tile, _, _| tile.row_stride = usize::MAX, 64, 1).is_some());
    assert!(matches!(
        refused(|_, page, _| page.tokens = 17, 64, 1),
        Some(Short { .. })
    ));
    assert!(refused(|_, page, _| page.tokens = usize::MAX, 64, 1).is_some());
    let not_a_number = |_: &mut QueryTile, _: &mut PageView, options: &mut AttendOptions| options.scale = f32::NAN;
    assert!(matches!(refused(not_a_number, 64, 1), Some(NotFinite { .. })));
}

#[test]
fn tokens_beyond_a_plane_or_a_slice_are_not_copied() {
    let data = [0.0f32; 16 * 64];
    assert!(write_keys(&mut PlaneMut::F32(&mut [0.0; 256]), 16, 10, 7, &data, 16).is_err());
    assert!(write_keys(&mut PlaneMut::F32(&mut [0.0; 256]), 16, usize::MAX, 7, &data, 16).is_err());
    assert!(write_values(&mut PlaneMut::Q8_0(&mut [0; 256]), 16, 0, 16, &data, 16).is_err());
    assert!(read_keys(&Plane::F32(&data), 64, 0, 16, &mut [0.0; 64], 64).is_err());
}

#[test]
fn a_long_tail_beside_one_heavy_key_keeps_its_mass() {
    // 127 weights, each below half a unit of the heavy one's integer scale: all would round to zero.
    let (head_dim, tokens) = (32, 128);
    for format in [Format::Q8_0, Format::Q4_0] {
        let mut page = Page {
            start: 0,
            tokens,
            keys: plane(Format::F32, tokens, head_dim),
            values: plane(format, tokens, head_dim),
        };
        let mut keys = vec![0.0; tokens * head_dim];
        keys[0] = 11.0;
        write_keys(&mut page.keys.plane_mut(), head_dim, 0, tokens, &keys, head_dim).unwrap();
        let mut values = vec![1.0; tokens * head_dim];
        values[..head_dim].fill(0.0);
        write_values(&mut page.values.plane_mut(), head_dim, 0, tokens, &values, head_dim).unwrap();
        let mut query = vec![0.0; head_dim];
        query[0] = 1.0;
        let tile = QueryTile {
            data: &query,
            rows: 1,
            row_stride: head_dim,
            group: 1,
            head_dim,
            start: tokens - 1,
        };
        let views = [page.view()];
        let kv = KvView {
            head_dim,
            pages: &views,
        };
        let mut partial = Partial::new(1, 1, head_dim);
        let (selection, options) = (Selection::full(tokens), AttendOptions::new(1.0));
        attend(&tile, &kv, &selection, &options, &mut partial).unwrap();
        let mut out = vec![0.0; head_dim];
        partial.finish_into(&mut out, head_dim, None).unwrap();
        let tail = 127.0 * (-11.0f64).exp();
        let share = tail / (1.0 + tail);
        for x in out {
            assert!(
                (f64::from(x) - share).abs() < 0.02 * share,
                "{format:?}: {x} for {share}"
            );
        }
    }
}

#[test]
fn sinks_match_the_reference() {
    let mut noise = Noise::new(5);
    let pages = pages(&mut noise, (32, 48), 16, &[16, 3], (Format::F32, Format::F32));
    let views: Vec<_> = pages.iter().map(Page::view).collect();
    let kv = KvView {
        head_dim: 32,
        pages: &views,
    };
    let data = noise.values(3 * 64);
    let queries = QueryTile {
        data: &data,
        rows: 3,
        row_stride: 64,
        group: 2,
        head_dim: 32,
        start: 16,
    };
    let options = AttendOptions::new(0.5);
    // The last selection gives the first two rows no key.
    let late = Selection::none().with_row_extras(16, [vec![], vec![], vec![2, 18]]);
    let infinite = [f32::NEG_INFINITY, f32::INFINITY];
    for selection in &[Selection::full(19), Selection::none(), late] {
        let mut partial = Partial::new(3, 2, 48);
        attend(&queries, &kv, selection, &options, &mut partial).unwrap();
        for sinks in [[0.7, -2.0], [90.0, -90.0], [f32::MAX, f32::MIN], infinite] {
            let mut out = vec![0.0; 3 * 96];
            partial.finish_into(&mut out, 96, Some(&sinks)).unwrap();
            let job = AttendJob { queries, kv, selection };
            let exact = reference::ReferenceJob {
                job,
                value_dim: 48,
                summaries: &[],
                sinks: Some(&sinks),
            };
            let exact = exact.attend(&options).unwrap();
            for (a, b) in out.iter().zip(&exact.output) {
                assert!((f64::from(*a) - b).abs() < 1e-6, "{a} for {b} with sinks {sinks:?}");
            }
        }
        // No sink, and one of −∞.
        let (mut without, mut with) = (vec![0.0; 3 * 96], vec![0.0; 3 * 96]);
        partial.finish_into(&mut without, 96, None).unwrap();
        partial
            .finish_into(&mut with, 96, Some(&[f32::NEG_INFINITY; 2]))
            .unwrap();
        assert_eq!(with, without);
    }
}

/// Block means of 16 tokens each over the first `blocks` blocks of a cache in pages of f32.
fn means(pages: &[Page], (key_dim, value_dim): (usize, usize), blocks: usize) -> Vec<reference::ReferenceSummary> {
    let width = |keys: bool| if keys { key_dim } else { value_dim };
    let row = |position: usize, keys: bool| {
        let page = pages
            .iter()
            .find(|page| (page.start..page.start + page.tokens).contains(&position))
            .unwrap();
        let head_dim = width(keys);
        let mut row = vec![0.0; head_dim];
        let slot = position - page.start;
        if keys {
            read_keys(&page.keys.plane(), head_dim, slot, 1, &mut row, head_dim).unwrap();
        } else {
            read_values(&page.values.plane(), head_dim, slot, 1, &mut row, head_dim).unwrap();
        }
        row
    };
    let mean = |block: Span, keys: bool| {
        let mut sum = vec![0.0; width(keys)];
        for position in block.range() {
            for (sum, x) in sum.iter_mut().zip(row(position, keys)) {
                *sum += x / block.len() as f32;
            }
        }
        sum
    };
    let blocks = (0..blocks).map(|b| Span::new(b * 16, b * 16 + 16));
    blocks
        .map(|block| reference::ReferenceSummary {
            block,
            key: mean(block, true),
            value: mean(block, false),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn summaries_equal_the_reference(
        seed in any::<u64>(),
        rows in 1usize..20,
        start in 0usize..300,
        causal in any::<bool>(),
        selection in selection(256, 100, 20),
        named in proptest::collection::vec(any::<bool>(), 16),
        parts in any::<bool>(),
        value_dim in value_dim(32),
    ) {
        let mut noise = Noise::new(seed);
        let pages = pages(&mut noise, (32, value_dim), 64, &[64; 4], (Format::F32, Format::F32));
        let views: Vec<_> = pages.iter().map(Page::view).collect();
        let kv = KvView { head_dim: 32, pages: &views };
        let summaries = means(&pages, (32, value_dim), 16);
        let blocks: Vec<Span> = summaries.iter().map(|summary| summary.block).collect();
        let chosen = blocks.iter().zip(&named).filter(|(_, named)| **named).map(|(block, _)| *block);
        let selection = selection.with_summaries(chosen).summarizing_parts(parts);
        let (mut keys, mut values) = (vec![0.0; 512], vec![0.0; 16 * value_dim]);
        for (slot, summary) in summaries.iter().enumerate() {
            write_keys(&mut PlaneMut::F32(&mut keys), 32, slot, 1, &summary.key, 32).unwrap();
            write_values(&mut PlaneMut::F32(&mut values), value_dim, slot, 1, &summary.value, value_dim).unwrap();
        }
        let view =
            SummaryView { head_dim: 32, blocks: &blocks, keys: Plane::F32(&keys), values: Plane::F32(&values) };
        let data = noise.values(rows * 64);
        let tile = QueryTile { data: &data, rows, row_stride: 64, group: 2, head_dim: 32, start };
        let options = AttendOptions::new(0.5).with_causal(causal);
        let mut partial = Partial::new(rows, 2, value_dim);
        attend(&tile, &kv, &selection, &options, &mut partial).unwrap();
        attend_summaries(&tile, &view, &selection, &options, &mut partial).unwrap();
        let (job, summaries) = (AttendJob { queries: tile, kv, selection: &selection }, &summaries[..]);
        let exact = reference::ReferenceJob { job, value_dim, summaries, sinks: None };
        let exact = exact.attend(&options).unwrap();
        assert_matches(&partial, &exact, 3e-5);
        if causal {
            // Summaries that end after a row's position may have any content.
            let seen = blocks.partition_point(|block| block.end <= start);
            let mut changed = (keys.clone(), values.clone());
            for (number, summary) in summaries.iter().enumerate().skip(seen) {
                let [key, value] = [&summary.key, &summary.value].map(|of| of.iter().map(|x| 3.0 - x).collect::<Vec<_>>());
                write_keys(&mut PlaneMut::F32(&mut changed.0), 32, number, 1, &key, 32).unwrap();
                write_values(&mut PlaneMut::F32(&mut changed.1), value_dim, number, 1, &value, value_dim).unwrap();
            }
            let view = SummaryView { keys: Plane::F32(&changed.0), values: Plane::F32(&changed.1), ..view };
            let mut again = Partial::new(rows, 2, value_dim);
            attend(&tile, &kv, &selection, &options, &mut again).unwrap();
            attend_summaries(&tile, &view, &selection, &options, &mut again).unwrap();
            prop_assert_eq!(&again.o[..2 * value_dim], &partial.o[..2 * value_dim]);
        }
    }

    #[test]
    fn blocks_of_equal_tokens_lose_nothing_if_their_means_replace_the_unread_tokens(
        seed in any::<u64>(),
        rows in 1usize..8,
        selection in selection(256, 256, 8),
    ) {
        let (mut noise, width) = (Noise::new(seed), 32);
        let [keys, values] = [0, 1].map(|_| {
            let of_blocks = noise.values(16 * width);
            of_blocks.chunks(width).flat_map(|row| row.repeat(16)).collect::<Vec<f32>>()
        });
        let mut page = [vec![0.0; 256 * width], vec![0.0; 256 * width]];
        let mut means = [vec![0.0; 16 * width], vec![0.0; 16 * width]];
        write_keys(&mut PlaneMut::F32(&mut page[0]), width, 0, 256, &keys, width).unwrap();
        write_values(&mut PlaneMut::F32(&mut page[1]), width, 0, 256, &values, width).unwrap();
        let first_rows = |rows: &[f32]| -> Vec<f32> {
            rows.chunks(16 * width).flat_map(|block| block[..width].to_vec()).collect()
        };
        write_keys(&mut PlaneMut::F32(&mut means[0]), width, 0, 16, &first_rows(&keys), width).unwrap();
        write_values(&mut PlaneMut::F32(&mut means[1]), width, 0, 16, &first_rows(&values), width).unwrap();
        let views = [PageView { start: 0, tokens: 256, keys: Plane::F32(&page[0]), values: Plane::F32(&page[1]) }];
        let kv = KvView { head_dim: width, pages: &views };
        let blocks: Vec<Span> = (0..16).map(|number| Span::new(16 * number, 16 * number + 16)).collect();
        let [keys, values] = [Plane::F32(&means[0]), Plane::F32(&means[1])];
        let view = SummaryView { head_dim: width, blocks: &blocks, keys, values };
        let data = noise.values(rows * 2 * width);
        let tile = QueryTile { data: &data, rows, row_stride: 2 * width, group: 2, head_dim: width, start: 256 };
        let options = AttendOptions::new(0.5);
        let selection = selection.with_summaries(blocks.iter().copied()).summarizing_parts(true);
        let mut partial = Partial::new(rows, 2, width);
        attend(&tile, &kv, &selection, &options, &mut partial).unwrap();
        attend_summaries(&tile, &view, &selection, &options, &mut partial).unwrap();
        let full = Selection::full(256);
        assert_matches(&partial, &reference::attend(&tile, &kv, &full, &options, None).unwrap(), 3e-5);
    }

    #[test]
    fn column_mass_equals_the_reference_part_by_part(shape in shape()) {
        let (pages, queries) = (shape.pages(), shape.queries());
        let views: Vec<_> = pages.iter().map(Page::view).collect();
        let kv = shape.kv(&views);
        let mut partial = shape.partial();
        let (tile, options) = (shape.tile(&queries), shape.options());
        attend(&tile, &kv, &shape.selection, &options, &mut partial).unwrap();
        let total: Vec<f32> = (0..shape.rows * shape.group)
            .map(|at| partial.log_sum_exp(at / shape.group, at % shape.group))
            .collect();
        let exact = shape.exact(&views);
        let mut expected = exact.column_mass.iter();
        for page in &views {
            let kv = shape.kv(core::slice::from_ref(page));
            let mut mass = vec![0.0; page.tokens];
            let job = AttendJob { queries: tile, kv, selection: &shape.selection };
            add_column_mass(&job, &options, &total, page.start, &mut mass).unwrap();
            for (mass, expected) in mass.iter().zip(expected.by_ref()) {
                let allowed = tolerance(&shape) * (1.0 + expected);
                prop_assert!((f64::from(*mass) - expected).abs() < allowed, "{} for {}", mass, expected);
            }
        }
    }
}
