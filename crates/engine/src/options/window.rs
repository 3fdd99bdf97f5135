//! Options of an endless sequence: attention sinks and a window of the latest tokens.

use riffle_policy::PolicyRules;

use crate::error::require;
use crate::{EngineError, EngineOptions};

/// The tokens that an endless sequence keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamWindow {
    /// Number of latest tokens that a query reads, including itself.
    pub window_tokens: usize,
    /// First tokens of the sequence, which every query reads.
    pub sink_tokens: usize,
}

impl StreamWindow {
    /// Number of tokens read before the first page is dropped.
    pub(crate) fn whole_tokens(&self, page_tokens: usize) -> usize {
        let sink_pages = self.sink_tokens.div_ceil(page_tokens);
        (self.window_tokens + (sink_pages + 1) * page_tokens).saturating_sub(2)
    }
}

impl EngineOptions {
    /// Sets the options of an endless sequence: its policies, and a context for the window, the sinks and a chunk.
    ///
    /// # Errors
    /// [`EngineError::Option`] for a window without tokens.
    pub fn with_window(mut self, window: StreamWindow) -> Result<Self, EngineError> {
        let StreamWindow {
            window_tokens,
            sink_tokens,
        } = window;
        let fits = (1..=1 << 32).contains(&window_tokens) && sink_tokens <= 1 << 32;
        let requirement = "window and sinks must be at most 4294967296 tokens, the window at least 1";
        let given = format!("{window_tokens} with `sink_tokens={sink_tokens}`");
        require(fits, "window_tokens", given, requirement)?;
        let spec = format!("streaming:sinks={sink_tokens},window={window_tokens},from=0");
        let rules: PolicyRules = spec.parse()?;
        self.sequence.prefill = rules.clone();
        self.sequence.decode = rules;
        self.sequence.auto_target = None;
        // Pages are freed between batches.
        self.machine.batch_tokens = self.machine.chunk_tokens;
        let page = self.cache.page_tokens.max(1);
        let moving = window_tokens + page + self.machine.batch_tokens;
        self.model.context_tokens = Some((sink_tokens.div_ceil(page) + moving.div_ceil(page)) * page);
        self.sequence.window = Some(window);
        Ok(self)
    }
}
