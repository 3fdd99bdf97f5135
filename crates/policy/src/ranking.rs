//! The best of many scores: ties go to the lower index, so that a choice is the same on every machine.

use std::cmp::Ordering;

/// Indices of the `count` highest scores, ascending; `forced` ones come first and count.
pub(crate) fn top_count(scores: &[f32], count: usize, forced: impl Fn(usize) -> bool) -> Vec<usize> {
    let (mut chosen, mut others): (Vec<usize>, Vec<usize>) = (0..scores.len()).partition(|index| forced(*index));
    let more = count.saturating_sub(chosen.len()).min(others.len());
    if more > 0 && more < others.len() {
        others.select_nth_unstable_by(more - 1, |a, b| better_first(scores, *a, *b));
    }
    chosen.extend_from_slice(&others[..more]);
    chosen.sort_unstable();
    chosen
}

/// Indices of the fewest best scores that hold `share` of the total together with the forced ones, and
/// at least `least` in all, ascending.
pub(crate) fn top_share(scores: &[f32], share: f32, least: usize, forced: impl Fn(usize) -> bool) -> Vec<usize> {
    let (mut chosen, mut others): (Vec<usize>, Vec<usize>) = (0..scores.len()).partition(|index| forced(*index));
    let sum = |indices: &[usize]| -> f64 { indices.iter().map(|index| f64::from(scores[*index])).sum() };
    let mut held = sum(&chosen);
    let wanted = f64::from(share) * (held + sum(&others));
    // Sorting all would cost more than choosing: the best few are enough as a rule.
    let (mut sorted, mut ready) = (0, 64);
    loop {
        ready = ready.min(others.len());
        let rest = &mut others[sorted..];
        if ready - sorted < rest.len() && ready > sorted {
            rest.select_nth_unstable_by(ready - sorted - 1, |a, b| better_first(scores, *a, *b));
        }
        rest[..ready - sorted].sort_unstable_by(|a, b| better_first(scores, *a, *b));
        for index in &others[sorted..ready] {
            if held >= wanted && chosen.len() >= least {
                chosen.sort_unstable();
                return chosen;
            }
            held += f64::from(scores[*index]);
            chosen.push(*index);
        }
        if ready == others.len() {
            chosen.sort_unstable();
            return chosen;
        }
        (sorted, ready) = (ready, ready * 4);
    }
}

fn better_first(scores: &[f32], a: usize, b: usize) -> Ordering {
    scores[b].total_cmp(&scores[a]).then(a.cmp(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_index() {
        let scores = [1.0, 3.0, 2.0, 3.0, 2.0, 2.0];
        assert_eq!(top_count(&scores, 3, |_| false), [1, 2, 3]);
        assert_eq!(top_count(&scores, 3, |index| index == 5), [1, 3, 5]);
        assert_eq!(top_count(&scores, 1, |index| index < 2), [0, 1]);
        assert_eq!(top_count(&scores, 99, |_| false).len(), 6);
        assert_eq!(top_count(&[], 3, |_| true), [0usize; 0]);
    }

    #[test]
    fn many_scores_are_chosen_as_by_sorting_them_all() {
        let scores: Vec<f32> = (0..3000).map(|n| ((n * 7919 + 5) % 613) as f32).collect();
        let total: f32 = scores.iter().sum();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| better_first(&scores, *a, *b));
        for (share, least) in [
            (0.01, 0),
            (0.3, 0),
            (0.9, 0),
            (1.0, 0),
            (0.1, 64),
            (0.0, 65),
            (0.0, 2999),
            (0.2, 5000),
        ] {
            let mut held = 0.0;
            let enough = |n: &usize| {
                let done = held >= share * total && *n >= least;
                held += scores[order[*n]];
                done
            };
            let count = (0..scores.len()).find(enough).unwrap_or(scores.len());
            let mut expected = order[..count].to_vec();
            expected.sort_unstable();
            assert_eq!(top_share(&scores, share, least, |_| false), expected, "{share} {least}");
        }
    }

    #[test]
    fn a_share_is_reached_with_the_fewest() {
        let scores = [0.125, 0.5, 0.125, 0.25];
        assert_eq!(top_share(&scores, 0.5, 0, |_| false), [1]);
        assert_eq!(top_share(&scores, 0.51, 0, |_| false), [1, 3]);
        assert_eq!(top_share(&scores, 0.8, 0, |_| false), [0, 1, 3]);
        assert_eq!(top_share(&scores, 0.6, 0, |index| index == 2), [1, 2]);
        assert_eq!(top_share(&scores, 0.5, 3, |_| false), [0, 1, 3]);
        assert_eq!(top_share(&scores, 1.0, 0, |_| false).len(), 4);
    }
}
