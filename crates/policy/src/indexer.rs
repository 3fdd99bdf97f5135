//! Scores of a trained indexer (DeepSeek sparse attention, arXiv:2512.02556).

use riffle_attention::{PageView, Scorer, Selection, Span};

use crate::ranking::top_count;

/// Panic message if a caller breaks the contract of pages.
const SOUND: &str = "pages hold the tokens they say, of the indexer's width";

/// Queries of an indexer for consecutive tokens, and the weights of their heads.
///
/// The score of a token is Σ weight · max(0, query · key) over the heads. Sums follow the order of heads and of
/// elements, so that a score does not depend on other computations.
#[derive(Debug, Clone, Copy)]
pub struct IndexerQueries<'a> {
    /// `[rows, heads, width]`.
    pub queries: &'a [f32],
    /// `[rows, heads]`.
    pub weights: &'a [f32],
    /// Query heads.
    pub heads: usize,
    /// Elements of a query and of a key; a multiple of 16.
    pub width: usize,
}

impl IndexerQueries<'_> {
    /// Writes the scores of the tokens of consecutive pages for one of the rows; `scores` begins at the first page's
    /// first token and ends at or before the last page's end.
    pub fn score(&self, row: usize, pages: &[PageView<'_>], scores: &mut [f32]) {
        let Some(first) = pages.first().map(|page| page.start) else {
            return;
        };
        let weights = &self.weights[row * self.heads..][..self.heads];
        let queries = self.queries[row * self.heads * self.width..].chunks_exact(self.width);
        let mut scorer = Scorer::default();
        scorer.set(queries.take(self.heads), self.width, 1.0).expect(SOUND);
        let mut products = Vec::new();
        for page in pages {
            let from = page.start - first;
            let count = page.tokens.min(scores.len().saturating_sub(from));
            if count == 0 {
                break;
            }
            let scores = &mut scores[from..][..count];
            products.resize(self.heads * count, 0.0);
            scorer
                .score(&page.keys, Span::new(0, count), None, &mut products, count)
                .expect(SOUND);
            scores.fill(0.0);
            for (products, weight) in products.chunks_exact(count).zip(weights) {
                for (score, product) in scores.iter_mut().zip(products) {
                    *score += weight * product.max(0.0);
                }
            }
        }
    }
}

/// The tokens of the `most` highest scores, ascending; of equal scores the earlier token wins.
pub fn choose_tokens(scores: &[f32], most: usize) -> Vec<usize> {
    top_count(scores, most, |_| false)
}

/// The selection of consecutive rows from the tokens that each reads; the first row is at position `start`.
pub fn select_tokens(start: usize, rows: &[Vec<usize>]) -> Selection {
    match rows {
        [row] => Selection::from_spans(row.iter().map(|token| Span::new(*token, token + 1))),
        rows => Selection::none().with_row_extras(start, rows.iter().map(|row| row.iter().copied())),
    }
}

#[cfg(test)]
mod tests {
    use riffle_attention::{LANES, Plane, PlaneMut, write_keys};

    use super::*;

    const WIDTH: usize = 16;

    fn made(count: usize, seed: usize) -> Vec<f32> {
        let value = |n: usize| ((n * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
        (0..count).map(value).collect()
    }

    #[test]
    fn scores_are_weighted_sums_of_positive_products_however_pages_are_cut() {
        let (heads, tokens) = (5, 3 * LANES + 7);
        let (queries, weights, keys) = (made(2 * heads * WIDTH, 1), made(2 * heads, 2), made(tokens * WIDTH, 3));
        let index = IndexerQueries {
            queries: &queries,
            weights: &weights,
            heads,
            width: WIDTH,
        };
        let stored: Vec<Vec<f32>> = keys.chunks(LANES * WIDTH).map(stored).collect();
        let pages: Vec<PageView<'_>> = stored
            .iter()
            .enumerate()
            .map(|(number, keys)| page(number, keys, tokens))
            .collect();
        for row in 0..2 {
            let seen = tokens - 1 + row;
            let mut scores = vec![f32::NAN; seen];
            index.score(row, &pages, &mut scores);
            for (token, score) in scores.iter().enumerate() {
                let key = &keys[token * WIDTH..][..WIDTH];
                let heads = queries[row * heads * WIDTH..]
                    .chunks(WIDTH)
                    .zip(&weights[row * heads..][..heads]);
                let expected: f64 = heads
                    .map(|(query, weight)| f64::from(*weight) * product(query, key).max(0.0))
                    .sum();
                assert!((f64::from(*score) - expected).abs() < 1e-5, "row {row} token {token}");
            }
            let mut parts = vec![f32::NAN; seen];
            let (first, last) = parts.split_at_mut(2 * LANES);
            index.score(row, &pages[..2], first);
            index.score(row, &pages[2..], last);
            assert_eq!(parts, scores, "row {row}");
        }
    }

    #[test]
    fn selections_name_what_each_row_reads() {
        assert_eq!(choose_tokens(&[0.0, 2.0, 0.0, 1.0, 0.0], 3), [0, 1, 3]);
        let one = select_tokens(9, &[vec![1, 2, 7]]);
        assert_eq!(one.spans(), [Span::new(1, 3), Span::new(7, 8)]);
        let two = select_tokens(9, &[vec![1, 9], vec![0, 10]]);
        assert!(two.contains(9, 1) && two.contains(10, 10) && !two.contains(10, 1));
    }

    fn product(query: &[f32], key: &[f32]) -> f64 {
        query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
    }

    fn stored(keys: &[f32]) -> Vec<f32> {
        let mut stored = vec![0.0; LANES * WIDTH];
        write_keys(
            &mut PlaneMut::F32(&mut stored),
            WIDTH,
            0,
            keys.len() / WIDTH,
            keys,
            WIDTH,
        )
        .unwrap();
        stored
    }

    fn page(number: usize, keys: &[f32], tokens: usize) -> PageView<'_> {
        PageView {
            start: number * LANES,
            tokens: LANES.min(tokens - number * LANES),
            keys: Plane::F32(keys),
            values: Plane::F32(&[]),
        }
    }
}
