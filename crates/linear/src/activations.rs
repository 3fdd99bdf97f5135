use core::fmt;

/// The rounding of activations before they meet weights that are floats. Quantised formats round them to 8 bits either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// They stay f32.
    #[default]
    Exact,
    /// For bf16 weights they are rounded to bfloat16, to the nearest and ties to even, a step of at most 1/512 of each: pairs
    /// of bfloat16 are multiplied at twice the rate of f32 where the processor has an instruction for it. Sums stay f32.
    /// Numbers below 2^-126 may count as zero. Other formats compute as with `Exact`.
    Rounded,
}

impl Activations {
    /// Both.
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
