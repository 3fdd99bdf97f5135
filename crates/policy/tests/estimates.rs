//! Policies that look at keys, against their definitions in f64, on chunks that begin at odd places.

mod testing;

use riffle_attention::{Selection, Span};
use riffle_policy::Phase;
use testing::{Scene, best, best_share, dot, make, softmax};

/// (start, rows, group, page, tile rows)
const CHUNKS: [(usize, usize, usize, usize, usize); 6] = [
    (0, 90, 1, 64, 32),
    (0, 7, 2, 16, 7),
    (150, 40, 2, 48, 16),
    (301, 75, 4, 64, 33),
    (256, 64, 1, 256, 64),
    (333, 1, 8, 32, 1),
];

fn scenes() -> impl Iterator<Item = (Scene, usize)> {
    let chunks = CHUNKS.iter().enumerate();
    chunks
        .map(|(seed, (start, rows, group, page, tile))| (Scene::new(seed as u64, *start, *rows, *group, *page), *tile))
}

/// Checks each (query, key) of the chunk: read exactly when causal and `read(first row, end row, row, key)`.
fn assert_mask(scene: &Scene, tiles: &[(usize, usize, Selection)], read: impl Fn(usize, usize, usize, usize) -> bool) {
    for (from, to, selection) in tiles {
        for row in *from..*to {
            let query = scene.start + row;
            for key in 0..scene.tokens {
                let expected = key <= query && read(*from, *to, row, key);
                assert_eq!(
                    selection.contains(query, key),
                    expected,
                    "query {query}, key {key}, tile {from}..{to}"
                );
            }
        }
    }
}

/// Mass by key and by distance of the last `last` rows, summed over the group.
fn line_mass(scene: &Scene, last: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut columns, mut distances) = (vec![0.0; scene.tokens], vec![0.0; scene.tokens]);
    for row in scene.rows.saturating_sub(last)..scene.rows {
        for head in 0..scene.group {
            for (key, weight) in scene.attention(row, head).iter().enumerate() {
                columns[key] += weight;
                distances[scene.start + row - key] += weight;
            }
        }
    }
    (columns, distances)
}

#[test]
fn vertical_slash_reads_the_heaviest_columns_and_diagonals() {
    for (scene, tile) in scenes() {
        for (spec, budget, last, width) in [
            (
                "vertical-slash:budget=0.4,sinks=3,recent=5,last=16,slash_block=1",
                Some(0.4),
                16,
                1,
            ),
            (
                "vertical-slash:budget=0,vertical=9,slash=12,sinks=3,recent=5,slash_block=1",
                None,
                64,
                1,
            ),
            (
                "vertical-slash:budget=0.4,sinks=3,recent=5,last=16,slash_block=8",
                Some(0.4),
                16,
                8,
            ),
            (
                "vertical-slash:budget=0,vertical=9,slash=40,sinks=3,recent=5,slash_block=16",
                None,
                64,
                16,
            ),
        ] {
            let (vertical, slash) = match budget {
                Some(share) => {
                    let budget = (f64::from(share as f32) * scene.tokens as f64) as usize;
                    (budget / 5, budget - budget / 5)
                }
                None => (9, if width == 1 { 12 } else { 40 }),
            };
            let (columns, distances) = line_mass(&scene, last);
            let columns = best(&columns, vertical, |column| column < 3);
            let blocks: Vec<f64> = distances.chunks(width).map(|block| block.iter().sum()).collect();
            let blocks = best(&blocks, slash / width, |block| block * width < 5);
            let distances: Vec<usize> = (0..distances.len())
                .filter(|distance| blocks.contains(&(distance / width)))
                .collect();
            assert_mask(&scene, &scene.select(spec, tile), |from, to, row, key| {
                let wide = |distance: &usize| {
                    *distance >= 5 && scene.start + from <= key + distance && key + distance < scene.start + to
                };
                columns.contains(&key) || scene.start + row - key < 5 || distances.iter().any(wide)
            });
        }
    }
}

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

/// FlexPrefill's pattern by its definition: the blocks of each query block, or columns and distances.
enum FlexPattern {
    Blocks(Vec<Vec<usize>>),
    Lines(Vec<usize>, Vec<usize>),
}

fn flex_pattern(scene: &Scene, block: usize, gamma: f64, tau: f64, least: usize) -> FlexPattern {
    let d = scene.head_dim;
    let mean = |rows: &mut dyn Iterator<Item = &[f32]>| -> Vec<f64> {
        let (mut sums, mut count) = (vec![0.0; d], 0.0);
        for row in rows {
            count += 1.0;
            sums.iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += f64::from(*value));
        }
        sums.into_iter().map(|sum| sum / count).collect()
    };
    let means: Vec<Vec<f64>> = scene
        .keys
        .chunks(block * d)
        .map(|keys| mean(&mut keys.chunks(d)))
        .collect();
    let predict = |rows: std::ops::Range<usize>, head: usize, blocks: usize| -> Vec<f64> {
        let mut queries = rows.map(|row| &scene.queries[(row * scene.group + head) * d..][..d]);
        let query = mean(&mut queries);
        let dots = means[..blocks]
            .iter()
            .map(|key| key.iter().zip(&query).map(|(k, q)| k * q).sum::<f64>());
        softmax(&dots.map(|dot| dot * f64::from(scene.scale)).collect::<Vec<_>>())
    };
    let rows = block.min(scene.rows);
    let (columns, distances) = line_mass(scene, rows);
    let seen: Vec<f64> = columns.chunks(block).map(|block| block.iter().sum::<f64>()).collect();
    let total: f64 = seen.iter().sum();
    let mut predicted = vec![0.0; means.len()];
    for head in 0..scene.group {
        let part = predict(scene.rows - rows..scene.rows, head, means.len());
        predicted
            .iter_mut()
            .zip(part)
            .for_each(|(sum, x)| *sum += x / scene.group as f64);
    }
    let divergence: f64 = seen
        .iter()
        .zip(&predicted)
        .map(|(a, b)| {
            let (a, m) = (a / total, (a / total + b) / 2.0);
            (a * (a / m).ln() + b * (b / m).ln()) / 2.0
        })
        .sum();
    if divergence.sqrt() >= tau {
        return FlexPattern::Lines(
            best_share(&columns, gamma, least, |column| column < block),
            best_share(&distances, gamma, least, |distance| distance < block),
        );
    }
    let end = scene.start + scene.rows;
    let numbers = scene.start / block..end.div_ceil(block);
    let rows = numbers.map(|number| {
        let from = (number * block).max(scene.start) - scene.start;
        let to = ((number + 1) * block).min(end) - scene.start;
        let mut scores = vec![0.0; number + 1];
        for head in 0..scene.group {
            let part = predict(from..to, head, number + 1);
            scores.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        }
        best_share(&scores, gamma, least.div_ceil(block), |key| key == 0 || key == number)
    });
    FlexPattern::Blocks(rows.collect())
}

#[test]
fn flex_takes_blocks_where_means_predict_and_lines_elsewhere() {
    let (mut as_blocks, mut as_lines) = (0, 0);
    for (scene, tile) in scenes() {
        for (gamma, tau, least) in [(0.7, 0.0, 0), (0.6, 0.1, 20), (0.5, 1.0, 40)] {
            let block = 16;
            let spec = format!("flex:gamma={gamma},tau={tau},min_budget={least},block={block}");
            let first = scene.start / block;
            let pattern = flex_pattern(&scene, block, gamma, tau, least);
            match &pattern {
                FlexPattern::Blocks(_) => as_blocks += 1,
                FlexPattern::Lines(..) => as_lines += 1,
            }
            assert_mask(
                &scene,
                &scene.select(&spec, tile),
                |from, to, row, key| match &pattern {
                    FlexPattern::Blocks(chosen) => {
                        let blocks = (scene.start + from) / block..(scene.start + to).div_ceil(block);
                        blocks
                            .into_iter()
                            .any(|number| chosen[number - first].contains(&(key / block)))
                    }
                    FlexPattern::Lines(columns, distances) => {
                        let wide = |distance: &usize| {
                            *distance >= block
                                && scene.start + from <= key + distance
                                && key + distance < scene.start + to
                        };
                        columns.contains(&key) || scene.start + row - key < block || distances.iter().any(wide)
                    }
                },
            );
        }
    }
    assert!(as_blocks > 0 && as_lines > 0);
}

#[test]
fn flex_keeps_the_mass_it_promises_for_the_queries_it_looked_at() {
    for (scene, tile) in scenes() {
        for gamma in [0.8, 0.95] {
            let tiles = scene.select(&format!("flex:gamma={gamma},tau=0,min_budget=0,block=32"), tile);
            let (mut kept, mut all) = (0.0, 0.0);
            for (from, to, selection) in &tiles {
                for row in (*from..*to).filter(|row| row + 32 >= scene.rows) {
                    for head in 0..scene.group {
                        let weights = scene.attention(row, head);
                        let read = weights
                            .iter()
                            .enumerate()
                            .filter(|(key, _)| selection.contains(scene.start + row, *key));
                        kept += read.map(|(_, weight)| weight).sum::<f64>();
                        all += 1.0;
                    }
                }
            }
            assert!(kept >= (gamma - 1e-5) * all, "{kept} of {all} at gamma {gamma}");
        }
    }
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

fn decode_scenes() -> impl Iterator<Item = Scene> {
    scenes().map(|(mut scene, _)| {
        scene.phase = Phase::Decode;
        scene.after = 0;
        scene
    })
}

#[test]
fn quest_reads_the_blocks_of_highest_bound_and_the_first_and_latest() {
    for scene in decode_scenes() {
        for (block, topk, sinks, recent) in [(16, 3, 1, 2), (32, 2, 0, 1), (16, 0, 2, 1)] {
            let spec = format!("quest:block={block},topk={topk},threshold=0,sinks={sinks},recent={recent}");
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
fn quest_is_dense_in_first_layers_and_short_sequences() {
    for mut scene in decode_scenes() {
        let full = Selection::full(scene.tokens);
        let blocks = scene.tokens.div_ceil(16);
        let spec = format!("quest:block=16,topk=0,sinks=0,recent=1,threshold={blocks}");
        assert_eq!(scene.select(&spec, scene.rows)[0].2, full);
        scene.layer = 1;
        assert_eq!(
            scene.select("quest:block=16,topk=0,sinks=0,recent=1,threshold=0", scene.rows)[0].2,
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

#[test]
fn certified_reads_the_fewest_tokens_that_hold_the_mass_and_says_what_it_drops() {
    for scene in decode_scenes() {
        for epsilon in [0.3, 0.05, 0.001] {
            let mut policy = make(&format!("certified:epsilon={epsilon}"), Phase::Decode);
            let (pages, tile) = (scene.pages(), scene.tile(0, scene.rows));
            let context = scene.context(&pages);
            assert_eq!(policy.dropped_mass(), None);
            policy.prepare(&tile, &context);
            let selection = policy.select(&tile, &context);
            let mut expected: Vec<usize> = Vec::new();
            let mut dropped = 0.0f64;
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
                    dropped = dropped.max(left);
                }
            }
            assert_mask(&scene, &[(0, scene.rows, selection)], |_, _, _, key| {
                expected.contains(&key)
            });
            let said = f64::from(policy.dropped_mass().unwrap());
            assert!((said - dropped).abs() < 1e-6, "said {said}, dropped {dropped}");
        }
    }
}

/// Twilight's choice by its definition: the tokens of the best blocks, scored with keys in four bits.
fn twilight_tokens(scene: &Scene, p: f64, share: f32, least: usize) -> Vec<usize> {
    let (block, d) = (16, scene.head_dim);
    let blocks = scene.tokens.div_ceil(block);
    let more = ((f64::from(share) * blocks as f64) as usize).max(least);
    let candidates = quest_blocks(scene, block, more, 1, 2);
    let forced = |token: usize| token / block < 1 || token / block + 2 > scene.start / block;
    let key = |token: usize| -> Vec<f32> {
        let key = &scene.keys[token * d..][..d];
        if token / 16 * 16 + 16 > scene.tokens {
            return key.to_vec();
        }
        let rounded = key.chunks(16).flat_map(|channels| {
            let scale = channels.iter().fold(0.0f32, |top, value| top.max(value.abs())) / 7.0;
            channels.iter().map(move |value| (value / scale).round() * scale)
        });
        rounded.collect()
    };
    let tokens: Vec<usize> = (0..scene.tokens)
        .filter(|token| candidates.contains(&(token / block)))
        .collect();
    let keys: Vec<Vec<f32>> = tokens.iter().map(|token| key(*token)).collect();
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

/// BLASST's blocks of one query block by its definition, and the mass of each query that they leave out, at most.
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
fn blasst_skips_blocks_far_below_the_best_before_them_and_says_what_it_drops() {
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
                let mut policy = make(&spec, phase);
                let pages = scene.pages();
                policy.prepare(&scene.tile(0, scene.rows), &scene.context(&pages));
                let dropped = by_block.iter().fold(0.0f64, |most, (_, dropped)| most.max(*dropped));
                let said = f64::from(policy.dropped_mass().unwrap());
                assert!((said - dropped).abs() < 1e-6, "said {said}, dropped {dropped}");
                assert!(dropped <= f64::from(factor), "at most factor / L a key");
            }
        }
    }
}

/// Every policy that looks at keys, in its phase.
const SPECS: [(&str, Phase); 9] = [
    ("blasst:factor=20,block=16", Phase::Prefill),
    ("blasst:factor=20,block=16", Phase::Decode),
    ("twilight:block=16,least=3,candidates=0.2", Phase::Decode),
    ("certified:epsilon=0.2", Phase::Decode),
    ("vertical-slash:budget=0.3,sinks=3,recent=5", Phase::Prefill),
    ("flex:block=16,min_budget=20,gamma=0.7,tau=0", Phase::Prefill),
    ("flex:block=16,min_budget=20,gamma=0.7,tau=1", Phase::Prefill),
    ("xattention:stride=8,block=16,threshold=0.7,tail=0", Phase::Prefill),
    ("quest:block=16,topk=3,threshold=0", Phase::Decode),
];

#[test]
fn selections_do_not_depend_on_the_page_size() {
    for (spec, phase) in SPECS {
        for (mut scene, tile) in scenes() {
            scene.phase = phase;
            let selected: Vec<_> = scene.select(spec, tile);
            for page_tokens in [16, 80, 512] {
                scene = scene.paged(page_tokens);
                assert_eq!(scene.select(spec, tile), selected, "{spec}");
            }
        }
    }
}

#[test]
fn selections_name_only_tokens_that_are_there_and_all_but_pure_thresholds_read_the_query_itself() {
    for (spec, phase) in SPECS {
        for (mut scene, tile) in scenes() {
            scene.phase = phase;
            let tiles = scene.select(spec, tile);
            for (_, _, selection) in &tiles {
                assert!(
                    selection
                        .spans()
                        .iter()
                        .all(|span| *span == span.intersect(&Span::new(0, scene.tokens)))
                );
            }
            let (from, to, selection) = tiles.last().unwrap();
            for row in (*from..*to).filter(|_| !spec.starts_with("certified") && !spec.starts_with("blasst")) {
                assert!(
                    selection.contains(scene.start + row, scene.start + row),
                    "{spec}: a query reads itself"
                );
            }
        }
    }
}

#[test]
fn an_empty_tile_or_cache_is_no_fault() {
    for (spec, phase) in SPECS {
        let mut scene = Scene::new(1, 0, 1, 1, 16);
        scene.phase = phase;
        (scene.rows, scene.tokens) = (0, 0);
        scene.queries.clear();
        scene.keys.clear();
        let scene = scene.paged(16);
        let mut policy = make(spec, phase);
        policy.prepare(&scene.tile(0, 0), &scene.context(&[]));
        assert_eq!(policy.select(&scene.tile(0, 0), &scene.context(&[])).spans(), []);
    }
}
