use core::fmt;

/// Rounding of activations for products with float weights. Quantised formats always round activations to 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// Activations stay f32.
    #[default]
    Exact,
    /// Rounds activations to bfloat16 for bf16 weights, to nearest and ties to even: a step of at most 1/512 of each.
    /// Processors with an instruction for pairs of bfloat16 multiply them at twice the rate of f32. Sums stay f32.
    /// Numbers below 2^-126 may count as zero. Other formats compute as with `Exact`.
    Rounded,
}

impl Activations {
    /// Both ways of rounding.
    pub const ALL: &[Activations] = &[Activations::Exact, Activations::Rounded];

    /// The name options use: `exact` or `rounded`.
    pub const fn name(self) -> &'static str {
        match self {
            Activations::Exact => "exact",
            Activations::Rounded => "rounded",
        }
    }
}

impl fmt::Display for Activations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
