//! Equal budgets: sets the parameter that decides how many keys a policy reads, so that it reads the requested share.

use std::collections::HashMap;
use std::sync::Arc;

use riffle_engine::{Engine, PairCount, Session};
use riffle_policy::{BudgetParameter, Phase};

use crate::EvalError;
use crate::choice::PolicyChoice;
use crate::record::BudgetFit;
use crate::tasks::{Watch, go_on};

/// Limit on the model runs of one fit.
const TRIES: usize = 9;

/// A fit within this share of the budget is good enough.
const CLOSE: f64 = 0.03;

/// Tokens that measure a decode policy.
const STEPS: usize = 24;

/// A policy with its fitted parameter.
#[derive(Debug, Clone)]
pub(crate) struct FittedChoice {
    pub(crate) choice: PolicyChoice,
    /// The fit; `None` for a policy without a fit.
    pub(crate) fit: Option<BudgetFit>,
}

/// Fitted policies, by policy, budget and length.
pub(crate) struct Fitted<'a> {
    engine: &'a Arc<Engine>,
    /// Tokens of the text that measures densities.
    hay: &'a [u32],
    seed: u64,
    known: HashMap<(String, u64, usize), FittedChoice>,
}

impl<'a> Fitted<'a> {
    pub(crate) fn new(engine: &'a Arc<Engine>, hay: &'a [u32], seed: u64) -> Self {
        Self {
            engine,
            hay,
            seed,
            known: HashMap::new(),
        }
    }

    /// The fitted policy at this length; without a budget, the policy itself.
    pub(crate) fn choice(
        &mut self,
        choice: &PolicyChoice,
        budget: Option<f64>,
        context_tokens: usize,
        watch: &mut Watch<'_>,
    ) -> Result<FittedChoice, EvalError> {
        let Some(budget) = budget.filter(|_| !choice.is_full()) else {
            return Ok(FittedChoice {
                choice: choice.clone(),
                fit: None,
            });
        };
        let key = (choice.to_string(), budget.to_bits(), context_tokens);
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
    ) -> Result<FittedChoice, EvalError> {
        let parameter = choice.single().and_then(|policy| policy.info().traits.budget);
        let parameter = parameter.ok_or_else(|| {
            EvalError::Option(format!(
                "policy {choice} has no parameter that sets how much it reads: leave it out, or leave --budget out"
            ))
        })?;
        let found = search(&parameter.at(context_tokens), budget, &mut |value| {
            let text = parameter.scale.text(value);
            let policy = choice
                .policy
                .with(parameter.name, &text)
                .map_err(riffle_engine::EngineError::from)?;
            let choice = choice.with_policy(policy);
            let density = self.density(&choice, context_tokens, watch)?;
            Ok((density, (choice, text)))
        })?;
        let (choice, text) = found.choice;
        Ok(FittedChoice {
            choice,
            fit: Some(BudgetFit {
                parameter: format!("{}={}", parameter.name, short_number(&text)),
                density: found.density,
                reaches: found.reaches,
            }),
        })
    }

    /// The share of pairs that the policy reads in its phase, on a text of this length.
    fn density(&self, choice: &PolicyChoice, context_tokens: usize, watch: &mut Watch<'_>) -> Result<f64, EvalError> {
        let engine = self.engine.with_options(choice.options(self.engine.options()))?;
        let start = self.seed as usize % self.hay.len();
        let text = self.hay.iter().cycle().skip(start).take(context_tokens + STEPS);
        let tokens: Vec<u32> = text.copied().collect();
        let (document, steps) = tokens.split_at(context_tokens.saturating_sub(STEPS).max(1));
        let mut session = Session::new(&engine)?;
        // The time of the fit does not count in the cell.
        session.prefill(document, &mut |_| watch(0.0))?;
        let mut pairs = session.sequence().counts().pairs;
        if choice.phase == Phase::Decode {
            for token in &steps[..STEPS] {
                session.advance(*token)?;
                go_on(&session, watch)?;
            }
            let after = session.sequence().counts().pairs;
            pairs = PairCount {
                read: after.read - pairs.read,
                causal: after.causal - pairs.causal,
            };
        }
        Ok(pairs.density())
    }
}

/// The result of a search.
#[derive(Debug)]
struct Closest<T> {
    /// Share of the pairs that the policy reads.
    density: f64,
    /// The policy with this value.
    choice: T,
    /// True if the budget is between measured shares or close to one.
    reaches: bool,
}

/// A number without trailing zeros.
fn short_number(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

/// Bisects for the parameter value whose density is closest to the budget.
fn search<T>(
    parameter: &BudgetParameter,
    budget: f64,
    measure: &mut dyn FnMut(f64) -> Result<(f64, T), EvalError>,
) -> Result<Closest<T>, EvalError> {
    let (mut low, mut high) = (parameter.low, parameter.high);
    let mut value = parameter.scale.middle(low, high);
    let mut best: Option<(f64, f64, T)> = None;
    let (mut is_below, mut is_above) = (false, false);
    for _ in 0..TRIES {
        let (density, found) = measure(value)?;
        let miss = (density - budget).abs() / budget;
        is_below |= density <= budget * (1.0 + CLOSE);
        is_above |= density >= budget * (1.0 - CLOSE);
        if best.as_ref().is_none_or(|(least, ..)| miss < *least) {
            best = Some((miss, density, found));
        }
        if miss <= CLOSE {
            break;
        }
        // The next value reads less if this one reads too much, and otherwise more.
        if (density > budget) == parameter.rising {
            high = value;
        } else {
            low = value;
        }
        let next = parameter.scale.middle(low, high);
        if parameter.scale.text(next) == parameter.scale.text(value) {
            break;
        }
        value = next;
    }
    let (_, density, choice) = best.ok_or_else(|| EvalError::Option("no policy was tried".to_owned()))?;
    Ok(Closest {
        density,
        choice,
        reaches: is_below && is_above,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use riffle_policy::BudgetScale;

    #[test]
    fn the_search_ends_close_to_the_budget_or_as_close_as_can_be() {
        let parameter = |low, high, scale, rising| BudgetParameter {
            name: "x",
            low,
            high,
            scale,
            rising,
        };
        let linear = parameter(0.0, 1.0, BudgetScale::Linear, true);
        let found = search(&linear, 0.1, &mut |value| Ok((value * value, value)))
            .unwrap()
            .choice;
        assert!((found * found - 0.1).abs() <= 0.1 * CLOSE, "{found}");
        let left_out = parameter(0.0, 1.0 - 1e-6, BudgetScale::LeftOut, true);
        let found = search(&left_out, 0.5, &mut |value| Ok((-(1.0 - value).log10() / 6.0, value)));
        let found = found.unwrap().choice;
        assert!((1.0 - found - 1e-3).abs() < 3e-4, "{found}");
        let falling = parameter(1e-6, 0.5, BudgetScale::Logarithm, false);
        let found = search(&falling, 0.2, &mut |value| Ok((-value.log10() / 6.0, value)));
        let found = found.unwrap().choice;
        assert!((0.05..0.08).contains(&found), "{found}");
        let whole = parameter(1.0, 4096.0, BudgetScale::Whole, true);
        let found = search(&whole, 0.1, &mut |value| Ok((value / 4096.0, value))).unwrap();
        assert!((found.choice - 410.0).abs() < 15.0 && found.reaches, "{found:?}");
        // A policy that reads at least a quarter of the keys ends at its minimum.
        let found = search(&whole, 0.1, &mut |value| Ok(((value / 4096.0).max(0.25), value))).unwrap();
        assert!(found.choice < 1100.0 && found.density == 0.25, "{found:?}");
        assert!(!found.reaches, "{found:?}");
    }

    #[test]
    fn every_baseline_has_a_budget_whose_values_it_takes() {
        for info in crate::baselines() {
            let budget = info.traits.budget.unwrap();
            let policy = crate::parse_policy(info.name).unwrap().base;
            for value in [budget.low, budget.high] {
                policy.with(budget.name, &budget.scale.text(value)).unwrap();
            }
        }
    }
}
