//! Estimates over pages that a device page cache loads.

use std::sync::Arc;

use riffle_attention::{AttendOptions, Format, Selection};
use riffle_cuda::ops::Queries;
use riffle_cuda::{CallRows, DeviceRoom, PagedTile, RoomBytes, RoomOptions, ScannedHead, SummaryKind};

use crate::paged::Cache;
use crate::testing::{noise, on_every_device};

#[test]
fn estimates_are_the_same_in_pieces_and_are_left_to_the_cpu_without_room() {
    on_every_device(|gpu, _| {
        let stream = Arc::new(gpu.stream().unwrap());
        let (head_dim, kv_heads, group, tokens, rows) = (32, 2, 2, 200, 70);
        let cache = Cache::new(gpu, head_dim, kv_heads, tokens, 64, [Format::F16, Format::F16]);
        let shown: Vec<_> = (0..kv_heads).map(|head| cache.views(head)).collect();
        let queries = noise(rows * kv_heads * group * head_dim, 3);
        let source = gpu.upload(&queries).unwrap();
        let beside = Queries {
            data: source.all(),
            rows,
            row_stride: queries.len() / rows,
        };
        let run = |estimate_bytes: u64, budget: fn(&RoomOptions, usize) -> u64| {
            let mut options = cache.room_options(group);
            options.estimate_bytes = estimate_bytes;
            options.budget_bytes = budget(&options, tokens);
            let mut room = DeviceRoom::new(&stream, options).unwrap();
            let of = cache.layer(room.begin_sequence());
            let mut scan = room.scan_keys(of, &shown, beside).unwrap()?;
            let head = ScannedHead {
                kv_head: 1,
                start: tokens - rows,
                tokens,
                scale: 0.3,
            };
            let blocks = scan.blocks(&head, 1, 16).unwrap()?;
            Some((blocks, scan.lines(&head, 20).unwrap()?))
        };
        let whole = run(1 << 20, RoomOptions::bytes_for).unwrap();
        assert_eq!(whole.0.iter().map(Vec::len).collect::<Vec<_>>(), [9, 10, 11, 12, 13]);
        let mass: f32 = whole.1[0].iter().sum();
        assert!((mass - 20.0 * group as f32).abs() < 1e-3, "{mass}");
        // Memory for one block of queries, or for some rows.
        assert_eq!(run(40_000, RoomOptions::bytes_for), Some(whole));
        assert_eq!(run(500, RoomOptions::bytes_for), None);
        assert_eq!(run(1 << 20, |options, _| options.least_bytes()), None);
    });
}

#[test]
fn bounds_and_masses_are_the_same_where_more_pages_visit_than_have_a_place() {
    on_every_device(|gpu, _| {
        let stream = Arc::new(gpu.stream().unwrap());
        // Each head loads more than eight pages.
        let (head_dim, kv_heads, group, tokens, rows) = (32, 2, 2, 64 * 11 + 5, 3);
        let cache = Cache::new(gpu, head_dim, kv_heads, tokens, 64, [Format::Q8_0, Format::F16]);
        let shown: Vec<_> = (0..kv_heads).map(|head| cache.views(head)).collect();
        let queries = noise(rows * kv_heads * group * head_dim, 3);
        let source = gpu.upload(&queries).unwrap();
        let (attended, sums_there) = (
            gpu.allocate(0).unwrap(),
            gpu.allocate(4 * rows * kv_heads * group).unwrap(),
        );
        let beside = Queries {
            data: source.all(),
            rows,
            row_stride: queries.len() / rows,
        };
        let everything = Selection::full(tokens);
        let tiles: Vec<PagedTile<'_>> = (0..kv_heads)
            .map(|kv_head| PagedTile {
                kv_head,
                first_row: 0,
                rows,
                start: tokens - rows,
                selection: &everything,
            })
            .collect();
        let run = |budget: fn(&RoomOptions, usize) -> u64| {
            let mut options = cache.room_options(group);
            options.bound_bytes = 1 << 20;
            options.budget_bytes = budget(&options, tokens);
            let mut room = DeviceRoom::new(&stream, options).unwrap();
            let of = cache.layer(room.begin_sequence());
            let known = |room: &mut DeviceRoom| room.summaries_known(SummaryKind::Bounds, of, 48, tokens).unwrap();
            assert_eq!(known(&mut room), Some(vec![0, 0]));
            room.extend_summaries(SummaryKind::Bounds, of, &shown).unwrap();
            assert_eq!(known(&mut room), Some(vec![tokens; 2]));
            let scores = room.bound_scores(of, beside, &[tokens, 100]).unwrap();
            let sums = vec![5.0; rows * kv_heads * group];
            let scale = AttendOptions::new(0.3);
            let rows = CallRows {
                queries: beside,
                attended: attended.all(),
                log_sum_exp: sums_there.all(),
            };
            room.set_log_sum_exp(&rows, &sums).unwrap();
            let mut pass = room.begin_mass(of, &tiles, rows, tokens, &scale).unwrap();
            pass.add(&shown).unwrap();
            (scores, pass.finish().unwrap())
        };
        let resident = run(RoomOptions::bytes_for);
        let blocks: Vec<usize> = resident.0.iter().map(Vec::len).collect();
        assert_eq!(blocks, [tokens.div_ceil(48), 3]);
        assert!(resident.1.iter().flatten().all(|mass| *mass > 0.0));
        assert_eq!(run(|options, _| options.least_bytes()), resident);
    });
}
