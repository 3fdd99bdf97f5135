//! Equal budgets: the parameter of each policy that decides how much it reads, set so that it reads the share asked for.

use std::collections::HashMap;
use std::sync::Arc;

use riffle_engine::{Engine, PairCount, Session};
use riffle_policy::Phase;

use crate::EvalError;
use crate::choice::PolicyChoice;
use crate::tasks::{Corpus, Watch, go_on};

/// Runs of the model that a fit takes at most.
const TRIES: usize = 9;

/// A fit is good enough this close to the budget, as a share of it.
const CLOSE: f64 = 0.03;

/// Tokens that a decode policy is measured on.
const STEPS: usize = 24;

/// The parameter that decides how much a policy reads.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Knob {
    parameter: &'static str,
    low: f64,
    high: f64,
    scale: Scale,
    /// Whether more of it reads more.
    rising: bool,
}

/// How a knob's values are spread, so that equal steps of a search change about as much.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scale {
    Linear,
    Logarithm,
    /// By the logarithm, whole numbers.
    Whole,
    /// Shares of a mass, by the logarithm of what is left out.
    LeftOut,
}

impl Scale {
    /// The value half-way between two.
    fn middle(self, low: f64, high: f64) -> f64 {
        match self {
            Self::Linear => f64::midpoint(low, high),
            Self::Logarithm => (low * high).sqrt(),
            Self::Whole => (low * high).sqrt().round(),
            Self::LeftOut => 1.0 - ((1.0 - low) * (1.0 - high)).sqrt(),
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Whole => format!("{value:.0}"),
            _ => format!("{value:.6}"),
        }
    }
}

/// Fitted policies, by policy and length.
pub(super) struct Fitted<'a> {
    engine: &'a Arc<Engine>,
    corpus: &'a Corpus,
    budget: Option<f64>,
    seed: u64,
    known: HashMap<(String, usize), PolicyChoice>,
}

impl<'a> Fitted<'a> {
    pub(super) fn new(engine: &'a Arc<Engine>, corpus: &'a Corpus, budget: Option<f64>, seed: u64) -> Self {
        Self {
            engine,
            corpus,
            budget,
            seed,
            known: HashMap::new(),
        }
    }

    /// The policy as it is to be run at this length.
    pub(super) fn choice(
        &mut self,
        choice: &PolicyChoice,
        context_tokens: usize,
        watch: &mut Watch<'_>,
    ) -> Result<PolicyChoice, EvalError> {
        let Some(budget) = self.budget.filter(|_| !choice.is_full()) else {
            return Ok(choice.clone());
        };
        let key = (choice.to_string(), context_tokens);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let fitted = self.fit(choice, context_tokens, budget, watch)?;
        self.known.insert(key, fitted.clone());
        Ok(fitted)
    }

    fn fit(
        &self,
        choice: &PolicyChoice,
        context_tokens: usize,
        budget: f64,
        watch: &mut Watch<'_>,
    ) -> Result<PolicyChoice, EvalError> {
        let knob = knob(choice.policy.name(), context_tokens).ok_or_else(|| {
            EvalError::Option(format!(
                "policy {} has no parameter that sets how much it reads: leave it out, or leave --budget out",
                choice.policy.name()
            ))
        })?;
        search(&knob, budget, &mut |value| {
            let policy = choice
                .policy
                .with(knob.parameter, &knob.scale.text(value))
                .map_err(riffle_engine::EngineError::from)?;
            let choice = choice.with_policy(policy);
            let density = self.density(&choice, context_tokens, watch)?;
            Ok((density, choice))
        })
    }

    /// The share of the pairs that the policy reads in its phase, on a text of this length.
    fn density(&self, choice: &PolicyChoice, context_tokens: usize, watch: &mut Watch<'_>) -> Result<f64, EvalError> {
        let engine = self.engine.with_options(choice.options(self.engine.options()))?;
        let start = self.seed as usize % self.corpus.hay.len();
        let text = self.corpus.hay.iter().cycle().skip(start).take(context_tokens + STEPS);
        let tokens: Vec<u32> = text.copied().collect();
        let (document, steps) = tokens.split_at(context_tokens.saturating_sub(STEPS).max(1));
        let mut session = Session::new(&engine)?;
        // Fitting is no part of the cell that waits for it.
        session.prefill(document, &mut |_| watch(0.0))?;
        let mut pairs = session.pairs();
        if choice.phase == Phase::Decode {
            for token in &steps[..STEPS] {
                session.advance(*token)?;
                go_on(&session, watch)?;
            }
            let after = session.pairs();
            pairs = PairCount {
                read: after.read - pairs.read,
                causal: after.causal - pairs.causal,
            };
        }
        Ok(pairs.read as f64 / pairs.causal.max(1) as f64)
    }
}

/// The value of the knob whose density is closest to the budget, by bisection.
fn search<T>(
    knob: &Knob,
    budget: f64,
    measure: &mut dyn FnMut(f64) -> Result<(f64, T), EvalError>,
) -> Result<T, EvalError> {
    let (mut low, mut high) = (knob.low, knob.high);
    let mut value = knob.scale.middle(low, high);
    let mut best: Option<(f64, T)> = None;
    for _ in 0..TRIES {
        let (density, found) = measure(value)?;
        let miss = (density - budget).abs() / budget;
        if best.as_ref().is_none_or(|(least, _)| miss < *least) {
            best = Some((miss, found));
        }
        if miss <= CLOSE {
            break;
        }
        // Read less, or more.
        if (density > budget) == knob.rising {
            high = value;
        } else {
            low = value;
        }
        let next = knob.scale.middle(low, high);
        if knob.scale.text(next) == knob.scale.text(value) {
            break;
        }
        value = next;
    }
    best.map(|(_, found)| found)
        .ok_or_else(|| EvalError::Option("no policy was tried".to_owned()))
}

/// The knob of a policy at this length.
fn knob(policy: &str, context_tokens: usize) -> Option<Knob> {
    let tokens = |parameter, low: usize| Knob {
        parameter,
        low: low as f64,
        high: context_tokens.max(low + 1) as f64,
        scale: Scale::Whole,
        rising: true,
    };
    let share = |parameter| Knob {
        parameter,
        low: 0.0,
        high: 1.0,
        scale: Scale::Linear,
        rising: true,
    };
    let mass = |parameter| Knob {
        high: 1.0 - 1e-6,
        scale: Scale::LeftOut,
        ..share(parameter)
    };
    let falling = |parameter, low, high| Knob {
        parameter,
        low,
        high,
        scale: Scale::Logarithm,
        rising: false,
    };
    Some(match policy {
        "streaming" | "tri-shape" | "log-stride" => tokens("window", 1),
        "h2o-chunk" => tokens("heavy", 4),
        "vertical-slash" => share("budget"),
        "flex" => mass("gamma"),
        "xattention" => mass("threshold"),
        "blasst" => falling("factor", 1e-3, 1e4),
        "quest" => tokens("budget", 1),
        "twilight" => mass("p"),
        "certified" => falling("epsilon", 1e-6, 0.5),
        "h2o" => tokens("budget", 260),
        "snapkv" => tokens("budget", 36),
        "random" | "oracle-top-k" => share("share"),
        "oracle-top-p" => mass("mass"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_ends_close_to_the_budget_or_as_close_as_can_be() {
        let knob = |low, high, scale, rising| Knob {
            parameter: "x",
            low,
            high,
            scale,
            rising,
        };
        let linear = knob(0.0, 1.0, Scale::Linear, true);
        let found = search(&linear, 0.1, &mut |value| Ok((value * value, value))).unwrap();
        assert!((found * found - 0.1).abs() <= 0.1 * CLOSE, "{found}");
        let left_out = knob(0.0, 1.0 - 1e-6, Scale::LeftOut, true);
        let found = search(&left_out, 0.5, &mut |value| Ok((-(1.0 - value).log10() / 6.0, value))).unwrap();
        assert!((1.0 - found - 1e-3).abs() < 3e-4, "{found}");
        let falling = knob(1e-6, 0.5, Scale::Logarithm, false);
        let found = search(&falling, 0.2, &mut |value| Ok((-value.log10() / 6.0, value))).unwrap();
        assert!((0.05..0.08).contains(&found), "{found}");
        let whole = knob(1.0, 4096.0, Scale::Whole, true);
        let found = search(&whole, 0.1, &mut |value| Ok((value / 4096.0, value))).unwrap();
        assert!((found - 410.0).abs() < 15.0, "{found}");
        // A policy that never reads less than a quarter ends at its least.
        let found = search(&whole, 0.1, &mut |value| Ok(((value / 4096.0).max(0.25), value))).unwrap();
        assert!(found < 1100.0, "{found}");
    }

    #[test]
    fn every_policy_that_can_be_chosen_but_full_has_a_knob_of_its_own() {
        for info in riffle_policy::catalogue().iter().chain(crate::baselines()) {
            let Some(knob) = knob(info.name, 8192) else {
                assert_eq!(info.name, "full");
                continue;
            };
            let policy = crate::parse_policy(info.name).unwrap().base;
            for value in [knob.low, knob.high] {
                policy.with(knob.parameter, &knob.scale.text(value)).unwrap();
            }
        }
    }
}
