//! Reports of a turn and of a conversation: tokens, times, memory.

use riffle_engine::{AuditReport, MemoryPlan, PairCount, StopReason};
use serde::Serialize;

/// Tokens and times of one turn.
#[derive(Debug, Clone, Serialize)]
pub struct TurnReport {
    /// Tokens of the whole conversation up to the answer.
    pub prompt_tokens: usize,
    /// How many of them were read before this turn and not again.
    pub reused_tokens: usize,
    /// How many of those came from disk with this turn's message; documents that were attached before it brought theirs.
    pub found_tokens: usize,
    /// How many were read for this turn.
    pub read_tokens: usize,
    /// How many of those had been read for earlier turns: the template changed their text, or a recurrent model had to go back.
    pub again_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Why the answer ended.
    pub stop: StopReason,
    /// Milliseconds from the message to the answer's first token.
    pub time_to_first_token_ms: f64,
    /// Tokens read a second; 0 when none was.
    pub prefill_tokens_per_s: f64,
    /// Tokens written a second after the first; 0 when fewer than two were.
    pub decode_tokens_per_s: f64,
}

/// A branch beside others.
#[derive(Debug, Clone, Serialize)]
pub struct BranchReport {
    /// Its name.
    pub name: String,
    /// Its turns.
    pub turns: usize,
    /// True if it is the one that goes on.
    pub is_current: bool,
}

/// Branches, tokens, memory and policies of a conversation.
#[derive(Debug, Clone, Serialize)]
pub struct ChatReport {
    /// Its branches.
    pub branches: Vec<BranchReport>,
    /// Turns of the current branch.
    pub turns: usize,
    /// Tokens whose keys and values the current branch holds.
    pub tokens: usize,
    /// Tokens that the context holds; `None` where a window moves with the text.
    pub context_tokens: Option<usize>,
    /// The latest turn.
    pub last: Option<TurnReport>,
    /// Bytes of the current branch's KV pages in device memory.
    pub device_bytes: u64,
    /// Bytes of them in RAM.
    pub ram_bytes: u64,
    /// Bytes of them on disk.
    pub disk_bytes: u64,
    /// Bytes of them that other branches hold as well.
    pub shared_bytes: u64,
    /// Pairs of query and key that attention read, and those there are.
    pub pairs: PairCount,
    /// Share of exact attention that the policies kept, if an audit is on.
    pub audit: Option<AuditReport>,
    /// The policy for prompts.
    pub prefill_policy: String,
    /// The policy for answers.
    pub decode_policy: String,
    /// The plan it keeps to.
    pub plan: MemoryPlan,
}
