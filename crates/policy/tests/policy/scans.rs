//! Policies that weigh every key, against their definitions in f64, and the mass they drop.

use crate::testing::{Scene, assert_mask, best_share, decode_scenes, make, scenes};
use riffle_attention::{PageView, Plane, PlaneMut, QueryTile, Selection, Span, write_keys};
use riffle_policy::{Phase, SelectContext};

#[test]
fn certified_reads_the_fewest_tokens_that_hold_the_mass() {
    for scene in decode_scenes() {
        for epsilon in [0.3, 0.05, 0.001] {
            let mut policy = make(&format!("certified:epsilon={epsilon}"), Phase::Decode);
            let (pages, tile) = (scene.pages(), scene.tile(0, scene.rows));
            let context = scene.context(&pages);
            policy.prepare(&tile, &context);
            let selection = policy.select(&tile, &context);
            let mut expected: Vec<usize> = Vec::new();
            for row in 0..scene.rows {
                for head in 0..scene.group {
                    let weights = scene.attention(row, head);
                    expected.extend(best_share(&weights, 1.0 - epsilon, 0, |_| false));
                    let left = weights
                        .iter()
                        .enumerate()
                        .filter(|(key, _)| !selection.contains(scene.start + row, *key));
                    let left: f64 = left.map(|(_, weight)| weight).sum();
                    assert!(left <= epsilon + 1e-6);
                }
            }
            assert_mask(&scene, &[(0, scene.rows, selection)], |_, _, _, key| {
                expected.contains(&key)
            });
        }
    }
}

#[test]
fn the_few_tokens_that_hold_nearly_everything_are_found_wherever_they_stand() {
    const TOKENS: usize = 9001;
    // The heavy tokens are so few that a sample may miss them.
    let heavy = 17..22;
    let mut rows = vec![0.0; TOKENS * 16];
    heavy.clone().for_each(|token| rows[token * 16] = 12.0);
    let mut plane = vec![0.0; TOKENS.next_multiple_of(16) * 16];
    write_keys(&mut PlaneMut::F32(&mut plane), 16, 0, TOKENS, &rows, 16).unwrap();
    let pages = [PageView {
        start: 0,
        tokens: TOKENS,
        keys: Plane::F32(&plane),
        values: Plane::F32(&plane),
    }];
    let mut query = [0.0; 16];
    query[0] = 1.0;
    let tile = QueryTile {
        data: &query,
        rows: 1,
        row_stride: 16,
        group: 1,
        head_dim: 16,
        start: TOKENS - 1,
    };
    let context = SelectContext {
        phase: Phase::Decode,
        layer: 5,
        layers: 6,
        kv_head: 0,
        chunk_start: TOKENS - 1,
        tokens: TOKENS,
        total_tokens: TOKENS,
        page_tokens: TOKENS,
        scale: 1.0,
        soft_cap: None,
        pages: &pages,
        signs: None,
    };
    let mut policy = make("certified", Phase::Decode);
    policy.prepare(&tile, &context);
    let found = policy.select(&tile, &context);
    assert_eq!(found, Selection::from_spans([Span::new(heavy.start, heavy.end)]));
    let mut twilight = make("twilight:dense_layers=0,candidates=1", Phase::Decode);
    twilight.prepare(&tile, &context);
    let found = twilight.select(&tile, &context);
    assert!(heavy.clone().all(|token| found.contains(TOKENS - 1, token)));
}

/// BLASST's blocks of one query block by its definition, and an upper bound of each query's omitted mass.
fn blasst_blocks(scene: &Scene, block: usize, rows: std::ops::Range<usize>, lambda: f64) -> (Vec<usize>, f64) {
    let mut read = Vec::new();
    for row in rows.clone() {
        for head in 0..scene.group {
            let mut top = f64::NEG_INFINITY;
            for (number, logits) in scene.logits(row, head)[..scene.start + row + 1]
                .chunks(block)
                .enumerate()
            {
                let best = logits.iter().fold(f64::NEG_INFINITY, |best, logit| best.max(*logit));
                if best >= top + lambda.ln() {
                    read.push(number);
                }
                top = top.max(best);
            }
        }
    }
    let mut dropped = 0.0f64;
    for row in rows {
        for head in 0..scene.group {
            let weights = scene.attention(row, head);
            let left = weights
                .iter()
                .enumerate()
                .filter(|(key, _)| !read.contains(&(key / block)));
            dropped = dropped.max(left.map(|(_, weight)| weight).sum());
        }
    }
    (read, dropped)
}

#[test]
fn blasst_skips_blocks_far_below_the_best_before_them_and_drops_no_more_than_its_factor() {
    for phase in [Phase::Prefill, Phase::Decode] {
        for (mut scene, tile) in scenes() {
            scene.phase = phase;
            for (factor, block) in [(16.0f32, 16), (100.0, 32), (0.5, 16)] {
                let spec = format!("blasst:factor={factor},block={block}");
                let lambda = f64::from((factor / scene.tokens as f32).min(1.0));
                let end = scene.start + scene.rows;
                let first = scene.start / block;
                let by_block: Vec<(Vec<usize>, f64)> = (first..end.div_ceil(block))
                    .map(|number| {
                        let from = (number * block).max(scene.start) - scene.start;
                        let to = ((number + 1) * block).min(end) - scene.start;
                        blasst_blocks(&scene, block, from..to, lambda)
                    })
                    .collect();
                assert_mask(&scene, &scene.select(&spec, tile), |from, to, _, key| {
                    let numbers = (scene.start + from) / block..(scene.start + to).div_ceil(block);
                    numbers
                        .into_iter()
                        .any(|number| by_block[number - first].0.contains(&(key / block)))
                });
                let dropped = by_block.iter().fold(0.0f64, |most, (_, dropped)| most.max(*dropped));
                assert!(dropped <= f64::from(factor), "at most factor / L a key");
            }
        }
    }
}
