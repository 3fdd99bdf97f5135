//! How much the experts of a layer have been used of late.
//!
//! The use of an expert is the number of tokens that chose it, where a token counts half as much when a number of others have come
//! after it. A prompt that passes every expert once does not drive out those that most of its tokens chose.

/// Tokens after which a choice counts half: long enough to tell experts apart that are chosen more often, short enough to follow a text from
/// one subject to the next (`scripts/expert-policies`).
const HALF_LIFE: f64 = 64.0;

/// The uses of a layer's experts.
pub(super) struct Usage {
    /// Tokens that the layer has seen.
    tokens: f64,
    /// By expert: the logarithm of its use, to the base 2, less the half-lives since. The order of two does not change while neither is used.
    ranks: Vec<f64>,
}

impl Usage {
    pub(super) fn new(experts: usize) -> Self {
        Self {
            tokens: 0.0,
            ranks: vec![f64::NEG_INFINITY; experts],
        }
    }

    /// So many tokens of the model have come to the layer.
    pub(super) fn pass(&mut self, tokens: usize) {
        self.tokens += tokens as f64;
    }

    /// So many of them chose an expert.
    pub(super) fn choose(&mut self, expert: usize, tokens: usize) {
        let now = self.tokens / HALF_LIFE;
        let rank = &mut self.ranks[expert];
        *rank = ((*rank - now).exp2() + tokens as f64).log2() + now;
    }

    /// The rank of an expert: the one that is used least has the lowest.
    pub(super) fn rank(&self, expert: usize) -> f64 {
        self.ranks[expert]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_choices_count_more_than_early_ones_and_many_more_than_one() {
        let mut usage = Usage::new(4);
        assert_eq!(usage.rank(3), f64::NEG_INFINITY);
        usage.pass(1);
        usage.choose(0, 1);
        usage.pass(1);
        usage.choose(1, 1);
        assert!(usage.rank(1) > usage.rank(0));
        usage.choose(0, 1);
        assert!(usage.rank(0) > usage.rank(1), "used twice");
        // Three half-lives: the eight tokens before them count as one.
        usage.choose(2, 8);
        usage.pass(3 * HALF_LIFE as usize);
        usage.choose(3, 1);
        assert!((usage.rank(2) - usage.rank(3)).abs() < 1e-9);
    }

    #[test]
    fn ranks_stay_finite_over_long_runs() {
        let mut usage = Usage::new(1);
        for _ in 0..1000 {
            usage.pass(1 << 30);
            usage.choose(0, 1 << 20);
            assert!(usage.rank(0).is_finite());
        }
    }
}
