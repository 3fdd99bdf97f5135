//! Policies that choose blocks, against their definitions in f64, on chunks with odd starts.

use crate::testing::{Scene, assert_mask, best, best_share, decode_scenes, dot, make, scenes, softmax};
use riffle_attention::{Plane, PlaneMut, Selection, read_keys, write_keys};
use riffle_policy::Phase;

/// XAttention's block scores by its definition, `[query block][key block]`, with the first query block's number.
fn antidiagonal_scores(scene: &Scene, stride: usize, block: usize) -> (usize, Vec<Vec<f64>>) {
    let d = scene.head_dim;
    let end = scene.start + scene.rows;
    let first = scene.start / block;
    let mut scores: Vec<Vec<f64>> = (first..end.div_ceil(block))
        .map(|number| vec![0.0; number + 1])
        .collect();
    for head in 0..scene.group {
        for group in scene.start / stride..end.div_ceil(stride) {
            let logits: Vec<f64> = (0..=group)
                .map(|keys| {
                    let pairs = (0..stride).map(|s| (group * stride + stride - 1 - s, keys * stride + s));
                    let there = pairs.filter(|(query, key)| (scene.start..end).contains(query) && *key < scene.tokens);
                    let products = there.map(|(query, key)| {
                        let at = ((query - scene.start) * scene.group + head) * d;
                        dot(&scene.queries[at..at + d], &scene.keys[key * d..key * d + d])
                    });
                    products.sum::<f64>() * f64::from(scene.scale) / stride as f64
                })
                .collect();
            for (keys, weight) in softmax(&logits).into_iter().enumerate() {
                scores[group * stride / block - first][keys * stride / block] += weight;
            }
        }
    }
    (first, scores)
}

#[test]
fn xattention_reads_the_fewest_blocks_that_hold_the_threshold() {
    for (scene, tile) in scenes() {
        for (stride, block, threshold) in [(8, 16, 0.6), (4, 32, 0.9), (16, 64, 0.5)] {
            let spec = format!("xattention:stride={stride},block={block},threshold={threshold},tail=0");
            let (first, scores) = antidiagonal_scores(&scene, stride, block);
            let chosen: Vec<Vec<usize>> = scores
                .iter()
                .map(|row| best_share(row, threshold, 0, |key| key == 0 || key + 1 == row.len()))
                .collect();
            assert_mask(&scene, &scene.select(&spec, tile), |from, to, _, key| {
                let blocks = (scene.start + from) / block..(scene.start + to).div_ceil(block);
                blocks
                    .into_iter()
                    .any(|number| chosen[number - first].contains(&(key / block)))
            });
        }
    }
}

#[test]
fn xattention_ends_with_a_dense_tail() {
    let mut scene = Scene::new(3, 200, 64, 1, 64);
    scene.after = 10;
    let tiles = scene.select("xattention:stride=8,block=16,threshold=0.1,tail=20", 16);
    assert_eq!(tiles[3].2, Selection::full(scene.tokens));
    assert_ne!(tiles[2].2, Selection::full(scene.tokens));
}

/// The values rounded to 8 bits, relative to the largest of every `width` values.
fn in_bytes(values: &[f32], width: usize) -> Vec<f32> {
    let rounded = values.chunks(width).flat_map(|values| {
        let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let (inverse, unit) = (127.0 / largest, largest / 127.0);
        values
            .iter()
            .map(move |value| (value * inverse).round_ties_even() * unit)
    });
    rounded.collect()
}

/// The blocks with a peak of a head's query, by the definition of `peaks`.
fn peaks_of(scene: &Scene, row: usize, head: usize, block: usize, peak: f64) -> Vec<usize> {
    let d = scene.head_dim;
    let query = in_bytes(&scene.queries[(row * scene.group + head) * d..][..d], d);
    let seen = &scene.keys[..(scene.start + row + 1) * d];
    let logits: Vec<f64> = in_bytes(seen, 32)
        .chunks(d)
        .map(|key| dot(&query, key) * f64::from(scene.scale))
        .collect();
    let largest: Vec<f64> = logits
        .chunks(block)
        .map(|logits| logits.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        .collect();
    let weights = softmax(&largest).into_iter().enumerate();
    weights
        .filter(|(_, weight)| *weight >= peak)
        .map(|(number, _)| number)
        .collect()
}

#[test]
fn peaks_reads_every_block_that_holds_a_peak_of_some_query() {
    for (scene, tile) in scenes() {
        for (block, peak) in [(16, 0.05), (32, 0.02), (64, 0.3)] {
            let spec = format!("peaks:block={block},peak={peak},tail=0");
            let chosen: Vec<Vec<usize>> = (0..scene.rows)
                .map(|row| {
                    let heads = (0..scene.group).flat_map(|head| peaks_of(&scene, row, head, block, peak));
                    heads.chain([0, (scene.start + row) / block]).collect()
                })
                .collect();
            assert_mask(&scene, &scene.select(&spec, tile), |from, to, _, key| {
                // The queries of a tile share the peaks of all query blocks that overlap the tile.
                let same = |row: &usize| {
                    let number = (scene.start + row) / block;
                    ((scene.start + from) / block..(scene.start + to).div_ceil(block)).contains(&number)
                };
                (0..scene.rows)
                    .filter(same)
                    .any(|row| chosen[row].contains(&(key / block)))
            });
        }
    }
}

#[test]
fn peaks_ends_with_a_dense_tail() {
    let mut scene = Scene::new(3, 200, 64, 1, 64);
    scene.after = 10;
    let tiles = scene.select("peaks:block=16,tail=20", 16);
    assert_eq!(tiles[3].2, Selection::full(scene.tokens));
    assert_ne!(tiles[2].2, Selection::full(scene.tokens));
}

fn quest_blocks(scene: &Scene, block: usize, count: usize, sinks: usize, recent: usize) -> Vec<usize> {
    let d = scene.head_dim;
    let scores: Vec<f64> = scene
        .keys
        .chunks(block * d)
        .map(|keys| {
            let channel = |c: usize| keys.iter().skip(c).step_by(d);
            let mut score = 0.0;
            for query in scene.queries.chunks(d) {
                for (c, q) in query.iter().enumerate() {
                    let low = channel(c).fold(f32::INFINITY, |m, k| m.min(*k));
                    let high = channel(c).fold(f32::NEG_INFINITY, |m, k| m.max(*k));
                    score += f64::from(q * low).max(f64::from(q * high));
                }
            }
            score
        })
        .collect();
    let forced = |number: usize| number < sinks || number + recent > scene.start / block;
    let always = (0..scores.len()).filter(|number| forced(*number)).count();
    best(&scores, always + count, forced)
}

#[test]
fn quest_reads_the_blocks_of_highest_bound_and_the_first_and_latest() {
    for scene in decode_scenes() {
        for (block, topk, sinks, recent) in [(16, 3, 1, 2), (32, 2, 0, 1), (16, 0, 2, 1)] {
            let spec = format!("quest:block={block},topk={topk},share=0,threshold=0,sinks={sinks},recent={recent}");
            let chosen = quest_blocks(&scene, block, topk, sinks, recent);
            let by_budget = format!("{spec},budget={}", topk * block);
            for spec in if topk > 0 { vec![spec, by_budget] } else { vec![spec] } {
                assert_mask(&scene, &scene.select(&spec, scene.rows), |_, _, _, key| {
                    chosen.contains(&(key / block))
                });
            }
        }
    }
}

#[test]
fn quest_reads_a_share_of_the_blocks_and_sixteen_at_least() {
    // 63 blocks: half of them are 32, a tenth is fewer than sixteen.
    let mut scene = Scene::new(11, 1000, 1, 2, 64);
    scene.phase = Phase::Decode;
    for (share, count) in [("0.5", 32), ("0.1", 16), ("1", 63)] {
        let spec = format!("quest:block=16,share={share},threshold=0,sinks=1,recent=1");
        let chosen = quest_blocks(&scene, 16, count, 1, 1);
        assert_mask(&scene, &scene.select(&spec, scene.rows), |_, _, _, key| {
            chosen.contains(&(key / 16))
        });
    }
}

#[test]
fn quest_is_dense_in_first_layers_and_short_sequences() {
    for mut scene in decode_scenes() {
        let full = Selection::full(scene.tokens);
        let blocks = scene.tokens.div_ceil(16);
        let spec = format!("quest:block=16,topk=0,share=0,sinks=0,recent=1,threshold={blocks}");
        assert_eq!(scene.select(&spec, scene.rows)[0].2, full);
        scene.layer = 1;
        assert_eq!(
            scene.select("quest:block=16,topk=0,share=0,sinks=0,recent=1,threshold=0", scene.rows)[0].2,
            full
        );
    }
}

#[test]
fn quest_summaries_grow_with_the_sequence_and_follow_a_rollback() {
    let spec = "quest:block=16,topk=3,threshold=0";
    let whole = Scene::new(9, 340, 1, 2, 64);
    let expected = {
        let mut scene = Scene::new(9, 340, 1, 2, 64);
        scene.phase = Phase::Decode;
        scene.select(spec, 1)[0].2.clone()
    };
    // Other keys from token 201 on, which are rolled back.
    let mut other = Scene::new(9, 340, 1, 2, 64);
    for key in &mut other.keys[201 * 32..] {
        *key *= -9.0;
    }
    let other = other.paged(64);
    let (pages, other_pages) = (whole.pages(), other.pages());
    let mut policy = make(spec, Phase::Decode);
    let mut shown = 0;
    for page in &other_pages[..4] {
        policy.summarize(page, 32);
        shown += page.tokens;
    }
    assert_eq!(shown, 256);
    policy.prepare(&other.tile(0, 1), &other.context(&other_pages));
    policy.truncate(201);
    policy.prepare(&whole.tile(0, 1), &whole.context(&pages));
    assert_eq!(policy.select(&whole.tile(0, 1), &whole.context(&pages)), expected);
    // Without `prepare`, and after a reset, the answer is the same.
    policy.reset();
    assert_eq!(policy.select(&whole.tile(0, 1), &whole.context(&pages)), expected);
}

/// Twilight's choice by its definition: the tokens of the best blocks, scored with keys in four bits.
fn twilight_tokens(scene: &Scene, p: f64, share: f32, least: usize) -> Vec<usize> {
    let (block, d) = (16, scene.head_dim);
    let blocks = scene.tokens.div_ceil(block);
    let more = ((f64::from(share) * blocks as f64) as usize).max(least);
    let candidates = quest_blocks(scene, block, more, 1, 2);
    let forced = |token: usize| token / block < 1 || token / block + 2 > scene.start / block;
    // Keys rounded like `q4_0`.
    let slots = scene.tokens.next_multiple_of(16);
    let (mut plane, mut rounded) = (vec![0; slots * (d / 2 + d / 16)], vec![0.0; scene.tokens * d]);
    write_keys(&mut PlaneMut::Q4_0(&mut plane), d, 0, scene.tokens, &scene.keys, d).unwrap();
    read_keys(&Plane::Q4_0(&plane), d, 0, scene.tokens, &mut rounded, d).unwrap();
    let tokens: Vec<usize> = (0..scene.tokens)
        .filter(|token| candidates.contains(&(token / block)))
        .collect();
    let keys: Vec<&[f32]> = tokens.iter().map(|token| &rounded[token * d..][..d]).collect();
    let mut chosen = Vec::new();
    for row in 0..scene.rows {
        for head in 0..scene.group {
            let query = &scene.queries[(row * scene.group + head) * d..][..d];
            let visible = tokens.iter().take_while(|token| **token <= scene.start + row).count();
            let logits: Vec<f64> = keys[..visible]
                .iter()
                .map(|key| dot(query, key) * f64::from(scene.scale))
                .collect();
            let best = best_share(&softmax(&logits), p, 0, |place| forced(tokens[place]));
            chosen.extend(best.into_iter().map(|place| tokens[place]));
        }
    }
    chosen
}

#[test]
fn twilight_reads_the_fewest_candidates_that_hold_the_estimated_mass() {
    for scene in decode_scenes() {
        for (p, share, least) in [(0.85, 0.25, 2), (0.5, 0.9, 0), (0.99, 0.0, 3)] {
            let spec = format!("twilight:p={p},candidates={share},least={least},block=16");
            let chosen = twilight_tokens(&scene, f64::from(p as f32), share, least);
            assert_mask(&scene, &scene.select(&spec, scene.rows), |_, _, _, key| {
                chosen.contains(&key)
            });
        }
    }
}
