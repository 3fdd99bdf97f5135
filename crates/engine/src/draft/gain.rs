//! The number of tokens to draft: as many as are expected to give more tokens per cost.
//!
//! A pass over one token costs 1. A pass that verifies additional rows costs more, and each drafted token costs a
//! fraction of a pass. A draft of `n` tokens, each accepted with probability `p`, gives `1 + p + … + pⁿ` tokens. The
//! best length is reached when the next token's probability falls below its cost (arXiv 2607.27735). The acceptance
//! rate is learned from the answer's drafts, and costs come from stored constants. Nothing is timed, so the same
//! request always gets the same drafts.
//!
//! Failed drafts cost time. [`Balance`] compares the cost of an answer's drafts with the passes that they saved. It
//! refuses a draft that could raise the loss above [`LOSS`].

use crate::draft_spec::MOST_TOKENS;

/// Weight of earlier tokens in the estimate, per token.
const MEMORY: f64 = 0.97;
/// A draft is made if it promises this many times the tokens of no draft, for the same cost.
const WORTH: f64 = 1.1;
/// Passes without a draft before another trial: initially, and at most.
const PAUSE: [u32; 2] = [16, 256];
/// Tokens of a trial draft.
const TRIED: usize = 3;
/// No trial is made if a draft would not pay off even with this acceptance rate.
const HOPED: f64 = 0.95;

/// Passes that the drafts of an answer may lose: initially, and per pass of the answer.
const LOSS: [f64; 2] = [1.0, 0.02];

/// The cost of drafting, in passes over one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Costs {
    /// Cost of a pass, by the number of rows verified after the first.
    pub(super) verified: [f64; MOST_TOKENS + 1],
    /// Cost of one drafted token.
    pub(super) drafted: f64,
}

impl Costs {
    /// Cost of a draft of `tokens` tokens in addition to the pass over one token.
    pub(super) fn of_draft(&self, tokens: usize) -> f64 {
        self.verified[tokens] - 1.0 + tokens as f64 * self.drafted
    }
}

/// A possible draft.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Offer {
    /// Length of the draft; 0 for none.
    pub(super) tokens: usize,
    /// Expected tokens of the answer in the time of a pass over one token.
    pub(super) rate: f64,
}

impl Offer {
    /// No draft. Others must be better by this factor.
    pub(super) const NONE: Self = Self { tokens: 0, rate: WORTH };
}

/// The cost and the yield of the drafts of an answer, in passes over one token.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Balance {
    passes: usize,
    spent: f64,
    saved: f64,
}

impl Balance {
    /// Counts a pass of the answer, with or without a draft.
    pub(super) fn count_pass(&mut self) {
        self.passes += 1;
    }

    /// Counts a draft of this cost, of which `agreed` tokens were accepted: each saves a pass.
    pub(super) fn count_draft(&mut self, cost: f64, agreed: usize) {
        self.spent += cost;
        self.saved += agreed as f64;
    }

    /// Cost that the next draft may have.
    pub(super) fn room(&self) -> f64 {
        LOSS[0] + LOSS[1] * self.passes as f64 + self.saved - self.spent
    }
}

/// The acceptance rate of one source.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acceptance {
    agreed: f64,
    judged: f64,
    /// Passes since the latest draft, while drafts do not pay.
    waited: u32,
    pause: u32,
}

impl Acceptance {
    /// An assumed `probability` with the weight of four verified tokens.
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

    /// The draft of at most `most` tokens that gives most tokens per cost; [`Offer::NONE`] if none pays off.
    pub(super) fn best(&self, costs: &Costs, balance: &Balance, most: usize) -> Offer {
        best_offer(self.probability(), costs, affordable(costs, balance, most))
    }

    /// Occasionally a short draft, while none pays off.
    pub(super) fn trial(&mut self, costs: &Costs, balance: &Balance, most: usize) -> Offer {
        let hoped = best_offer(HOPED, costs, affordable(costs, balance, most));
        self.waited += 1;
        if hoped.tokens == 0 || self.waited < self.pause {
            return Offer::NONE;
        }
        self.waited = 0;
        self.pause = (self.pause * 2).min(PAUSE[1]);
        Offer {
            tokens: hoped.tokens.min(TRIED),
            ..hoped
        }
    }

    /// Records that the answer accepted the first `agreed` of `drafted` tokens.
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

/// The longest draft, up to `most` tokens, whose loss is acceptable.
fn affordable(costs: &Costs, balance: &Balance, most: usize) -> usize {
    let fits = |tokens: &usize| costs.of_draft(*tokens) <= balance.room();
    (1..=most.min(MOST_TOKENS)).take_while(fits).count()
}

/// The draft with most tokens per cost, for this acceptance probability.
fn best_offer(probability: f64, costs: &Costs, most: usize) -> Offer {
    let (mut expected, mut agrees) = (1.0, 1.0);
    let mut best = Offer::NONE;
    for tokens in 1..=most {
        agrees *= probability;
        expected += agrees;
        let rate = expected / (1.0 + costs.of_draft(tokens));
        if rate > best.rate {
            best = Offer { tokens, rate };
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

    /// The length of the next draft.
    fn next(acceptance: &mut Acceptance, costs: &Costs, balance: &Balance) -> usize {
        match acceptance.best(costs, balance, 8).tokens {
            0 => acceptance.trial(costs, balance, 8).tokens,
            tokens => tokens,
        }
    }

    #[test]
    fn a_draft_ends_where_its_next_token_would_cost_more_than_it_brings() {
        let cheap = costs(0.1, 0.0);
        assert_eq!(best_offer(0.0, &cheap, 15).tokens, 0);
        assert_eq!(best_offer(1.0, &cheap, 15).tokens, 15);
        assert_eq!(best_offer(0.9, &costs(0.5, 0.5), 15).tokens, 0);
        assert_eq!(best_offer(0.2, &cheap, 15).tokens, 0, "it brings less than it has to");
        let probabilities = [0.3, 0.5, 0.7, 0.8];
        let lengths = probabilities.map(|p| best_offer(p, &cheap, 15).tokens);
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
        let (costs, balance) = (
            costs(0.1, 0.0),
            Balance {
                saved: 1e9,
                ..Balance::default()
            },
        );
        let mut acceptance = Acceptance::assumed(0.7);
        let mut tried = Vec::new();
        for pass in 0..2000 {
            let length = next(&mut acceptance, &costs, &balance);
            acceptance.learn(length, 0);
            if length > 0 {
                tried.push(pass);
            }
        }
        let late = tried.iter().filter(|pass| **pass >= 1000).count();
        assert!(late <= 4, "{tried:?}");
        let mut drafted = 0;
        for _ in 0..1000 {
            let length = next(&mut acceptance, &costs, &balance);
            acceptance.learn(length, length);
            drafted += length;
        }
        assert!(drafted > 4000, "{drafted}");
    }

    #[test]
    fn what_cannot_pay_is_not_tried() {
        let mut acceptance = Acceptance::assumed(0.9);
        assert!((0..1000).all(|_| next(&mut acceptance, &costs(0.5, 0.6), &Balance::default()) == 0));
    }

    #[test]
    fn drafts_that_never_agree_lose_no_more_than_a_pass_and_two_hundredths() {
        let costs = costs(0.4, 0.2);
        let (mut balance, mut drafted) = (Balance::default(), 0);
        for pass in 1..=1000 {
            // Every pass drafts as a source with the initial assumption does.
            let length = next(&mut Acceptance::assumed(0.9), &costs, &balance);
            balance.count_pass();
            balance.count_draft(costs.of_draft(length), 0);
            drafted += length;
            assert!(balance.spent <= 1.0 + 0.02 * f64::from(pass), "{balance:?}");
        }
        assert!(drafted > 20, "{drafted}");
    }

    #[test]
    fn drafts_that_agree_are_not_held_back() {
        let costs = costs(0.2, 0.0);
        let mut balance = Balance::default();
        let mut lengths = Vec::new();
        for _ in 0..20 {
            let length = next(&mut Acceptance::assumed(0.9), &costs, &balance);
            balance.count_pass();
            balance.count_draft(costs.of_draft(length), length);
            lengths.push(length);
        }
        let free = best_offer(0.9, &costs, 8).tokens;
        assert!(
            free > 5 && lengths[2..].iter().all(|length| *length == free),
            "{lengths:?}"
        );
    }
}
