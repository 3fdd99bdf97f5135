//! The catalogue: every named policy.

use crate::parameter::Parameters;
use crate::policies::CATALOGUE;
use crate::{ParameterInfo, Phase, PolicyError, SparsePolicy, Traits};

/// A named policy: an entry of the [`catalogue`], or one from another crate for
/// [`PolicySpec::parse_among`](crate::PolicySpec::parse_among).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PolicyInfo {
    /// Name of the policy in a [`PolicySpec`](crate::PolicySpec), in lower case and unique.
    pub name: &'static str,
    /// Publication or project of the method.
    pub source: &'static str,
    /// Resources that the policy saves: compute, traffic, memory, or nothing.
    pub saves: &'static str,
    /// Traits of the policy.
    pub traits: Traits,
    /// Parameters of the policy.
    pub parameters: &'static [ParameterInfo],
    /// Builds the policy from the values of its parameters.
    pub build: fn(&Parameters) -> Box<dyn SparsePolicy>,
}

impl PolicyInfo {
    /// A policy from another crate, as a `static` for [`PolicySpec::parse_among`](crate::PolicySpec::parse_among).
    ///
    /// `name` is lower case and in no catalogue; `traits` start from [`Traits::PLAIN`], [`Traits::PREFILL`] or
    /// [`Traits::DECODE`]; `build` makes the policy from the values of its parameters.
    pub const fn outside(
        name: &'static str,
        traits: Traits,
        parameters: &'static [ParameterInfo],
        build: fn(&Parameters) -> Box<dyn SparsePolicy>,
    ) -> Self {
        Self {
            name,
            source: "another crate",
            saves: "compute, traffic",
            traits,
            parameters,
            build,
        }
    }

    /// Sets the source of the method, for lists and reports.
    pub const fn with_source(mut self, source: &'static str) -> Self {
        self.source = source;
        self
    }

    /// Sets the savings: `compute`, `traffic`, `memory` or `nothing`, joined by commas.
    pub const fn with_saves(mut self, saves: &'static str) -> Self {
        self.saves = saves;
        self
    }

    /// True if the policy selects in this phase.
    pub fn supports(&self, phase: Phase) -> bool {
        match phase {
            Phase::Prefill => self.traits.prefill,
            Phase::Decode => self.traits.decode,
        }
    }
}

/// Names are unique.
impl PartialEq for PolicyInfo {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Every policy of this crate.
pub fn catalogue() -> &'static [PolicyInfo] {
    &CATALOGUE
}

/// Refuses a policy without support for this phase.
pub(crate) fn check_phase(info: &PolicyInfo, phase: Phase) -> Result<(), PolicyError> {
    if info.supports(phase) {
        return Ok(());
    }
    let supported = match phase {
        Phase::Prefill => Phase::Decode,
        Phase::Decode => Phase::Prefill,
    };
    Err(PolicyError::UnsupportedPhase {
        policy: info.name,
        phase,
        supported,
    })
}

/// The policy of this name, in the catalogue or among `more`.
pub(crate) fn find(name: &str, more: &'static [PolicyInfo]) -> Result<&'static PolicyInfo, PolicyError> {
    let mut known = CATALOGUE.iter().chain(more);
    known.clone().find(|info| info.name == name).ok_or_else(|| {
        let known: Vec<&str> = known.by_ref().map(|info| info.name).collect();
        PolicyError::Unknown {
            name: name.to_owned(),
            known: known.join(", "),
        }
    })
}
