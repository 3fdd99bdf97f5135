//! How many tokens to draft: as many as are expected to bring more tokens for their cost.
//!
//! A pass over one token costs 1. Each row that is verified beside it costs a share of that, and so does each token of a draft. A draft of
//! `n` tokens of which each agrees with probability `p` brings `1 + p + … + pⁿ` tokens. The length with the most tokens for the cost is
//! where the next token would agree less often than it costs (arXiv 2607.27735). How often tokens agree is learned from the drafts of the
//! answer, costs come from stored constants: nothing is timed, so the same request is always drafted in the same way.

/// Weight of what was learned before when another token is judged.
const MEMORY: f64 = 0.97;
/// A draft has to promise so much more tokens for its cost than none.
const WORTH: f64 = 1.05;
/// Passes without a draft before one is tried again, at first and at most.
const PAUSE: [u32; 2] = [8, 128];

/// What drafting costs, in passes over one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Costs {
    /// One more row that is verified.
    pub(super) row: f64,
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

    /// Tokens to draft, at most `most`. Where no draft pays, a single token is tried now and then.
    pub(super) fn length(&mut self, costs: Costs, most: usize) -> usize {
        let best = best_length(self.probability(), costs, most);
        if best > 0 || most == 0 {
            return best;
        }
        self.waited += 1;
        if self.waited < self.pause {
            return 0;
        }
        self.waited = 0;
        self.pause = (self.pause * 2).min(PAUSE[1]);
        1
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
fn best_length(probability: f64, costs: Costs, most: usize) -> usize {
    let (mut tokens, mut cost, mut agrees) = (1.0, 1.0, 1.0);
    let (mut best, mut best_rate) = (0, WORTH);
    for length in 1..=most {
        agrees *= probability;
        tokens += agrees;
        cost += costs.row + costs.drafted;
        if tokens / cost > best_rate {
            (best, best_rate) = (length, tokens / cost);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: Costs = Costs { row: 0.1, drafted: 0.0 };

    #[test]
    fn a_draft_ends_where_its_next_token_would_cost_more_than_it_brings() {
        assert_eq!(best_length(0.0, CHEAP, 16), 0);
        assert_eq!(best_length(1.0, CHEAP, 16), 16);
        assert_eq!(best_length(0.9, Costs { row: 0.5, drafted: 0.5 }, 16), 0);
        let lengths: Vec<usize> = [0.2, 0.5, 0.7, 0.9].map(|p| best_length(p, CHEAP, 32)).to_vec();
        assert!(lengths.is_sorted() && lengths[0] > 0 && lengths[3] < 32, "{lengths:?}");
        for (probability, length) in [0.2, 0.5, 0.7, 0.9].into_iter().zip(lengths) {
            let rate = |n: usize| {
                let tokens: f64 = (0..=n).map(|i| probability.powi(i as i32)).sum();
                tokens / (1.0 + CHEAP.row * n as f64)
            };
            assert!((1..40).all(|other| rate(other) <= rate(length) + 1e-9), "{probability}");
        }
    }

    #[test]
    fn what_never_agrees_is_tried_less_and_less_and_what_agrees_again_is_drafted_again() {
        let mut acceptance = Acceptance::assumed(0.7);
        let mut tried = Vec::new();
        for pass in 0..1000 {
            let length = acceptance.length(CHEAP, 8);
            acceptance.learn(length, 0);
            if length > 0 {
                tried.push(pass);
            }
        }
        let late = tried.iter().filter(|pass| **pass >= 500).count();
        assert!(late <= 5, "{tried:?}");
        let mut drafted = 0;
        for _ in 0..1000 {
            let length = acceptance.length(CHEAP, 8);
            acceptance.learn(length, length);
            drafted += length;
        }
        assert!(drafted > 4000, "{drafted}");
    }
}
