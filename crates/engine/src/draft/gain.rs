//! How many tokens to draft: as many as are expected to bring more tokens for their cost.
//!
//! A pass over one token costs 1. A pass that verifies rows beside it costs more, and each token of a draft costs a part of a pass. A draft
//! of `n` tokens of which each agrees with probability `p` brings `1 + p + … + pⁿ` tokens. The length with the most tokens for the cost is
//! where the next token would agree less often than it costs (arXiv 2607.27735). How often tokens agree is learned from the drafts of the
//! answer, costs come from stored constants: nothing is timed, so the same request is always drafted in the same way.

use super::MOST_TOKENS;

/// Weight of what was learned before when another token is judged.
const MEMORY: f64 = 0.97;
/// A draft has to promise so much more tokens for its cost than none.
const WORTH: f64 = 1.05;
/// Passes without a draft before one is tried again, at first and at most.
const PAUSE: [u32; 2] = [16, 256];
/// Tokens of a draft that is tried.
const TRIED: usize = 3;
/// Drafts that would not pay if their tokens agreed so often are not tried.
const HOPED: f64 = 0.95;

/// What drafting costs, in passes over one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Costs {
    /// A pass, by the rows that it verifies behind the first.
    pub(super) verified: [f64; MOST_TOKENS + 1],
    /// One token of the draft.
    pub(super) drafted: f64,
}

/// How often the tokens of one source agree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acceptance {
    agreed: f64,
    judged: f64,
    /// Passes since the latest draft, where drafts do not pay.
    waited: u32,
    pause: u32,
}

impl Acceptance {
    /// What is assumed before anything is known: `probability`, as firmly as after four tokens.
    pub(super) fn assumed(probability: f64) -> Self {
        Self {
            agreed: 4.0 * probability,
            judged: 4.0,
            waited: 0,
            pause: PAUSE[0],
        }
    }

    fn probability(&self) -> f64 {
        self.agreed / self.judged
    }

    /// Tokens to draft, at most `most`. Where no draft pays, a short one is tried now and then.
    pub(super) fn length(&mut self, costs: &Costs, most: usize) -> usize {
        let best = best_length(self.probability(), costs, most);
        if best > 0 {
            return best;
        }
        let hoped = best_length(HOPED, costs, most);
        self.waited += 1;
        if hoped == 0 || self.waited < self.pause {
            return 0;
        }
        self.waited = 0;
        self.pause = (self.pause * 2).min(PAUSE[1]);
        hoped.min(TRIED)
    }

    /// Learns that of `drafted` tokens the first `agreed` were drawn.
    pub(super) fn learn(&mut self, drafted: usize, agreed: usize) {
        for judged in 0..drafted.min(agreed + 1) {
            self.agreed = self.agreed * MEMORY + f64::from(u8::from(judged < agreed));
            self.judged = self.judged * MEMORY + 1.0;
        }
        if agreed > 0 {
            self.pause = PAUSE[0];
        }
    }
}

/// The length of a draft with the most tokens for its cost; 0 where none pays.
fn best_length(probability: f64, costs: &Costs, most: usize) -> usize {
    let (mut tokens, mut agrees) = (1.0, 1.0);
    let (mut best, mut best_rate) = (0, WORTH);
    for length in 1..=most.min(MOST_TOKENS) {
        agrees *= probability;
        tokens += agrees;
        let cost = costs.verified[length] + length as f64 * costs.drafted;
        if tokens / cost > best_rate {
            (best, best_rate) = (length, tokens / cost);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(row: f64, drafted: f64) -> Costs {
        Costs {
            verified: std::array::from_fn(|rows| 1.0 + row * rows as f64),
            drafted,
        }
    }

    #[test]
    fn a_draft_ends_where_its_next_token_would_cost_more_than_it_brings() {
        let cheap = costs(0.1, 0.0);
        assert_eq!(best_length(0.0, &cheap, 15), 0);
        assert_eq!(best_length(1.0, &cheap, 15), 15);
        assert_eq!(best_length(0.9, &costs(0.5, 0.5), 15), 0);
        let probabilities = [0.2, 0.5, 0.7, 0.8];
        let lengths = probabilities.map(|p| best_length(p, &cheap, 15));
        assert!(lengths.is_sorted() && lengths[0] > 0 && lengths[3] < 15, "{lengths:?}");
        for (probability, length) in probabilities.into_iter().zip(lengths) {
            let rate = |n: usize| {
                let tokens: f64 = (0..=n).map(|i| probability.powi(i as i32)).sum();
                tokens / cheap.verified[n]
            };
            assert!((1..16).all(|other| rate(other) <= rate(length) + 1e-9), "{probability}");
        }
    }

    #[test]
    fn what_never_agrees_is_tried_less_and_less_and_what_agrees_again_is_drafted_again() {
        let costs = costs(0.1, 0.0);
        let mut acceptance = Acceptance::assumed(0.7);
        let mut tried = Vec::new();
        for pass in 0..2000 {
            let length = acceptance.length(&costs, 8);
            acceptance.learn(length, 0);
            if length > 0 {
                tried.push(pass);
            }
        }
        let late = tried.iter().filter(|pass| **pass >= 1000).count();
        assert!(late <= 4, "{tried:?}");
        let mut drafted = 0;
        for _ in 0..1000 {
            let length = acceptance.length(&costs, 8);
            acceptance.learn(length, length);
            drafted += length;
        }
        assert!(drafted > 4000, "{drafted}");
    }

    #[test]
    fn what_cannot_pay_is_not_tried() {
        let mut acceptance = Acceptance::assumed(0.9);
        assert!((0..1000).all(|_| acceptance.length(&costs(0.5, 0.6), 8) == 0));
    }
}
