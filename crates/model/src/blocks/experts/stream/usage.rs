//! The recent use of a layer's experts.
//!
//! The use of an expert is the number of tokens that chose it. A token's weight halves after each [`HALF_LIFE`] later
//! tokens. A prompt uses nearly every expert; those that most of its tokens chose stay in memory.

/// Number of tokens after which a choice counts half. A longer time separates popular experts better; a shorter one
/// follows a change of subject sooner (`scripts/measure/expert-policies`).
const HALF_LIFE: f64 = 16.0;

/// The uses of a layer's experts.
pub(super) struct Usage {
    /// Number of tokens in the layer so far.
    tokens: f64,
    /// For each expert: the base-2 logarithm of its use, plus the layer's half-lives at that time. Two experts keep
    /// their order while neither is used.
    ranks: Vec<f64>,
}

impl Usage {
    pub(super) fn new(experts: usize) -> Self {
        Self {
            tokens: 0.0,
            ranks: vec![f64::NEG_INFINITY; experts],
        }
    }

    /// Records that `tokens` tokens reached the layer together, with the number of tokens that chose each expert of
    /// `chosen`.
    pub(super) fn pass(&mut self, tokens: usize, chosen: impl Iterator<Item = (usize, usize)>) {
        self.tokens += tokens as f64;
        let (now, tokens) = (self.tokens / HALF_LIFE, tokens as f64);
        // Choices count as spread evenly over the tokens; earlier tokens then have less weight.
        let each = HALF_LIFE / std::f64::consts::LN_2 * (1.0 - (-tokens / HALF_LIFE).exp2()) / tokens.max(1.0);
        for (expert, choices) in chosen {
            let rank = &mut self.ranks[expert];
            *rank = ((*rank - now).exp2() + choices as f64 * each).log2() + now;
        }
    }

    /// The rank of an expert. The least used expert has the lowest.
    pub(super) fn rank(&self, expert: usize) -> f64 {
        self.ranks[expert]
    }
}

/// The share of right guesses above which guesses are loaded ahead. A wrong guess delays experts that are needed.
const TRUSTED_SHARE: f64 = 0.6;
/// The weight of the latest guesses in this share.
const LATEST_PART: f64 = 0.125;

/// Guesses of the missing experts that a layer's tokens choose next, and the share of right ones.
#[derive(Default)]
pub(super) struct Guesses {
    made: Vec<usize>,
    right_share: f64,
}

impl Guesses {
    /// Records guesses. True if they should be loaded ahead.
    pub(super) fn make(&mut self, experts: Vec<usize>) -> bool {
        self.made = experts;
        self.right_share >= TRUSTED_SHARE
    }

    /// Compares the guesses with the choices.
    pub(super) fn judge(&mut self, is_chosen: &[bool]) {
        let made = std::mem::take(&mut self.made);
        if made.is_empty() {
            return;
        }
        let right = made.iter().filter(|expert| is_chosen[**expert]).count();
        self.right_share += LATEST_PART * (right as f64 / made.len() as f64 - self.right_share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_choices_count_more_than_early_ones_and_many_more_than_one() {
        let mut usage = Usage::new(4);
        assert_eq!(usage.rank(3), f64::NEG_INFINITY);
        usage.pass(1, [(0, 1)].into_iter());
        usage.pass(1, [(1, 1)].into_iter());
        assert!(usage.rank(1) > usage.rank(0));
        usage.pass(1, [(0, 1)].into_iter());
        assert!(usage.rank(0) > usage.rank(1), "used twice");
        // Eight choices count as two after two half-lives, and as less than one after four.
        usage.pass(8, [(2, 8)].into_iter());
        usage.pass(2 * HALF_LIFE as usize, std::iter::empty());
        usage.pass(1, [(3, 1)].into_iter());
        assert!(usage.rank(2) > usage.rank(3));
        usage.pass(2 * HALF_LIFE as usize, std::iter::empty());
        usage.pass(1, [(3, 1)].into_iter());
        assert!(usage.rank(2) < usage.rank(3));
    }

    #[test]
    fn a_prompt_counts_as_its_tokens_one_after_the_other_do() {
        let (mut together, mut single) = (Usage::new(2), Usage::new(2));
        for _ in 0..10 {
            together.pass(64, [(0, 64), (1, 32)].into_iter());
            for token in 0..64 {
                single.pass(1, [(0, 1), (1, 1)].into_iter().take(1 + token % 2));
            }
        }
        for expert in 0..2 {
            let apart = (together.rank(expert) - single.rank(expert)).abs();
            assert!(apart < 0.1, "expert {expert}: {apart}");
        }
    }

    #[test]
    fn guesses_are_trusted_while_most_of_them_are_right() {
        let mut guesses = Guesses::default();
        let chosen = [true, true, false, false];
        assert!(!guesses.make(vec![0, 1]), "nothing is known yet");
        for _ in 0..20 {
            guesses.judge(&chosen);
            guesses.make(vec![0, 1]);
        }
        assert!(guesses.make(vec![0, 1]));
        for _ in 0..20 {
            guesses.judge(&chosen);
            guesses.make(vec![2, 3]);
        }
        assert!(!guesses.make(vec![0, 1]));
    }

    #[test]
    fn ranks_stay_finite_over_long_runs() {
        let mut usage = Usage::new(1);
        for _ in 0..1000 {
            usage.pass(1 << 30, [(0, 1 << 20)].into_iter());
            assert!(usage.rank(0).is_finite());
        }
    }
}
