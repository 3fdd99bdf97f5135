//! Properties of policies, as data.

use crate::{BudgetParameter, ChunkSize, ChunkWork, Parameters};

/// Properties of a policy, for callers that decide without asking the policy itself.
///
/// An entry of the catalogue sets the special properties of its policy and takes the rest from [`Traits::PLAIN`]. A
/// policy from another crate starts from a constant and changes it with the `with_` functions, in a `static`:
///
/// ```
/// use riffle_policy::{BudgetParameter, KeyUse, Recall, Traits};
///
/// static TRAITS: Traits = Traits::PREFILL
///     .with_keys(KeyUse::Scanned)
///     .with_recall(Recall::Anywhere)
///     .with_budget(BudgetParameter::share("share"));
/// assert!(TRAITS.prefill && !TRAITS.decode);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Traits {
    /// True if the policy selects for prompt tokens.
    pub prefill: bool,
    /// True if the policy selects for generated tokens.
    pub decode: bool,
    /// True if every query reads every token: the baseline of all comparisons.
    pub dense: bool,
    /// The facts that the policy is sure to find.
    pub recall: Recall,
    /// The keys that the policy reads.
    pub keys: KeyUse,
    /// The estimate that callers can compute for the policy, on the device that holds the keys.
    pub estimate: Option<EstimateKind>,
    /// True for attention in two phases: first every chunk of a logical batch attends to itself, all at once; then,
    /// chunk by chunk, to the policy's selection.
    pub two_phases: bool,
    /// True if the policy learns from attention mass ([`Learn`](crate::Learn)).
    pub learns: bool,
    /// True if the policy evicts tokens permanently ([`Evict`](crate::Evict)).
    pub evicts: bool,
    /// True if the policy has state that a session stores ([`Persist`](crate::Persist)).
    pub persists: bool,
    /// True if selections depend only on keys and current queries. Such a policy can reuse keys of another sequence
    /// with the same beginning. In decode it selects the same tokens whether a token is generated alone, beside other
    /// sequences, or drafted and verified. False for a policy that learns from earlier queries.
    pub follows_from_keys: bool,
    /// True if selections depend on the boundaries of chunks and tiles. Another chunk length, another page length, or a
    /// prompt read in two parts may then change the answer.
    pub depends_on_chunks: bool,
    /// True if automatic choice may assign the policy to a head.
    pub automatic: bool,
    /// Required chunk length, if the policy depends on one.
    pub chunk: Option<ChunkNeed>,
    /// Tokens per block, if the policy reads the means of all blocks of which a query reads nothing. The caller adds
    /// these blocks to its selections ([`Policy::select`](crate::Policy::select)).
    pub summary_tokens: fn(&Parameters) -> Option<usize>,
    /// The work for a chunk. `None`, or work without an estimate, means that the policy is never slower than reading
    /// everything. Short sequences then need no guard.
    pub work: Option<fn(&Parameters, &ChunkSize) -> ChunkWork>,
    /// Bytes that the policy stores for each token, given the elements of a key.
    pub stored_bytes: fn(&Parameters, usize) -> f64,
    /// The parameter that decides how much the policy reads, if there is one.
    pub budget: Option<BudgetParameter>,
}

/// The questions for which a policy finds the answering tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recall {
    /// No fact is sure to be found: the policy evicts keys, or selects by position.
    None,
    /// Questions at the end of a prompt. The policy selects among all keys, but by the last queries of a chunk: a
    /// question in the middle may miss its answer.
    AtTheEnd,
    /// Questions about distinctive facts. The policy ranks blocks by a bound on their keys, which may miss one of
    /// many similar facts.
    Distinct,
    /// All questions. Every query selects among all keys by their content.
    Anywhere,
}

/// The keys that a policy reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyUse {
    /// No keys: the policy selects by positions or by mass.
    Unread,
    /// Each key once: the policy keeps summaries ([`Summarize`](crate::Summarize)).
    Summarized,
    /// Each key once, for the index of signs that the caller keeps ([`SelectContext::signs`](crate::SelectContext)).
    Indexed,
    /// The keys of the whole sequence, chunk after chunk: they should stay near.
    Scanned,
}

/// The kinds of [`Estimate`](crate::Estimate).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EstimateKind {
    /// [`Estimate::Blocks`](crate::Estimate::Blocks).
    Blocks,
    /// [`Estimate::Lines`](crate::Estimate::Lines).
    Lines,
    /// [`Estimate::Bounds`](crate::Estimate::Bounds): a caller that computes it stores bounds of the whole sequence.
    Bounds,
}

/// Chunk length that a policy needs.
#[derive(Debug, Clone, Copy)]
pub struct ChunkNeed {
    /// Chunk length of the policy's design.
    pub preferred: usize,
    /// Chunks must be longer than this.
    pub above: fn(&Parameters) -> usize,
}

impl ChunkNeed {
    /// Need of estimates from a chunk's last queries alone: longer chunks need fewer estimates.
    pub const LONG: Self = Self {
        preferred: 1024,
        above: |_| 0,
    };
}

impl Traits {
    /// A policy for both phases that selects by position and stores nothing.
    pub const PLAIN: Self = Self {
        prefill: true,
        decode: true,
        dense: false,
        recall: Recall::None,
        keys: KeyUse::Unread,
        estimate: None,
        two_phases: false,
        learns: false,
        evicts: false,
        persists: false,
        follows_from_keys: true,
        depends_on_chunks: false,
        automatic: false,
        chunk: None,
        summary_tokens: |_| None,
        work: None,
        stored_bytes: |_, _| 0.0,
        budget: None,
    };

    /// A policy for prompts only.
    pub const PREFILL: Self = Self {
        decode: false,
        ..Self::PLAIN
    };

    /// A policy for generated tokens only.
    pub const DECODE: Self = Self {
        prefill: false,
        ..Self::PLAIN
    };

    /// Sets the facts that the policy promises to find.
    pub const fn with_recall(mut self, recall: Recall) -> Self {
        self.recall = recall;
        self
    }

    /// Sets the keys that the policy reads. [`KeyUse::Summarized`] requires [`Summarize`](crate::Summarize).
    pub const fn with_keys(mut self, keys: KeyUse) -> Self {
        self.keys = keys;
        self
    }

    /// Adds learning from attention mass ([`Learn`](crate::Learn)). Its selections then depend on earlier queries.
    pub const fn with_learning(mut self) -> Self {
        self.learns = true;
        self.follows_from_keys = false;
        self.depends_on_chunks = true;
        self
    }

    /// Adds permanent eviction of tokens ([`Evict`](crate::Evict)).
    pub const fn with_eviction(mut self) -> Self {
        self.evicts = true;
        self.follows_from_keys = false;
        self.depends_on_chunks = true;
        self
    }

    /// Makes selections depend on chunk boundaries.
    pub const fn with_chunk_dependence(mut self) -> Self {
        self.depends_on_chunks = true;
        self
    }

    /// Adds state that a session stores ([`Persist`](crate::Persist)).
    pub const fn with_persistence(mut self) -> Self {
        self.persists = true;
        self
    }

    /// Sets the work for a chunk, which decides up to which length sequences are read densely.
    pub const fn with_work(mut self, work: fn(&Parameters, &ChunkSize) -> ChunkWork) -> Self {
        self.work = Some(work);
        self
    }

    /// Sets the bytes that the policy stores for each token, given the elements of a key.
    pub const fn with_stored_bytes(mut self, stored_bytes: fn(&Parameters, usize) -> f64) -> Self {
        self.stored_bytes = stored_bytes;
        self
    }

    /// Sets the parameter that decides how much the policy reads, for comparisons at an equal budget.
    pub const fn with_budget(mut self, budget: BudgetParameter) -> Self {
        self.budget = Some(budget);
        self
    }
}
