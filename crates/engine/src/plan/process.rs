//! Bytes of the process besides weights, pages and scratch: its program, the tokenizer and the prompt's text.

use serde::Serialize;

use crate::{EngineOptions, PromptText};

/// Bytes of the program itself: its used code, the heap's own structures, and libraries.
const PROGRAM_BYTES: u64 = 16 << 20;

/// Touched bytes of the stack and the arena of a thread.
const THREAD_BYTES: u64 = 512 << 10;

/// Maximum number of bytes per token of the vocabulary while the tokenizer is built: its share of the file and of the
/// tables. Measured: 64 for a GGUF file of 262,144 tokens; 165 for a tokenizer.json of 152,000 and about 187 for one of
/// 262,144, both with one merge per token; up to 364 for a Gemma's with two merges per token.
const BUILDING_BYTES_PER_TOKEN: u64 = 384;

/// Bytes per byte of text while it is encoded: the normalised text with the origin of each byte, and the tokens with
/// theirs.
///
/// Measured: 8 to 17 for English, 64 if every byte becomes a token.
const ENCODING_BYTES_PER_BYTE: u64 = 64;

/// Bytes per token of an unknown text: more than natural text has.
const TEXT_BYTES_PER_TOKEN: u64 = 5;

/// Bytes of the process itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProcessPlan {
    /// The program, its heap and its threads.
    pub program_bytes: u64,
    /// The tokenizer during its construction.
    pub tokenizer_bytes: u64,
    /// The prompt's text during encoding, and its token ids.
    pub prompt_bytes: u64,
}

impl ProcessPlan {
    /// The process of a run with `context` tokens and a vocabulary of `vocabulary` tokens; 0 without a tokenizer.
    pub(super) fn new(options: &EngineOptions, vocabulary: usize, context: usize) -> Self {
        let threads = rayon::current_num_threads() as u64;
        let text = options.machine.prompt.unwrap_or(PromptText {
            bytes: TEXT_BYTES_PER_TOKEN * context as u64,
            prompts: 1,
        });
        let (copies, tokens) = (text.prompts.max(1) as u64, text.bytes.min(context as u64));
        let ids = copies.saturating_mul(tokens * size_of::<u32>() as u64);
        let texts = (copies + 1).saturating_mul(text.bytes);
        let encoding = text.bytes.saturating_mul(ENCODING_BYTES_PER_BYTE);
        Self {
            program_bytes: PROGRAM_BYTES + threads * THREAD_BYTES,
            tokenizer_bytes: vocabulary as u64 * BUILDING_BYTES_PER_TOKEN,
            prompt_bytes: match vocabulary {
                0 => ids,
                _ => ids.saturating_add(texts).saturating_add(encoding),
            },
        }
    }

    /// Sum of the parts.
    pub fn total_bytes(&self) -> u64 {
        let parts = [self.tokenizer_bytes, self.prompt_bytes];
        parts.into_iter().fold(self.program_bytes, u64::saturating_add)
    }
}

/// Bytes that this process may still use: the system's available memory, and at most the rest of its control group's
/// limit.
pub fn available_memory_bytes() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let free = system.available_memory();
    // Without /proc nothing is known, and `sysinfo` must not be asked for limits: use `memory_budget_bytes`.
    if system.total_memory() == 0 {
        return 0;
    }
    match system.cgroup_limits() {
        // Not `free_memory`: it counts cached files as used, such as a model that was just downloaded.
        Some(limits) if limits.total_memory > 0 => free.min(limits.total_memory.saturating_sub(limits.rss)),
        _ => free,
    }
}

/// Bytes of the longest text for which these options leave memory to encode it.
pub fn largest_text_bytes(options: &EngineOptions) -> u64 {
    let budget = options.machine.memory_budget_bytes;
    budget.unwrap_or_else(available_memory_bytes) / (ENCODING_BYTES_PER_BYTE + 2)
}
