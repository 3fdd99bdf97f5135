//! Policies that choose columns and diagonals, against their definitions in f64, on chunks with odd starts.

use crate::testing::{Scene, assert_mask, best, best_share, scenes, softmax};

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

/// FlexPrefill's pattern by its definition: the blocks of each query block, or columns and distances.
enum FlexPattern {
    Blocks(Vec<Vec<usize>>),
    Lines(Vec<usize>, Vec<usize>),
}

/// The mean of rows of `width` elements.
fn mean<'a>(rows: impl Iterator<Item = &'a [f32]>, width: usize) -> Vec<f64> {
    let (mut sums, mut count) = (vec![0.0; width], 0.0);
    for row in rows {
        count += 1.0;
        sums.iter_mut()
            .zip(row)
            .for_each(|(sum, value)| *sum += f64::from(*value));
    }
    sums.into_iter().map(|sum| sum / count).collect()
}

/// Predicts a chunk's attention from the mean queries and the mean keys of blocks.
struct Prediction<'a> {
    scene: &'a Scene,
    mean_keys: Vec<Vec<f64>>,
}

impl<'a> Prediction<'a> {
    fn new(scene: &'a Scene, block: usize) -> Self {
        let blocks = scene.keys.chunks(block * scene.head_dim);
        let mean_keys = blocks.map(|keys| mean(keys.chunks(scene.head_dim), scene.head_dim));
        Self {
            scene,
            mean_keys: mean_keys.collect(),
        }
    }

    /// The softmax over the first `blocks` blocks for the mean query of some rows.
    fn of_head(&self, rows: std::ops::Range<usize>, head: usize, blocks: usize) -> Vec<f64> {
        let (scene, d) = (self.scene, self.scene.head_dim);
        let queries = rows.map(|row| &scene.queries[(row * scene.group + head) * d..][..d]);
        let query = mean(queries, d);
        let dots = self.mean_keys[..blocks]
            .iter()
            .map(|key| key.iter().zip(&query).map(|(k, q)| k * q).sum::<f64>());
        softmax(&dots.map(|dot| dot * f64::from(scene.scale)).collect::<Vec<_>>())
    }

    /// [`of_head`](Self::of_head), summed over the heads of the group.
    fn of_group(&self, rows: std::ops::Range<usize>, blocks: usize) -> Vec<f64> {
        let mut sums = vec![0.0; blocks];
        for head in 0..self.scene.group {
            let part = self.of_head(rows.clone(), head, blocks);
            sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        }
        sums
    }
}

fn flex_pattern(scene: &Scene, block: usize, gamma: f64, tau: f64, least: usize) -> FlexPattern {
    let prediction = Prediction::new(scene, block);
    let rows = block.min(scene.rows);
    let (columns, distances) = line_mass(scene, rows);
    let seen: Vec<f64> = columns.chunks(block).map(|block| block.iter().sum::<f64>()).collect();
    let total: f64 = seen.iter().sum();
    let predicted = prediction.of_group(scene.rows - rows..scene.rows, prediction.mean_keys.len());
    let divergence: f64 = seen
        .iter()
        .zip(&predicted)
        .map(|(a, b)| {
            let (a, b) = (a / total, b / scene.group as f64);
            let m = (a + b) / 2.0;
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
        let scores = prediction.of_group(from..to, number + 1);
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
            let spec = format!("flex:gamma={gamma},tau={tau},min_budget={least},block={block},last={block}");
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
            let tiles = scene.select(&format!("flex:gamma={gamma},tau=0,min_budget=0,block=32,last=32"), tile);
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
