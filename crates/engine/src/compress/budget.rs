//! Chooses the KV pairs to keep by their scores.

use crate::compress::{CompressOptions, HeadScores, Spread};

/// Gives the first and the latest tokens of every head an infinite score, so that they are kept. A head whose first
/// tokens are compressed already has its sinks among those.
pub(super) fn protect(heads: &mut [HeadScores], options: &CompressOptions) {
    for head in heads {
        let held = head.scores.len();
        let (sinks, recent) = (
            if head.before > 0 {
                0
            } else {
                options.sink_tokens.min(held)
            },
            held.saturating_sub(options.recent_tokens),
        );
        head.scores[..sinks].fill(f32::INFINITY);
        head.scores[recent..].fill(f32::INFINITY);
    }
}

/// The kept scores of each head, ascending. Of equal scores, the earlier layer, head and slot wins.
pub(super) fn kept(heads: &[HeadScores], options: &CompressOptions) -> Vec<Vec<usize>> {
    let groups = heads.chunk_by(|a, b| match options.spread {
        Spread::Model => true,
        Spread::Layer => a.layer == b.layer,
        Spread::Head => false,
    });
    groups.flat_map(|group| kept_in(group, options.keep)).collect()
}

/// The best share of the pairs of some heads, including every pair that must stay.
fn kept_in(heads: &[HeadScores], keep: f64) -> Vec<Vec<usize>> {
    let mut all: Vec<f32> = heads.iter().flat_map(|head| &head.scores).copied().collect();
    let count = (keep * all.len() as f64).ceil() as usize;
    let protected = all.iter().filter(|score| **score == f32::INFINITY).count();
    let count = count.max(protected).min(all.len());
    let Some(last) = count.checked_sub(1) else {
        return vec![Vec::new(); heads.len()];
    };
    let (better, threshold, _) = all.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
    let threshold = *threshold;
    let better = better
        .iter()
        .filter(|score| score.total_cmp(&threshold).is_gt())
        .count();
    let mut ties = count - better;
    let kept = heads.iter().map(|head| {
        let places = head.scores.iter().enumerate().filter(|(_, score)| {
            let order = score.total_cmp(&threshold);
            let is_tie = order.is_eq() && ties > 0;
            ties -= usize::from(is_tie);
            order.is_gt() || is_tie
        });
        places.map(|(place, _)| place).collect()
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::CompressMethod;

    fn heads(scores: &[(usize, &[f32])]) -> Vec<HeadScores> {
        let heads = scores.iter().enumerate().map(|(kv_head, (layer, scores))| HeadScores {
            layer: *layer,
            kv_head,
            before: 0,
            scores: scores.to_vec(),
        });
        heads.collect()
    }

    fn options(keep: f64, spread: Spread) -> CompressOptions {
        CompressOptions {
            spread,
            sink_tokens: 1,
            recent_tokens: 1,
            ..CompressOptions::new(CompressMethod::KVZIP, keep)
        }
    }

    #[test]
    fn the_best_pairs_are_kept_of_all_heads_of_a_layer_or_of_one() {
        let scores = heads(&[
            (0, &[0.1, 0.9, 0.8, 0.2]),
            (0, &[0.3, 0.0, 0.4, 0.0]),
            (1, &[0.5, 0.6, 0.05, 0.7]),
        ]);
        let kept = |keep, spread| kept(&scores, &options(keep, spread));
        assert_eq!(kept(0.5, Spread::Model), [vec![1, 2], vec![2], vec![0, 1, 3]]);
        assert_eq!(kept(0.5, Spread::Layer), [vec![1, 2], vec![0, 2], vec![1, 3]]);
        assert_eq!(kept(0.5, Spread::Head), [vec![1, 2], vec![0, 2], vec![1, 3]]);
        assert_eq!(kept(1.0, Spread::Model).concat().len(), 12);
    }

    #[test]
    fn of_equal_scores_the_earlier_pair_is_kept_and_a_share_is_rounded_up() {
        let scores = heads(&[(0, &[0.5, 0.5, 0.5]), (1, &[0.5, 0.7, 0.5])]);
        assert_eq!(kept(&scores, &options(0.5, Spread::Model)), [vec![0, 1], vec![1]]);
        assert_eq!(kept(&scores, &options(0.34, Spread::Head)), [vec![0, 1], vec![0, 1]]);
    }

    #[test]
    fn first_and_latest_tokens_stay_whatever_the_share() {
        let mut scores = heads(&[(0, &[0.0, 0.9, 0.8, 0.0]), (0, &[0.0])]);
        let options = options(0.01, Spread::Model);
        protect(&mut scores, &options);
        assert_eq!(kept(&scores, &options), [vec![0, 3], vec![0]]);
    }
}
