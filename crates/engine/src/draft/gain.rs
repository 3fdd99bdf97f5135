//! How many tokens to draft: as many as are expected to bring more tokens for their cost.
//!
//! A pass over one token costs 1. A pass that verifies rows beside it costs more, and each token of a draft costs a part of a pass. A draft
//! of `n` tokens of which each agrees with probability `p` brings `1 + p + … + pⁿ` tokens. The length with the most tokens for the cost is
//! where the next token would agree less often than it costs (arXiv 2607.27735). How often tokens agree is learned from the drafts of the
//! answer, costs come from stored constants: nothing is timed, so the same request is always drafted in the same way.
//!
//! Drafts that fail cost time. [`Balance`] compares what the drafts of an answer cost with the passes that they saved, and refuses a draft
//! that could bring the loss above [`LOSS`].

use crate::draft_spec::MOST_TOKENS;

/// Weight of earlier tokens when another token is judged.
const MEMORY: f64 = 0.97;
/// A draft is made where it promises so many times the tokens of no draft, for the same cost.
const WORTH: f64 = 1.1;
/// Passes without a draft before one is tried again, at first and at most.
const PAUSE: [u32; 2] = [16, 256];
/// Tokens of a draft that is tried.
const TRIED: usize = 3;
/// A draft is not tried where it would not pay even if its tokens agreed so often.
const HOPED: f64 = 0.95;

/// Passes that the drafts of an answer may lose: so many at first, and so many more for each pass of the answer.
const LOSS: [f64; 2] = [1.0, 0.02];

/// The cost of drafting, in passes over one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Costs {
    /// A pass, by the rows that it verifies behind the first.
    pub(super) verified: [f64; MOST_TOKENS + 1],
    /// One token of the draft.
    pub(super) drafted: f64,
}

impl Costs {
    /// Passes that a draft of so many tokens costs beside the pass over one token.
    pub(super) fn of_draft(&self, tokens: usize) -> f64 {
        self.verified[tokens] - 1.0 + tokens as f64 * self.drafted
    }
}

/// A draft that could be made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Offer {
    /// Its length; 0 for no draft.
    pub(super) tokens: usize,
    /// Expected tokens of the answer in the time of a pass over one token.
    pub(super) rate: f64,
}

impl Offer {
    /// No draft. Others have to be this much better.
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
    /// Counts a pass of the answer, with a draft or without.
    pub(super) fn count_pass(&mut self) {
        self.passes += 1;
    }

    /// Counts a draft that cost so many passes and of which so many tokens were drawn: each of them saves a pass.
    pub(super) fn count_draft(&mut self, cost: f64, agreed: usize) {
        self.spent += cost;
        self.saved += agreed as f64;
    }

    /// Passes that the next draft may cost.
    pub(super) fn room(&self) -> f64 {
        LOSS[0] + LOSS[1] * self.passes as f64 + self.saved - self.spent
    }
}

/// How often the tokens of one source agree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acceptance {
    agreed: f64,
    judged: f64,
    /// Passes since the latest draft, while drafts do not pay.
    waited: u32,
    pause: u32,
}

impl Acceptance {
    /// An assumed `probability`, which weighs as much as four judged tokens.
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

    /// The draft of at most `most` tokens that brings most tokens for its cost; [`Offer::NONE`] where none pays.
    pub(super) fn best(&self, costs: &Costs, balance: &Balance, most: usize) -> Offer {
        best_offer(self.probability(), costs, affordable(costs, balance, most))
    }

    /// A short draft now and then, while none pays.
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

    /// Learns that the answer drew the first `agreed` of `drafted` tokens.
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

/// The longest draft, up to `most` tokens, that may be lost.
fn affordable(costs: &Costs, balance: &Balance, most: usize) -> usize {
    let fits = |tokens: &usize| costs.of_draft(*tokens) <= balance.room();
    (1..=most.min(MOST_TOKENS)).take_while(fits).count()
}

/// The draft with the most tokens for its cost, where each token agrees with this probability.
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
            // A source that is believed in anew each time.
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
