//! Reports of a turn and of a conversation: tokens, times, memory.

use riffle_engine::{AuditReport, MemoryPlan, PairCount, StopReason};
use serde::Serialize;

/// Tokens and times of one turn.
#[derive(Debug, Clone, Serialize)]
pub struct TurnReport {
    /// Tokens of the whole conversation up to the answer.
    pub prompt_tokens: usize,
    /// Tokens read before this turn and reused.
    pub reused_tokens: usize,
    /// Reused tokens that came from disk with this message; attached documents count their own.
    pub found_tokens: usize,
    /// Tokens read for this turn.
    pub read_tokens: usize,
    /// Read tokens that earlier turns had already read: the template changed their text, or a recurrent model had to
    /// go back.
    pub again_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// The reason for the answer's end.
    pub stop: StopReason,
    /// Milliseconds from the message to the answer's first token.
    pub time_to_first_token_ms: f64,
    /// Prompt tokens per second; 0 without a read token.
    pub prefill_tokens_per_s: f64,
    /// Answer tokens per second after the first; 0 for fewer than two tokens.
    pub decode_tokens_per_s: f64,
}

/// A branch in the list of branches.
#[derive(Debug, Clone, Serialize)]
pub struct BranchReport {
    /// Name of the branch.
    pub name: String,
    /// Number of turns in the branch.
    pub turns: usize,
    /// True for the current branch.
    pub is_current: bool,
}

/// Branches, tokens, memory and policies of a conversation.
#[derive(Debug, Clone, Serialize)]
pub struct ChatReport {
    /// Branches of the conversation.
    pub branches: Vec<BranchReport>,
    /// Turns of the current branch.
    pub turns: usize,
    /// Tokens of the current branch with keys and values.
    pub tokens: usize,
    /// Tokens of the context; `None` if a window moves with the text.
    pub context_tokens: Option<usize>,
    /// The latest turn.
    pub last: Option<TurnReport>,
    /// Bytes of the current branch's KV pages in device memory.
    pub device_bytes: u64,
    /// Bytes of these pages in RAM.
    pub ram_bytes: u64,
    /// Bytes of these pages on disk.
    pub disk_bytes: u64,
    /// Bytes of these pages that other branches share.
    pub shared_bytes: u64,
    /// Pairs of query and key that attention read, and all causal pairs.
    pub pairs: PairCount,
    /// Share of exact attention that the policies kept, if an audit runs.
    pub audit: Option<AuditReport>,
    /// The policy for prompts.
    pub prefill_policy: String,
    /// The policy for answers.
    pub decode_policy: String,
    /// The memory plan of the engine.
    pub plan: MemoryPlan,
}
