//! Joins rankings of parts.

/// The constant of reciprocal rank fusion, as in its paper.
const RANK_CONSTANT: f64 = 60.0;

/// Indices of the scores that are `ranked`, best first. Of equal scores the earlier one is first.
pub(crate) fn order(scores: &[f64], ranked: impl Fn(f64) -> bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|number| ranked(scores[*number])).collect();
    order.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]).then(one.cmp(other)));
    order
}

/// A score for each of `count` parts by reciprocal rank fusion (Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion
/// outperforms Condorcet and individual Rank Learning Methods", 2009). A ranking lists parts, best first; the parts
/// that it omits get nothing from it.
pub(crate) fn fused(count: usize, rankings: &[&[usize]]) -> Vec<f64> {
    let mut scores = vec![0.0; count];
    for ranking in rankings {
        for (place, number) in ranking.iter().enumerate() {
            scores[*number] += 1.0 / (RANK_CONSTANT + (place + 1) as f64);
        }
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(count: usize, rankings: &[&[usize]]) -> Vec<usize> {
        order(&fused(count, rankings), |score| score > 0.0)
    }

    #[test]
    fn a_part_that_is_high_in_both_rankings_is_first() {
        assert_eq!(joined(5, &[&[0, 2, 1], &[3, 2, 1]]), [2, 1, 0, 3]);
        let scores = fused(3, &[&[1, 0], &[1]]);
        assert_eq!(scores, [1.0 / 62.0, 2.0 / 61.0, 0.0]);
    }

    #[test]
    fn of_equal_parts_the_earlier_is_first() {
        assert_eq!(joined(4, &[&[3, 1], &[1, 3]]), [1, 3]);
        assert_eq!(joined(4, &[&[2], &[0]]), [0, 2]);
        assert_eq!(order(&[0.5, 0.5, 0.7, -0.1], |score| score > 0.0), [2, 0, 1]);
    }

    #[test]
    fn an_empty_ranking_leaves_the_order_of_the_other() {
        assert_eq!(joined(4, &[&[], &[2, 0, 3, 1]]), [2, 0, 3, 1]);
        assert_eq!(joined(4, &[&[2, 0], &[]]), [2, 0]);
        assert!(joined(4, &[&[], &[]]).is_empty());
    }
}
