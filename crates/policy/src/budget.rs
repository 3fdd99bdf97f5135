//! The parameter of a policy that decides how much it reads.

/// The parameter that decides how much a policy reads, for a search of the value at which it reads a given share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetParameter {
    /// The parameter's name.
    pub name: &'static str,
    /// The lowest value to try.
    pub low: f64,
    /// The highest value to try; infinite where the length of the context limits it.
    pub high: f64,
    /// How values are spread.
    pub scale: BudgetScale,
    /// True if a higher value reads more.
    pub rising: bool,
}

/// How a parameter's values are spread: equal steps on this scale change what is read by about as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetScale {
    /// Evenly.
    Linear,
    /// By the logarithm.
    Logarithm,
    /// By the logarithm, in whole numbers.
    Whole,
    /// By the logarithm of what is missing to 1.
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

    /// A number that reads less the higher it is.
    pub const fn falling(name: &'static str, low: f64, high: f64) -> Self {
        Self {
            name,
            low,
            high,
            scale: BudgetScale::Logarithm,
            rising: false,
        }
    }

    /// The same for contexts of so many tokens: the highest value is finite.
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
    /// The value half-way between two.
    pub fn middle(self, low: f64, high: f64) -> f64 {
        match self {
            Self::Linear => f64::midpoint(low, high),
            Self::Logarithm => (low * high).sqrt(),
            Self::Whole => (low * high).sqrt().round(),
            Self::LeftOut => 1.0 - ((1.0 - low) * (1.0 - high)).sqrt(),
        }
    }

    /// The value as a [`PolicySpec`](crate::PolicySpec) spells it.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Whole => format!("{value:.0}"),
            _ => format!("{value:.6}"),
        }
    }
}
