//! Endless sequences in constant memory: attention sinks and a window of the latest tokens, after StreamingLLM, Xiao et
//! al. 2024, arXiv:2309.17453.
//!
//! Positions are places in the cache: what the model sees never grows, however long the sequence. Pages that the window
//! has left are freed, and later tokens move down in the cache. Rotary attention depends on differences alone, so the
//! keys in the window keep their angles and it is the few sinks that are turned: from where they were first written up
//! to the window, anew each time, so that rounding does not add up. Only when the angles would pass the positions that
//! the model was made for is the window turned back as a whole, and every key meets that about once at most.

use riffle_policy::PolicyRules;
use serde::{Deserialize, Serialize};

use crate::pass::rotation::rotate;
use crate::sequence::placement::{Position, Slot};
use crate::{EngineError, EngineOptions, Failure, Sequence};

/// Tokens whose keys are turned at a time.
const TURNED_TOKENS: usize = 1024;

/// What an endless sequence keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamWindow {
    /// Latest tokens that a query reads, itself included.
    pub window_tokens: usize,
    /// First tokens of the sequence, which every query reads.
    pub sink_tokens: usize,
}

/// Where an endless sequence stands.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RollingWindow {
    /// Tokens that have left the cache.
    dropped_tokens: usize,
    /// Length of the sequence when tokens left last: earlier lengths cannot be gone back to.
    since: usize,
    /// Position that the angles of the window's keys stand for, less their place in the cache.
    offset: usize,
    /// Keys of the sinks at their first positions: for each layer `[sink_tokens, kv_heads, head_dim]`.
    sinks: Vec<Vec<f32>>,
}

impl StreamWindow {
    /// Tokens of a sequence that are read before the first page leaves.
    pub(crate) fn whole_tokens(&self, page_tokens: usize) -> usize {
        let sink_pages = self.sink_tokens.div_ceil(page_tokens);
        (self.window_tokens + (sink_pages + 1) * page_tokens).saturating_sub(2)
    }
}

impl EngineOptions {
    /// The options of an endless sequence: its policies, and a context that holds the window, the sinks and a chunk.
    ///
    /// # Errors
    /// [`EngineError::Option`] for a window without tokens.
    pub fn with_window(mut self, window: StreamWindow) -> Result<Self, EngineError> {
        let StreamWindow {
            window_tokens,
            sink_tokens,
        } = window;
        if window_tokens == 0 || window_tokens > 1 << 32 || sink_tokens > 1 << 32 {
            let requirement = "window and sinks must be at most 4294967296 tokens, the window at least 1";
            let given = format!("{window_tokens} with --sink-tokens {sink_tokens}");
            return Err(EngineError::option("--window-size", given, requirement));
        }
        let spec = format!("streaming:sinks={sink_tokens},window={window_tokens},from=0");
        let rules: PolicyRules = spec.parse()?;
        self.prefill = rules.clone();
        self.decode = rules;
        self.auto_target = None;
        // Pages are freed between batches.
        self.batch_tokens = self.chunk_tokens;
        let page = self.page_tokens.max(1);
        let moving = window_tokens + page + self.batch_tokens;
        self.context_tokens = Some((sink_tokens.div_ceil(page) + moving.div_ceil(page)) * page);
        self.window = Some(window);
        Ok(self)
    }
}

impl RollingWindow {
    /// Whether the cache holds the beginning of the sequence as it was read.
    pub(crate) fn is_whole(&self) -> bool {
        self.dropped_tokens == 0
    }

    /// The slot of a token that is still to come, or that came after tokens left last.
    pub(crate) fn slot(&self, token: usize) -> Slot {
        Slot(token - self.dropped_tokens)
    }

    /// The position that such a token's key is turned to.
    pub(crate) fn position(&self, token: usize) -> Position {
        Position(token - self.dropped_tokens + self.offset)
    }

    /// Whether the sequence can go back to its first `tokens` tokens.
    pub(crate) fn reaches(&self, tokens: usize) -> bool {
        tokens >= self.since
    }
}

impl Sequence {
    /// Frees what the window has left and sees to it that `batch` tokens have positions. Where some keys could not be turned
    /// and others were, the whole sequence has to be read again.
    pub(crate) fn roll(&mut self, batch: usize) -> Result<(), Box<Failure>> {
        let Some(window) = self.options.window else {
            return Ok(());
        };
        let page = self.engine.options().page_tokens;
        let sink_pages = window.sink_tokens.div_ceil(page);
        let Slot(next) = self.placement.slot(self.tokens.len());
        let window_page = (next + 1).saturating_sub(window.window_tokens) / page;
        let pages = window_page.saturating_sub(sink_pages);
        if pages > 0 {
            let failed = |error| {
                let again = Vec::new();
                Box::new(Failure { error, again })
            };
            self.keep_sinks(window.sink_tokens).map_err(failed)?;
            self.cache.remove_pages(sink_pages, pages);
            self.placement.rolling.dropped_tokens += pages * page;
            self.placement.rolling.offset += pages * page;
            self.placement.rolling.since = self.tokens.len();
        }
        let most = self.engine.model().config().max_position;
        let turned_back =
            self.placement.rolling.offset > 0 && self.placement.position(self.tokens.len()).0 + batch > most;
        if pages > 0 || turned_back {
            let turned = match turned_back {
                true => self.turn_window_back(sink_pages * page),
                false => Ok(()),
            };
            if let Err(error) = turned.and_then(|()| self.place_sinks()) {
                let again = self.forget_all();
                return Err(Box::new(Failure { error, again }));
            }
            if let Some(pages) = &mut self.device {
                // Pages moved down and keys were turned.
                pages.truncate(0);
            }
        }
        Ok(())
    }

    fn keep_sinks(&mut self, tokens: usize) -> Result<(), EngineError> {
        if self.placement.rolling.sinks.is_empty() && tokens > 0 {
            let layers = 0..self.cache.shape().layers;
            let sinks: Result<_, EngineError> = layers.map(|layer| self.read_turnable(layer, 0, tokens)).collect();
            self.placement.rolling.sinks = sinks?;
        }
        Ok(())
    }

    /// Turns the sinks from their first positions to those before the window.
    fn place_sinks(&mut self) -> Result<(), EngineError> {
        for (layer, cache_layer) in self.attention_layers() {
            if let Some(sinks) = self.placement.rolling.sinks.get(cache_layer) {
                let keys = sinks.clone();
                let turned = [0, self.placement.rolling.offset].map(Position);
                self.write_turned([layer, cache_layer], Slot(0), keys, turned)?;
            }
        }
        Ok(())
    }

    /// Turns the keys from place `first` on so that positions are places again.
    fn turn_window_back(&mut self, first: usize) -> Result<(), EngineError> {
        let Slot(end) = self.placement.slot(self.tokens.len());
        for (layer, cache_layer) in self.attention_layers() {
            for slot in (first..end).step_by(TURNED_TOKENS) {
                let keys = self.read_turnable(cache_layer, slot, TURNED_TOKENS.min(end - slot))?;
                let turned = [slot + self.placement.rolling.offset, slot].map(Position);
                self.write_turned([layer, cache_layer], Slot(slot), keys, turned)?;
            }
        }
        self.placement.rolling.offset = 0;
        Ok(())
    }

    /// Keys of a layer as the model turned them.
    fn read_turnable(&self, cache_layer: usize, slot: usize, tokens: usize) -> Result<Vec<f32>, EngineError> {
        let mut keys = self.cache.read_keys(cache_layer, slot, tokens)?;
        if self.engine.options().rotation().keys {
            rotate(&mut keys, self.cache.shape().head_dim);
        }
        Ok(keys)
    }

    /// Writes keys from a slot on, turned from one position to another. The layer is named by its number in the model and in
    /// the cache.
    fn write_turned(
        &mut self,
        [layer, cache_layer]: [usize; 2],
        Slot(slot): Slot,
        mut keys: Vec<f32>,
        [Position(from), Position(to)]: [Position; 2],
    ) -> Result<(), EngineError> {
        let context = self.engine.rotary_context();
        self.engine.model().move_keys(layer, &mut keys, from, to, context);
        if self.engine.options().rotation().keys {
            rotate(&mut keys, self.cache.shape().head_dim);
        }
        Ok(self.cache.replace_keys(cache_layer, slot, &keys)?)
    }

    /// Layers that hold keys: their number in the model and in the cache.
    fn attention_layers(&self) -> Vec<(usize, usize)> {
        let config = self.engine.model().config();
        let layers = (0..config.layers).filter_map(|layer| Some((layer, config.cache_layer(layer)?)));
        layers.collect()
    }
}
