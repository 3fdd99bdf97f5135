use crate::cost::WorkOf;
use crate::parameter::Parameters;
use crate::policies::{
    blasst, certified, flex, full, h2o, h2o_chunk, log_stride, quest, snapkv, streaming, tri_shape, twilight,
    vertical_slash, xattention,
};
use crate::{ParameterInfo, Phase, PolicyError, PolicySpec, SparsePolicy};

/// A policy that can be chosen.
#[derive(Debug, Clone, Copy)]
pub struct PolicyInfo {
    /// The name in a [`PolicySpec`].
    pub name: &'static str,
    /// Whether it chooses for prompt tokens.
    pub supports_prefill: bool,
    /// Whether it chooses for generated tokens.
    pub supports_decode: bool,
    /// Which facts it promises to find, wherever they stand.
    pub recall: Recall,
    /// What it saves: compute, traffic, memory, or nothing.
    pub saves: &'static str,
    /// Where the method comes from.
    pub source: &'static str,
    /// Its parameters.
    pub parameters: &'static [ParameterInfo],
    /// What it asks of the chunk length (`-ub`), where it matters.
    pub(crate) chunk: Option<ChunkNeed>,
    /// The work it makes of a chunk; `None` where selecting costs next to nothing, so that it is never slower.
    pub(crate) work: Option<WorkOf>,
    /// Bytes that one of it holds for each token of the sequence, by the elements of a key.
    pub(crate) stored_bytes: fn(&Parameters, usize) -> f64,
    pub(crate) build: fn(&Parameters) -> Box<dyn SparsePolicy>,
}

/// The questions for which a policy finds what answers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recall {
    /// None for certain: some keys are let go of, or chosen by where they stand.
    None,
    /// Those at the end of a prompt. What is read of it is chosen among all keys, and its last queries choose best: a question
    /// in mid-text may miss its answer.
    AtTheEnd,
    /// All: every query chooses among all keys by what they hold.
    Anywhere,
}

/// What a policy asks of the chunk length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkNeed {
    /// The length it was made for.
    pub(crate) preferred: usize,
    /// Chunks must be longer than this.
    pub(crate) above: fn(&Parameters) -> usize,
    /// Whether it attends in two phases.
    pub(crate) two_phases: bool,
}

impl ChunkNeed {
    /// For estimates that look at a chunk's last queries alone: fewer chunks cost less of them.
    pub(crate) const LONG: Self = Self {
        preferred: 1024,
        above: |_| 0,
        two_phases: false,
    };
}

static CATALOGUE: [PolicyInfo; 14] = [
    full::INFO,
    streaming::INFO,
    tri_shape::INFO,
    log_stride::INFO,
    h2o_chunk::INFO,
    vertical_slash::INFO,
    flex::INFO,
    xattention::INFO,
    blasst::INFO,
    quest::INFO,
    twilight::INFO,
    certified::INFO,
    h2o::INFO,
    snapkv::INFO,
];

impl PolicyInfo {
    /// A policy from outside the catalogue, for [`PolicySpec::parse_among`]: for both phases, of any chunk length, never
    /// guarded, with no memory of its own in the plan.
    pub const fn outside(
        name: &'static str,
        source: &'static str,
        parameters: &'static [ParameterInfo],
        build: fn(&Parameters) -> Box<dyn SparsePolicy>,
    ) -> Self {
        Self {
            name,
            supports_prefill: true,
            supports_decode: true,
            recall: Recall::None,
            saves: "nothing",
            source,
            parameters,
            chunk: None,
            work: None,
            stored_bytes: |_, _| 0.0,
            build,
        }
    }

    /// Whether it chooses in this phase.
    pub fn supports(&self, phase: Phase) -> bool {
        match phase {
            Phase::Prefill => self.supports_prefill,
            Phase::Decode => self.supports_decode,
        }
    }
}

/// Names are unique.
impl PartialEq for PolicyInfo {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Every policy that can be chosen.
pub fn catalogue() -> &'static [PolicyInfo] {
    &CATALOGUE
}

/// Makes the policy that `spec` names, for one KV head of one layer, one sequence and one phase.
///
/// # Errors
/// [`PolicyError::UnsupportedPhase`].
pub fn build(spec: &PolicySpec, phase: Phase) -> Result<Box<dyn SparsePolicy>, PolicyError> {
    check_phase(spec.info(), phase)?;
    Ok((spec.info().build)(spec.parameters()))
}

/// Refuses a policy that does not choose in this phase.
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
