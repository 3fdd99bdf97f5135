//! Limits for chat templates of unknown authors.
//!
//! Time: a render executes at most [`STEPS`] instructions. Each operation whose work grows with its operands also pays
//! from the byte budget *before* it starts. One instruction therefore never does more work than the budget allows.
//!
//! Memory: all values of a template are paid for from the same budget, [`BASE_BYTES`] plus [`BYTES_PER_INPUT_BYTE`]
//! for every byte of messages and variables. Budgets are never refunded, so a render uses at most its budget: 48 MiB
//! for a short chat, 48 MiB + 32 × 4 MB = 178 MB for a prompt of a million tokens.
//!
//! Stack: [`STACK_BYTES`] suffice for the deepest recursion within the other limits. Compiling recurses once for
//! every operator of one tag ([`TAG_TOKENS`]) and every `elif` ([`BRANCHES`]): 64 MiB / (2,048 + 1,024) are 21 KiB
//! per level. Lists and maps nest at most [`DEPTH`] deep when they are built, printed or compared. Contents of a
//! namespace within them count only for the last two. The template engine limits nested tags, parentheses and macros.

/// Bytes of a template's source. The longest of 72 published templates has 17 KB.
pub(super) const SOURCE_BYTES: usize = 256 << 10;

/// Words and signs between `{{` and `}}` or `{%` and `%}`; a quoted text counts as one.
pub(super) const TAG_TOKENS: usize = 2048;

/// Occurrences of `elif` in a template.
pub(super) const BRANCHES: usize = 1024;

/// Lists and maps within lists and maps.
pub(super) const DEPTH: usize = 64;

/// Instructions of a render: about 300 per message, so 30,000 messages.
pub(super) const STEPS: u64 = 10_000_000;

/// Bytes that a render may write and copy for any input.
pub(super) const BASE_BYTES: u64 = 48 << 20;

/// Additional bytes per byte of messages and variables. Templates copy a message about ten times.
pub(super) const BYTES_PER_INPUT_BYTE: u64 = 32;

/// Address space for the stack of a compiling or rendering thread; only used pages take memory.
pub(super) const STACK_BYTES: usize = 64 << 20;

/// Characters of a template's own message in an error.
pub(super) const MESSAGE_CHARACTERS: usize = 300;

/// A limit of [`ChatTemplate`](crate::ChatTemplate) that a template exceeded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateLimit {
    /// The source is too long.
    #[error("its source has {bytes} bytes, at most {limit} are allowed")]
    SourceBytes {
        /// Bytes of the source.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// One tag has too many words and signs.
    #[error("the tag at line {line} has more than {limit} words and signs")]
    TagTokens {
        /// Line of the template, from 1.
        line: usize,
        /// Words and signs allowed.
        limit: usize,
    },
    /// The source has too many branches.
    #[error("it has more than {limit} elif branches")]
    Branches {
        /// Branches allowed.
        limit: usize,
    },
    /// A list or map is nested too deeply.
    #[error("its lists and maps nest more than {limit} deep")]
    Depth {
        /// Levels allowed.
        limit: usize,
    },
    /// Rendering takes too many instructions.
    #[error("rendering takes more than {limit} steps")]
    Steps {
        /// Instructions allowed.
        limit: u64,
    },
    /// Rendering writes, copies or compares too much.
    #[error("rendering writes and copies more than {limit} bytes")]
    Bytes {
        /// Bytes allowed for these messages.
        limit: u64,
    },
    /// A filter, function or method got too large a number or text.
    #[error("{function} was given {found}, at most {limit} is allowed")]
    Argument {
        /// The filter, function or method.
        function: String,
        /// The number given.
        found: u64,
        /// The number allowed.
        limit: u64,
    },
}
