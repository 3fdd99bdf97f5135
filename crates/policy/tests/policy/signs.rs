//! The policy that estimates logits from signs of keys, against its definition in f64.

use std::collections::BTreeSet;

use crate::testing::{Scene, assert_mask, decode_scenes, dot, make, scenes};
use riffle_attention::{Selection, f16_to_f32, f32_to_f16, rotate_heads};
use riffle_policy::{Phase, SelectContext, SignKeys};

/// Tokens whose keys have a common mean.
const SEGMENT: usize = 64;

/// Tokens of whose estimates the largest counts.
const UNIT: usize = 16;

fn half(value: f64) -> f64 {
    f64::from(f16_to_f32(f32_to_f16(value as f32)))
}

/// Elements rounded to integers from −7 to 7, times their unit.
fn in_few_bits(vector: &[f32]) -> Vec<f32> {
    let largest = vector.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let (inverse, unit) = (7.0 / largest, largest / 7.0);
    vector
        .iter()
        .map(|value| (value * inverse).round_ties_even() * unit)
        .collect()
}

/// Estimated logits of a row and head with the keys in the segments before the row's own.
fn estimates(scene: &Scene, row: usize, head: usize) -> Vec<f64> {
    let d = scene.head_dim;
    let mut query = scene.queries[(row * scene.group + head) * d..][..d].to_vec();
    query.iter_mut().for_each(|value| *value *= scene.scale);
    rotate_heads(&mut query, d);
    let rounded = in_few_bits(&query);
    let mut keys = scene.keys[..(scene.start + row) / SEGMENT * SEGMENT * d].to_vec();
    rotate_heads(&mut keys, d);
    let mut estimates = Vec::new();
    for segment in keys.chunks(SEGMENT * d) {
        let sum = |n: usize| -> f64 { segment.iter().skip(n).step_by(d).map(|key| f64::from(*key)).sum() };
        let mean: Vec<f32> = (0..d).map(|n| half(sum(n) / SEGMENT as f64) as f32).collect();
        for key in segment.chunks(d) {
            let rest: Vec<f32> = key.iter().zip(&mean).map(|(key, mean)| key - mean).collect();
            let magnitude: f64 = rest.iter().map(|value| f64::from(value.abs())).sum();
            let signs: Vec<f32> = rest
                .iter()
                .map(|value| if *value >= 0.0 { 1.0 } else { -1.0 })
                .collect();
            estimates.push(dot(&rounded, &signs) * half(magnitude / d as f64) + dot(&query, &mean));
        }
    }
    estimates
}

/// The keys at which a row and head have a peak: those in earlier segments, by their estimates.
fn peaks(scene: &Scene, row: usize, head: usize, peak: f64) -> Vec<usize> {
    let (estimates, exact) = (estimates(scene, row, head), scene.logits(row, head));
    // A prompt does not count the keys near its queries.
    let own = match scene.phase {
        Phase::Prefill => &[],
        Phase::Decode => &exact[estimates.len()..=scene.start + row],
    };
    let units = estimates.chunks(UNIT).chain(own.chunks(UNIT));
    let largest: Vec<f64> = units
        .map(|logits| logits.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        .collect();
    let mean = largest.iter().map(|logit| logit.exp()).sum::<f64>() / largest.len() as f64;
    let peaks = estimates.iter().map(|logit| logit.exp()).enumerate();
    peaks
        .filter(|(_, weight)| *weight >= peak * mean)
        .map(|(key, _)| key)
        .collect()
}

/// True if the query at `position` reads the key for any estimate: the first block, two recent ones and its segment.
fn is_always_read(position: usize, key: usize, block: usize) -> bool {
    let recent = (position / block).saturating_sub(1) * block;
    key < block || key >= recent.min(position / block * block / SEGMENT * SEGMENT)
}

#[test]
fn a_prompt_reads_every_block_that_holds_an_estimated_peak_of_some_query() {
    for (scene, tile) in &scenes().collect::<Vec<_>>() {
        for (block, peak) in [(16, 0.15), (32, 0.12), (64, 0.2)] {
            let spec = format!("signs:block={block},peak={peak},tail=0");
            // In a prompt a peak is eight times as high.
            let peaks = |row: usize| (0..scene.group).flat_map(move |head| peaks(scene, row, head, 8.0 * peak));
            let chosen: Vec<Vec<usize>> = (0..scene.rows)
                .map(|row| peaks(row).map(|key| key / block).collect())
                .collect();
            assert_mask(scene, &scene.select(&spec, *tile), |from, to, _, key| {
                // The queries of a tile share the choice of all query blocks that overlap the tile.
                let same = |row: &usize| {
                    let number = (scene.start + row) / block;
                    ((scene.start + from) / block..(scene.start + to).div_ceil(block)).contains(&number)
                };
                (0..scene.rows)
                    .filter(same)
                    .any(|row| chosen[row].contains(&(key / block)) || is_always_read(scene.start + row, key, block))
            });
        }
    }
}

#[test]
fn generated_tokens_read_the_keys_at_estimated_peaks_of_their_heads() {
    // Generated tokens are few at a time.
    for scene in decode_scenes().filter(|scene| scene.rows <= SEGMENT) {
        for (block, peak) in [(1, 0.5), (4, 1.5), (16, 1.0), (64, 2.0)] {
            let spec = format!("signs:block={block},peak={peak}");
            let rows_and_heads = (0..scene.rows).flat_map(|row| (0..scene.group).map(move |head| (row, head)));
            let chosen: BTreeSet<usize> = rows_and_heads
                .flat_map(|(row, head)| peaks(&scene, row, head, peak))
                .map(|key| key / block)
                .collect();
            assert_mask(&scene, &scene.select(&spec, scene.rows), |_, _, _, key| {
                chosen.contains(&(key / block)) || is_always_read(scene.start, key, block.max(UNIT))
            });
        }
    }
}

#[test]
fn the_same_peaks_are_read_after_a_longer_text() {
    // Keys like the query at a few places, and the others of one kind.
    let read = |tokens: usize| {
        let mut scene = Scene::new(5, tokens, 1, 1, 64);
        scene.phase = Phase::Decode;
        let d = scene.head_dim;
        for (token, key) in scene.keys.chunks_exact_mut(d).enumerate() {
            let (size, query) = (if token % 200 == 70 { 0.8 } else { 0.1 }, &scene.queries[..d]);
            key.iter_mut()
                .zip(query)
                .for_each(|(key, query)| *key = 0.1 * *key + size * query);
        }
        let scene = scene.paged(64);
        let selection = &scene.select("signs", 1)[0].2;
        let peaks = (70..tokens).step_by(200);
        peaks.filter(|key| selection.contains(tokens, *key)).count()
    };
    assert_eq!([read(1000), read(4000), read(16_000)], [5, 20, 80]);
}

#[test]
fn the_end_of_a_prompt_and_the_first_layers_are_dense() {
    let mut scene = Scene::new(3, 200, 64, 1, 64);
    scene.after = 10;
    let full = Selection::full(scene.tokens);
    let tiles = scene.select("signs:peak=1000,tail=20", 16);
    assert_eq!(tiles[3].2, full);
    assert_ne!(tiles[2].2, full);
    // The same queries for generated tokens.
    (scene.phase, scene.after) = (Phase::Decode, 0);
    assert_ne!(scene.select("signs:peak=1000,tail=20", 64)[0].2, full);
    assert_eq!(scene.select("signs:peak=1000,dense_layers=3", 64)[0].2, full);
}

#[test]
fn an_index_grows_page_by_page_and_follows_a_rollback() {
    let spec = "signs:peak=1";
    let mut whole = Scene::new(9, 340, 1, 2, 64);
    whole.phase = Phase::Decode;
    let expected = whole.select(spec, 1)[0].2.clone();
    // Other keys from token 201 on, which are rolled back.
    let mut other = Scene::new(9, 340, 1, 2, 64);
    for key in &mut other.keys[201 * 32..] {
        *key *= -9.0;
    }
    for page_tokens in [16, 48, 64, 128, 512] {
        whole = whole.paged(page_tokens);
        other = other.paged(page_tokens);
        let (pages, other_pages) = (whole.pages(), other.pages());
        let mut keys = SignKeys::default();
        for page in &other_pages {
            keys.extend(&[*page], 32, page.start + page.tokens);
        }
        keys.truncate(201);
        let mut restored = SignKeys::from_bytes(&keys.to_bytes(), 32).unwrap();
        assert_eq!((keys.tokens(), restored.tokens()), (192, 192));
        // Pages before the first missing key may be missing.
        let near = pages.iter().filter(|page| page.start + page.tokens > 192);
        let near: Vec<_> = near.copied().collect();
        for keys in [&mut keys, &mut restored] {
            keys.extend(&near, 32, whole.tokens);
            let context = SelectContext {
                signs: Some(keys),
                ..whole.context(&[])
            };
            let mut policy = make(spec, Phase::Decode);
            assert_eq!(policy.keys_from(&context), whole.tokens);
            // With `prepare` or without, the answer is the same.
            assert_eq!(policy.select(&whole.tile(0, 1), &context), expected);
            policy.prepare(&whole.tile(0, 1), &context);
            assert_eq!(policy.select(&whole.tile(0, 1), &context), expected);
        }
    }
    assert!(SignKeys::from_bytes(&[1, 2, 3], 32).is_none());
}

#[test]
fn a_rollback_of_a_few_tokens_keeps_the_latest_keys() {
    let scene = Scene::new(21, 330, 1, 1, 64);
    let pages = scene.pages();
    let own = |keys: &SignKeys, position: usize| {
        let first = position / SEGMENT * SEGMENT * 32;
        keys.own_segment(position) == Some(&scene.keys[first..(position + 1) * 32])
    };
    let mut keys = SignKeys::default();
    keys.extend(&pages, 32, 325);
    assert!((256..325).all(|position| own(&keys, position)));
    assert_eq!(keys.own_segment(255), None);
    // From an incomplete segment back into the whole one before it, without reading a page.
    keys.truncate(300);
    assert_eq!(keys.tokens(), 300);
    assert!(own(&keys, 299) && keys.own_segment(300).is_none());
    keys.extend(&pages, 32, 331);
    let mut once = SignKeys::default();
    once.extend(&pages, 32, 331);
    assert_eq!(keys.to_bytes(), once.to_bytes());
    assert!((320..331).all(|position| own(&keys, position)));
    // Farther back the keys are read again.
    keys.truncate(200);
    assert_eq!(keys.tokens(), 192);
    assert_eq!(keys.own_segment(191), None);
    keys.extend(&pages, 32, 331);
    assert_eq!(keys.to_bytes(), once.to_bytes());
}

#[test]
fn a_prompt_in_pieces_gives_the_selections_of_the_whole_and_clones_go_their_own_way() {
    let whole = Scene::new(12, 330, 40, 2, 64);
    let pages = whole.pages();
    let expected = whole.select("signs:peak=0.2,tail=0", 8);
    let (mut keys, mut other) = (SignKeys::default(), SignKeys::default());
    for tokens in [1, 63, 64, 100, 129, 300, 331, whole.tokens] {
        keys.extend(&pages, 32, tokens);
        if tokens == 129 {
            other = keys.clone();
        }
    }
    other.truncate(70);
    other.extend(&pages, 32, whole.tokens);
    for keys in [&keys, &other] {
        let context = SelectContext {
            signs: Some(keys),
            ..whole.context(&pages)
        };
        let mut policy = make("signs:peak=0.2,tail=0", Phase::Prefill);
        policy.prepare(&whole.tile(0, 40), &context);
        for (from, to, selection) in &expected {
            assert_eq!(policy.select(&whole.tile(*from, *to), &context), *selection);
        }
    }
}
