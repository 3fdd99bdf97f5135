//! Finds the best of many scores. Ties go to the lower index, so the choice is the same on every machine.

/// Indices of the `count` highest scores, ascending; `forced` indices come first and count.
pub fn top_count(scores: &[f32], count: usize, forced: impl Fn(usize) -> bool) -> Vec<usize> {
    let (mut chosen, mut others) = parted(scores, forced);
    let more = count.saturating_sub(chosen.len()).min(others.len());
    if more > 0 && more < others.len() {
        others.select_nth_unstable(more - 1);
    }
    chosen.extend(others[..more].iter().map(|entry| index_of(*entry)));
    chosen.sort_unstable();
    chosen
}

/// Indices of the fewest best scores that reach `share` of the total together with the forced ones. There are at least
/// `least` in all, in ascending order.
pub fn top_share(scores: &[f32], share: f32, least: usize, forced: impl Fn(usize) -> bool) -> Vec<usize> {
    /// Entries few enough to be sorted.
    const FEW: usize = 64;
    let (mut chosen, mut others) = parted(scores, forced);
    let sum = |entries: &[u64]| -> f64 { entries.iter().map(|entry| f64::from(scores[index_of(*entry)])).sum() };
    let mut held: f64 = chosen.iter().map(|index| f64::from(scores[*index])).sum();
    let wanted = f64::from(share) * (held + sum(&others));
    let least = least.saturating_sub(chosen.len()).min(others.len());
    // The last chosen weight is in `first..end`. All weights before `first` are chosen, and `held` is their sum.
    let (mut first, mut end) = (0, others.len());
    while end - first > FEW {
        let middle = first + (end - first) / 2;
        others[first..end].select_nth_unstable(middle - first);
        let better = sum(&others[first..middle]);
        if middle >= least && held + better >= wanted {
            end = middle;
        } else {
            held += better;
            first = middle;
        }
    }
    others[first..end].sort_unstable();
    while first < others.len() && (held < wanted || first < least) {
        if first == end {
            // Reached only by rounding: in another order the sum was large enough.
            end = others.len();
            others[first..].sort_unstable();
        }
        held += f64::from(scores[index_of(others[first])]);
        first += 1;
    }
    chosen.extend(others[..first].iter().map(|entry| index_of(*entry)));
    chosen.sort_unstable();
    chosen
}

/// The largest threshold for which the weights below it sum to at most `allowed`. Weights must not be negative.
pub(crate) fn cut(weights: &[f32], allowed: f64) -> f32 {
    cut_of(|| weights.iter(), allowed)
}

/// As [`cut`], from a sample of long rows. The threshold is usually slightly too low. A sample that misses the few
/// large weights gives too high a threshold; the caller must check this.
pub(crate) fn cut_sampled(weights: &[f32], allowed: f64) -> f32 {
    /// Number of weights up to which no sample is used.
    const SAMPLE: usize = 4096;
    /// Neighbours sampled together.
    const RUN: usize = 16;
    let every = weights.len().div_ceil(SAMPLE).max(1);
    if every == 1 {
        return cut(weights, allowed);
    }
    let sample = || weights.chunks(RUN).step_by(every).flatten();
    let allowed = 0.95 * allowed * sample().count() as f64 / weights.len() as f64;
    cut_of(sample, allowed)
}

fn cut_of<'w, I: Iterator<Item = &'w f32>>(sample: impl Fn() -> I, allowed: f64) -> f32 {
    /// Shift that leaves a number's bin: its exponent and three more bits.
    const SHIFT: u32 = 20;
    let mut bins = vec![0.0f64; 1 << (31 - SHIFT)];
    for weight in sample() {
        bins[(weight.to_bits() >> SHIFT) as usize] += f64::from(*weight);
    }
    let mut below = 0.0;
    for (bin, sum) in bins.iter().enumerate() {
        if below + sum <= allowed {
            below += sum;
            continue;
        }
        let mut within: Vec<f32> = sample()
            .filter(|weight| (weight.to_bits() >> SHIFT) as usize == bin)
            .copied()
            .collect();
        within.sort_unstable_by(f32::total_cmp);
        for weight in within {
            if below + f64::from(weight) > allowed {
                return weight;
            }
            below += f64::from(weight);
        }
    }
    f32::INFINITY
}

/// Forced indices, and for each other index an entry that sorts the best first.
fn parted(scores: &[f32], forced: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<u64>) {
    let (mut chosen, mut others) = (Vec::new(), Vec::with_capacity(scores.len()));
    for (index, score) in scores.iter().enumerate() {
        if forced(index) {
            chosen.push(index);
        } else {
            others.push(entry(*score, index));
        }
    }
    (chosen, others)
}

/// A number that is smaller for a higher score and, for equal scores, for a lower index.
fn entry(score: f32, index: usize) -> u64 {
    let bits = score.to_bits();
    // The bits follow the order of `total_cmp`: the bits of negative numbers descend.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | index as u64
}

fn index_of(entry: u64) -> usize {
    (entry & 0xffff_ffff) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_sort_as_scores_do() {
        let scores = [
            f32::INFINITY,
            3.5,
            1.0,
            1e-40,
            0.0,
            -0.0,
            -1e-40,
            -2.0,
            f32::NEG_INFINITY,
        ];
        let entries: Vec<u64> = scores
            .iter()
            .enumerate()
            .map(|(index, score)| entry(*score, index))
            .collect();
        assert!(entries.is_sorted());
        assert!(entry(1.0, 3) < entry(1.0, 4));
    }

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
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
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
    fn what_lies_below_a_cut_is_as_much_as_allowed_and_no_more() {
        let weights = [0.5, 0.125, 0.0, 0.25, 0.125];
        assert_eq!(cut(&weights, 0.0), 0.125);
        assert_eq!(cut(&weights, 0.2), 0.125);
        assert_eq!(cut(&weights, 0.3), 0.25);
        assert_eq!(cut(&weights, 1.0), f32::INFINITY);
        assert_eq!(cut(&[], 0.5), f32::INFINITY);
        assert_eq!(cut_sampled(&weights, 0.2), 0.125);
        let many: Vec<f32> = (0..50_000)
            .map(|n| ((n * 7919 + 5) % 50_021) as f32 / 50_021.0)
            .collect();
        let total: f64 = many.iter().map(|weight| f64::from(*weight)).sum();
        for share in [0.01, 0.1, 0.5] {
            let least = cut_sampled(&many, share * total);
            let below = many.iter().filter(|weight| **weight < least);
            let below: f64 = below.map(|weight| f64::from(*weight)).sum();
            assert!(
                (0.8 * share..=share).contains(&(below / total)),
                "{share}: {}",
                below / total
            );
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
