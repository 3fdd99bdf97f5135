//! The parameter that decides how much a policy reads.

/// The parameter that decides how much a policy reads. A search adjusts it until the policy reads a given share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetParameter {
    /// The parameter's name.
    pub name: &'static str,
    /// The lowest value to try.
    pub low: f64,
    /// The highest value to try; infinite if the context length limits it.
    pub high: f64,
    /// Scale of the values.
    pub scale: BudgetScale,
    /// True if a higher value reads more.
    pub rising: bool,
}

/// The scale of a parameter: equal steps on it change the amount read by similar factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetScale {
    /// Steps are even.
    Linear,
    /// Steps follow the logarithm of the value.
    Logarithm,
    /// Steps follow the logarithm of the value, in integers.
    Whole,
    /// Steps follow the logarithm of the distance from 1.
    LeftOut,
}

impl BudgetParameter {
    /// A number of tokens, from `low` to the length of the context.
    pub const fn tokens(name: &'static str, low: f64) -> Self {
        Self {
            name,
            low,
            high: f64::INFINITY,
            scale: BudgetScale::Whole,
            rising: true,
        }
    }

    /// A share of the tokens.
    pub const fn share(name: &'static str) -> Self {
        Self {
            name,
            low: 0.0,
            high: 1.0,
            scale: BudgetScale::Linear,
            rising: true,
        }
    }

    /// A share of the attention mass.
    pub const fn mass(name: &'static str) -> Self {
        Self {
            high: 1.0 - 1e-6,
            scale: BudgetScale::LeftOut,
            ..Self::share(name)
        }
    }

    /// A number for which higher values read less.
    pub const fn falling(name: &'static str, low: f64, high: f64) -> Self {
        Self {
            name,
            low,
            high,
            scale: BudgetScale::Logarithm,
            rising: false,
        }
    }

    /// The parameter for contexts of `context_tokens`, which limit an infinite highest value.
    pub fn at(self, context_tokens: usize) -> Self {
        if self.high.is_finite() {
            self
        } else {
            Self {
                high: (context_tokens as f64).max(self.low + 1.0),
                ..self
            }
        }
    }
}

impl BudgetScale {
    /// The value half-way between two, on the scale.
    pub fn middle(self, low: f64, high: f64) -> f64 {
        match self {
            Self::Linear => f64::midpoint(low, high),
            Self::Logarithm => (low * high).sqrt(),
            Self::Whole => (low * high).sqrt().round(),
            Self::LeftOut => 1.0 - ((1.0 - low) * (1.0 - high)).sqrt(),
        }
    }

    /// The value in the spelling of a [`PolicySpec`](crate::PolicySpec).
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Whole => format!("{value:.0}"),
            _ => format!("{value:.6}"),
        }
    }
}
