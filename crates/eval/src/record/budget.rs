//! Budgets of policies: the requested share of pairs, the fit, and the reason for a miss.

use serde::{Deserialize, Serialize};

use super::{ComparisonRow, PerplexityRow};
use crate::numbers::percent;

/// A budget is met if the share of read pairs differs from it by at most this part.
const TOLERANCE: f64 = 0.1;

/// How a policy was fitted to its budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BudgetFit {
    /// Fitted parameter with its value, such as `window=40`.
    pub parameter: String,
    /// Share of pairs that the policy reads with this value, on the text of the fit.
    pub density: f64,
    /// True if some values read more of that text than the budget and others read less.
    pub reaches: bool,
}

/// The direction in which a share misses its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BudgetMiss {
    /// More pairs were read than the budget allows.
    Over,
    /// Fewer pairs were read.
    Under,
}

impl BudgetMiss {
    /// The miss of a share; `None` if it meets its budget, or has none.
    pub(crate) fn of(budget: Option<f64>, density: f64) -> Option<Self> {
        let budget = budget?;
        if (density - budget).abs() <= TOLERANCE * budget {
            None
        } else if density > budget {
            Some(Self::Over)
        } else {
            Some(Self::Under)
        }
    }

    /// Sign at a share in tables and pictures.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Self::Over => "▲",
            Self::Under => "▼",
        }
    }

    /// Reason for the miss, as text; `budget` is the requested share.
    pub(crate) fn reason(self, budget: f64, fit: Option<&BudgetFit>) -> String {
        let Some(fit) = fit else {
            return "the record does not say how it was fitted".to_owned();
        };
        let (name, _) = fit.parameter.split_once('=').unwrap_or((&fit.parameter, ""));
        let (asked, fitted) = (percent(budget), percent(fit.density));
        match Self::of(Some(budget), fit.density) {
            None => format!("fitted to {fitted} of a text, it reads another share of these prompts"),
            Some(Self::Over) if !fit.reaches => format!("no value of {name} reads less than about {fitted} of a text"),
            Some(Self::Under) if !fit.reaches => {
                format!("no value of {name} reads more than about {fitted} of a text")
            }
            Some(_) => format!("the value of {name} that comes closest to {asked} reads {fitted} of a text"),
        }
    }
}

/// True if the share meets its budget; `None` without a budget.
pub(crate) fn keeps(budget: Option<f64>, density: f64) -> Option<bool> {
    budget.map(|_| BudgetMiss::of(budget, density).is_none())
}

impl ComparisonRow {
    /// The policy in its phase with fitted parameters.
    pub(crate) fn as_run(&self) -> &str {
        match &*self.phase {
            "decode" => &self.settings.decode,
            _ => &self.settings.prefill,
        }
    }

    pub(crate) fn miss(&self) -> Option<BudgetMiss> {
        BudgetMiss::of(self.budget, self.density)
    }
}

impl PerplexityRow {
    /// The row with its budget, if its policy was fitted.
    pub(crate) fn under_budget(self, budget: Option<f64>, fit: Option<BudgetFit>) -> Self {
        let budget = budget.filter(|_| fit.is_some());
        Self {
            budget,
            budget_kept: keeps(budget, self.density),
            fit,
            ..self
        }
    }

    pub(crate) fn miss(&self) -> Option<BudgetMiss> {
        BudgetMiss::of(self.budget, self.density)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(density: f64, reaches: bool) -> BudgetFit {
        BudgetFit {
            parameter: "window=40".to_owned(),
            density,
            reaches,
        }
    }

    #[test]
    fn a_tenth_beside_the_budget_keeps_it() {
        for (density, kept) in [(0.2, true), (0.219, true), (0.181, true), (0.23, false), (0.17, false)] {
            assert_eq!(keeps(Some(0.2), density), Some(kept), "{density}");
        }
        assert_eq!(keeps(None, 0.5), None);
    }

    #[test]
    fn a_miss_says_whether_the_policy_or_the_prompts_cause_it() {
        let over = BudgetMiss::of(Some(0.2), 0.5).unwrap();
        assert_eq!((over, over.sign()), (BudgetMiss::Over, "▲"));
        for (fit, part) in [
            (fit(0.5, false), "no value of window reads less than about 50%"),
            (fit(0.1, false), "no value of window reads more than about 10%"),
            (fit(0.21, true), "fitted to 21% of a text"),
            (fit(0.3, true), "comes closest to 20% reads 30%"),
        ] {
            let reason = over.reason(0.2, Some(&fit));
            assert!(reason.contains(part), "{reason}");
        }
        assert!(over.reason(0.2, None).contains("does not say"));
    }
}
