//! Properties of policies, as data.

use crate::{BudgetParameter, ChunkSize, ChunkWork, Parameters};

/// Properties of a policy by which callers decide without asking the policy itself.
///
/// An entry of the catalogue names what sets its policy apart and takes the rest from [`Traits::PLAIN`]. A policy from another
/// crate starts from a constant and changes it with the `with_` functions, in a `static`:
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
    /// True if it selects for prompt tokens.
    pub prefill: bool,
    /// True if it selects for generated tokens.
    pub decode: bool,
    /// True if every query reads every token: the baseline of all comparisons.
    pub dense: bool,
    /// Which facts it promises to find.
    pub recall: Recall,
    /// Which keys it looks at.
    pub keys: KeyUse,
    /// The estimate that callers can compute for it, where the keys lie.
    pub estimate: Option<EstimateKind>,
    /// True if a chunk is attended to in two phases: first every chunk of a logical batch to itself, all at once, then
    /// chunk by chunk to what the policy selects.
    pub two_phases: bool,
    /// True if it learns from attention mass ([`Learn`](crate::Learn)).
    pub learns: bool,
    /// True if it evicts tokens for good ([`Evict`](crate::Evict)).
    pub evicts: bool,
    /// True if it has state that a session stores ([`Persist`](crate::Persist)).
    pub persists: bool,
    /// True if its selections follow from keys and the queries at hand. Then keys that another sequence with the same
    /// beginning computed serve as well, and a decode policy selects the same for a token whether the token is generated
    /// alone, beside other sequences, or drafted and verified with others. False for a policy that learns from queries
    /// which are over.
    pub follows_from_keys: bool,
    /// True if its selections depend on where chunks and tiles begin and end: then another chunk length, another page length, or
    /// a prompt that is read in two parts may give another answer.
    pub depends_on_chunks: bool,
    /// True if automatic choice may move a head to it.
    pub automatic: bool,
    /// Chunk length that it needs, if it depends on one.
    pub chunk: Option<ChunkNeed>,
    /// Tokens in the blocks whose means it reads, where it reads any.
    pub summary_tokens: fn(&Parameters) -> Option<usize>,
    /// The work it makes of a chunk. `None`, or work without an estimate, where it is never slower than reading
    /// everything: then short sequences need no guard.
    pub work: Option<fn(&Parameters, &ChunkSize) -> ChunkWork>,
    /// Bytes that it holds for each token of the sequence, by the elements of a key.
    pub stored_bytes: fn(&Parameters, usize) -> f64,
    /// The parameter that decides how much it reads, where one does.
    pub budget: Option<BudgetParameter>,
}

/// The questions for which a policy finds what answers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recall {
    /// None for certain: it evicts keys, or selects by position.
    None,
    /// Questions at the end of a prompt. It selects among all keys, but by the last queries of a chunk: a question in the
    /// middle may miss its answer.
    AtTheEnd,
    /// Questions about facts that look unlike the rest of the text. It ranks blocks by a bound on their keys, which may
    /// pass over one of many facts that look alike.
    Distinct,
    /// All: every query selects among all keys by their content.
    Anywhere,
}

/// Which keys a policy looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyUse {
    /// None: it selects by positions or by mass.
    Unread,
    /// Each key once: it keeps summaries ([`Summarize`](crate::Summarize)).
    Summarized,
    /// The keys of the whole sequence, chunk after chunk: they are best kept near.
    Scanned,
}

/// The kinds of [`Estimate`](crate::Estimate).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EstimateKind {
    /// [`Estimate::Blocks`](crate::Estimate::Blocks).
    Blocks,
    /// [`Estimate::Lines`](crate::Estimate::Lines).
    Lines,
    /// [`Estimate::Bounds`](crate::Estimate::Bounds): a caller that computes it keeps bounds of the whole sequence.
    Bounds,
}

/// Chunk length that a policy needs.
#[derive(Debug, Clone, Copy)]
pub struct ChunkNeed {
    /// The chunk length it was made for.
    pub preferred: usize,
    /// Chunks must be longer than this.
    pub above: fn(&Parameters) -> usize,
}

impl ChunkNeed {
    /// For estimates from a chunk's last queries alone: longer chunks make fewer of them.
    pub const LONG: Self = Self {
        preferred: 1024,
        above: |_| 0,
    };
}

impl Traits {
    /// A policy for both phases that selects by position and keeps nothing.
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

    /// A policy for the prompt alone.
    pub const PREFILL: Self = Self {
        decode: false,
        ..Self::PLAIN
    };

    /// A policy for generated tokens alone.
    pub const DECODE: Self = Self {
        prefill: false,
        ..Self::PLAIN
    };

    /// Sets the facts that it promises to find.
    pub const fn with_recall(mut self, recall: Recall) -> Self {
        self.recall = recall;
        self
    }

    /// Sets the keys that it looks at. [`KeyUse::Summarized`] goes with [`Summarize`](crate::Summarize).
    pub const fn with_keys(mut self, keys: KeyUse) -> Self {
        self.keys = keys;
        self
    }

    /// With learning from attention mass ([`Learn`](crate::Learn)). Its selections then depend on earlier queries.
    pub const fn with_learning(mut self) -> Self {
        self.learns = true;
        self.follows_from_keys = false;
        self.depends_on_chunks = true;
        self
    }

    /// With eviction of tokens for good ([`Evict`](crate::Evict)).
    pub const fn with_eviction(mut self) -> Self {
        self.evicts = true;
        self.follows_from_keys = false;
        self.depends_on_chunks = true;
        self
    }

    /// With selections that depend on where chunks begin and end.
    pub const fn with_chunk_dependence(mut self) -> Self {
        self.depends_on_chunks = true;
        self
    }

    /// With state that a session stores ([`Persist`](crate::Persist)).
    pub const fn with_persistence(mut self) -> Self {
        self.persists = true;
        self
    }

    /// With the work it makes of a chunk, by which short sequences are read densely.
    pub const fn with_work(mut self, work: fn(&Parameters, &ChunkSize) -> ChunkWork) -> Self {
        self.work = Some(work);
        self
    }

    /// With the bytes that it holds for each token, by the elements of a key.
    pub const fn with_stored_bytes(mut self, stored_bytes: fn(&Parameters, usize) -> f64) -> Self {
        self.stored_bytes = stored_bytes;
        self
    }

    /// With the parameter that decides how much it reads, for comparisons at an equal budget.
    pub const fn with_budget(mut self, budget: BudgetParameter) -> Self {
        self.budget = Some(budget);
        self
    }
}
