//! Drops pages of a sequence: evicted tokens, sliding layers, and the window of an endless sequence.

use crate::attention::{AttentionState, Position, Slot, rotate, rotated_widths};
use crate::{Engine, EngineError, Failure, Sequence};

/// Tokens whose keys are rotated at a time.
const TURNED_TOKENS: usize = 1024;

/// A layer with keys: its index in the model and in the cache.
type LayerNumbers = (usize, usize);

impl Sequence {
    /// Frees the pages that the decode policies will not read again.
    ///
    /// # Errors
    /// A page that is unreadable or unwritable: the whole sequence must be read again.
    pub(crate) fn evict(&mut self) -> Result<(), Box<Failure>> {
        let tokens = self.text.tokens.len();
        // No policy acts on a layer with a window.
        for (_, layer) in self.setting.engine.whole_layers() {
            if let Err(error) = self.attention.evict(layer, tokens) {
                return Err(failure(error.into(), self.forget_all()));
            }
        }
        Ok(())
    }

    /// Frees the pages before an endless window and ensures positions for `batch` tokens.
    ///
    /// # Errors
    /// Keys that cannot be rotated: if others already were, the whole sequence must be read again.
    pub(crate) fn roll(&mut self, batch: usize) -> Result<(), Box<Failure>> {
        let Some(window) = self.setting.options.window else {
            return Ok(());
        };
        let (engine, tokens) = (&self.setting.engine, self.text.tokens.len());
        let page = engine.options().cache.page_tokens;
        let sink_pages = window.sink_tokens.div_ceil(page);
        let Slot(next) = self.attention.rolling.slot(tokens);
        let window_page = (next + 1).saturating_sub(window.window_tokens) / page;
        let pages = window_page.saturating_sub(sink_pages);
        if pages > 0 {
            let kept = keep_sinks(engine, &mut self.attention, window.sink_tokens);
            kept.map_err(|error| failure(error, Vec::new()))?;
            self.attention.cache.remove_pages(sink_pages, pages);
            self.attention.rolling.drop_tokens(pages * page, tokens);
        }
        let most = engine.model().config().max_position;
        let Position(position) = self.attention.rolling.position(tokens);
        let turns_back = self.attention.rolling.offset > 0 && position + batch > most;
        if pages == 0 && !turns_back {
            return Ok(());
        }
        let turned = if turns_back {
            let Slot(end) = self.attention.rolling.slot(tokens);
            turn_window_back(engine, &mut self.attention, sink_pages * page..end)
        } else {
            Ok(())
        };
        if let Err(error) = turned.and_then(|()| place_sinks(engine, &mut self.attention)) {
            return Err(failure(error, self.forget_all()));
        }
        // Keys have moved or were rotated: copies on a device and indexes are outdated.
        self.attention.reader.truncate(0);
        self.attention.signs.truncate(0);
        self.attention.pair_scores.truncate(0);
        Ok(())
    }
}

fn failure(error: EngineError, again: Vec<u32>) -> Box<Failure> {
    Box::new(Failure { error, again })
}

/// Stores the keys of the sinks at their original positions.
fn keep_sinks(engine: &Engine, attention: &mut AttentionState, tokens: usize) -> Result<(), EngineError> {
    if attention.rolling.sinks.is_empty() && tokens > 0 {
        let layers = 0..attention.cache.shape().layers.count();
        let sinks = layers.map(|layer| read_turnable(engine, attention, layer, (0, tokens)));
        attention.rolling.sinks = sinks.collect::<Result<_, EngineError>>()?;
    }
    Ok(())
}

/// Rotates the sinks from their original positions to those before the window.
fn place_sinks(engine: &Engine, attention: &mut AttentionState) -> Result<(), EngineError> {
    for layer in attention_layers(engine) {
        if let Some(sinks) = attention.rolling.sinks.get(layer.1) {
            let turned = [0, attention.rolling.offset].map(Position);
            write_turned(engine, attention, layer, Slot(0), (sinks.clone(), turned))?;
        }
    }
    Ok(())
}

/// Rotates the keys in `slots` so that positions equal slots again.
fn turn_window_back(
    engine: &Engine,
    attention: &mut AttentionState,
    slots: std::ops::Range<usize>,
) -> Result<(), EngineError> {
    let offset = attention.rolling.offset;
    for layer in attention_layers(engine) {
        for slot in slots.clone().step_by(TURNED_TOKENS) {
            let tokens = TURNED_TOKENS.min(slots.end - slot);
            let keys = read_turnable(engine, attention, layer.1, (slot, tokens))?;
            let turned = [slot + offset, slot].map(Position);
            write_turned(engine, attention, layer, Slot(slot), (keys, turned))?;
        }
    }
    attention.rolling.offset = 0;
    Ok(())
}

/// Keys of `tokens` tokens of a cache layer in the model's form, from a slot on.
fn read_turnable(
    engine: &Engine,
    attention: &AttentionState,
    cache_layer: usize,
    (slot, tokens): (usize, usize),
) -> Result<Vec<f32>, EngineError> {
    let mut keys = attention.cache.read_keys(cache_layer, slot, tokens)?;
    if engine.resolved.rotation.keys {
        rotate(
            &mut keys,
            rotated_widths(&attention.cache.shape().layer(cache_layer))[0],
        );
    }
    Ok(keys)
}

/// Writes keys from a slot on, rotated from one position to another.
fn write_turned(
    engine: &Engine,
    attention: &mut AttentionState,
    (layer, cache_layer): LayerNumbers,
    Slot(slot): Slot,
    (mut keys, [Position(from), Position(to)]): (Vec<f32>, [Position; 2]),
) -> Result<(), EngineError> {
    engine
        .model()
        .move_keys(layer, &mut keys, from, to, engine.model().config().max_position);
    if engine.resolved.rotation.keys {
        rotate(
            &mut keys,
            rotated_widths(&attention.cache.shape().layer(cache_layer))[0],
        );
    }
    Ok(attention.cache.replace_keys(cache_layer, slot, &keys)?)
}

/// The layers with keys.
fn attention_layers(engine: &Engine) -> Vec<LayerNumbers> {
    let config = engine.model().config();
    let layers = config.cached_layers().enumerate();
    layers.map(|(cached, layer)| (layer, cached)).collect()
}
