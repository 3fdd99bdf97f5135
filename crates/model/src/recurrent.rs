//! The state of recurrent layers: of fixed size whatever the context, copied to roll back to, stored as bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use riffle_linear::Columns;

use crate::recorded::Recorded;
use crate::state_shape::MemoryShape;
use crate::{Decoder, ModelConfig, ModelError, StateShape};

/// The states of the layers of one sequence, in f32: for each layer with a [`StateShape`] the last inputs of its convolution and the
/// memories of its heads. Empty for a model without such layers. All kinds have one form, in memory and as bytes.
///
/// A copy is a snapshot: [`copy_from`](Self::copy_from) restores it to the bit.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentState {
    // by layer of the model; `None` for a layer without a state
    layers: Vec<Option<LayerState>>,
}

/// One layer's part.
#[derive(Debug, Clone)]
pub(crate) struct LayerState {
    shape: StateShape,
    /// [`RecurrentLayer::version`].
    version: u64,
    /// Tokens read.
    pub(crate) tokens: usize,
    /// `[kernel - 1, channels]`, the oldest token first; zeros before the first token.
    pub(crate) convolution: Vec<f32>,
    /// `[head, column piece, row]`.
    pub(crate) memory: Vec<Columns>,
    /// Inputs since [`RecurrentState::record`], which copies do not have.
    pub(crate) recorded: Recorded,
}

impl PartialEq for LayerState {
    fn eq(&self, other: &Self) -> bool {
        // Not the version: what is held may be equal wherever it came from.
        self.shape == other.shape
            && self.tokens == other.tokens
            && self.convolution == other.convolution
            && self.memory == other.memory
    }
}

/// One layer's part of a [`RecurrentState`], for who computes the layer elsewhere than in main memory.
pub struct RecurrentLayer<'a> {
    state: &'a mut LayerState,
}

/// Before the first token.
const EMPTY: u64 = 0;

fn next_version() -> u64 {
    static LATEST: AtomicU64 = AtomicU64::new(EMPTY);
    LATEST.fetch_add(1, Ordering::Relaxed) + 1
}

impl LayerState {
    /// The state before the first token.
    pub(crate) fn new(shape: StateShape) -> LayerState {
        LayerState {
            version: EMPTY,
            tokens: 0,
            convolution: vec![0.0; shape.convolution_values()],
            memory: vec![Columns::ZERO; shape.memory().pieces()],
            recorded: Recorded::default(),
            shape,
        }
    }

    /// Takes over tokens, convolution and memories of a state of the same shape.
    pub(crate) fn copy_from(&mut self, other: &LayerState) {
        self.tokens = other.tokens;
        self.convolution.copy_from_slice(&other.convolution);
        self.memory.copy_from_slice(&other.memory);
    }
}

impl RecurrentLayer<'_> {
    /// A number that what the layer holds has alone: while it stays, so does the rest. Copies have the number of what they
    /// were copied from.
    pub fn version(&self) -> u64 {
        self.state.version
    }

    /// The last inputs of the convolution, `[kernel - 1, channels]`, the oldest token first.
    pub fn convolution(&self) -> &[f32] {
        &self.state.convolution
    }

    /// Copies the memories of the heads to `out`, `[heads, rows, columns]`: of a Gated DeltaNet `[value_heads, key_dim, value_dim]`.
    ///
    /// # Panics
    /// When `out` holds another number of values.
    pub fn copy_memory(&self, out: &mut [f32]) {
        let MemoryShape { heads, rows, columns } = self.state.shape.memory();
        assert_eq!(out.len(), heads * rows * columns, "memories of {heads} heads");
        for (at, out) in out.chunks_exact_mut(columns.max(1)).enumerate() {
            for (piece, out) in out.chunks_mut(Columns::COUNT).enumerate() {
                out.copy_from_slice(&self.state.memory[self.place(at, piece)].0[..out.len()]);
            }
        }
    }

    /// Takes over what reading `tokens` more tokens left: the convolution's inputs and the memories in the shapes of
    /// [`convolution`](Self::convolution) and [`copy_memory`](Self::copy_memory). Returns the version.
    ///
    /// # Panics
    /// When either holds another number of values.
    pub fn renew(&mut self, tokens: usize, convolution: &[f32], memory: &[f32]) -> u64 {
        self.state.convolution.copy_from_slice(convolution);
        let MemoryShape { heads, rows, columns } = self.state.shape.memory();
        assert_eq!(memory.len(), heads * rows * columns, "memories of {heads} heads");
        for (at, from) in memory.chunks_exact(columns.max(1)).enumerate() {
            for (piece, from) in from.chunks(Columns::COUNT).enumerate() {
                let place = self.place(at, piece);
                self.state.memory[place].0[..from.len()].copy_from_slice(from);
            }
        }
        self.state.tokens += tokens;
        self.state.recorded.end();
        self.state.version = next_version();
        self.state.version
    }

    /// The place in the state's memory of a piece of row `at` of all heads' rows.
    fn place(&self, at: usize, piece: usize) -> usize {
        let memory = self.state.shape.memory();
        let (head, row) = (at / memory.rows, at % memory.rows);
        head * memory.head_pieces() + piece * memory.rows + row
    }
}

impl RecurrentState {
    /// The state before the first token.
    pub fn new(config: &ModelConfig) -> RecurrentState {
        let layers = config.states.iter().map(|shape| shape.map(LayerState::new));
        RecurrentState {
            layers: layers.collect(),
        }
    }

    /// True if the model has no layers with a state, so that there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.layers.iter().all(Option::is_none)
    }

    /// The shape of each layer's state.
    fn shapes(&self) -> impl Iterator<Item = Option<StateShape>> {
        self.layers.iter().map(|layer| layer.as_ref().map(|layer| layer.shape))
    }

    /// Tokens every layer has read; `None` where layers disagree, as after a batch that failed half way, or where the
    /// state is empty.
    pub fn tokens(&self) -> Option<usize> {
        let mut tokens = self.layers.iter().flatten().map(|layer| layer.tokens);
        let first = tokens.next()?;
        tokens.all(|other| other == first).then_some(first)
    }

    /// Bytes of the state in memory and as [`to_bytes`](Self::to_bytes) stores it: [`ModelConfig::recurrent_bytes`].
    pub fn bytes(&self) -> u64 {
        self.shapes().flatten().map(|shape| shape.bytes()).sum()
    }

    /// Goes back to the state before the first token.
    pub fn reset(&mut self) {
        for layer in self.layers.iter_mut().flatten() {
            (layer.version, layer.tokens) = (EMPTY, 0);
            layer.convolution.fill(0.0);
            layer.memory.fill(Columns::ZERO);
            layer.recorded.end();
        }
    }

    /// Becomes a copy of another state of the same model, in the memory it has.
    ///
    /// # Errors
    ///
    /// [`ModelError::WrongRecurrentState`] for a state of another model.
    pub fn copy_from(&mut self, other: &RecurrentState) -> Result<(), ModelError> {
        if !self.shapes().eq(other.shapes()) {
            return Err(ModelError::WrongRecurrentState);
        }
        let layers = self.layers.iter_mut().flatten();
        for (layer, other) in layers.zip(other.layers.iter().flatten()) {
            layer.copy_from(other);
            layer.version = other.version;
            layer.recorded.end();
        }
        Ok(())
    }

    /// Records the inputs of the generated tokens that are read from here on, so that [`replay`](Self::replay) can go back to any of them.
    pub fn record(&mut self) {
        self.layers
            .iter_mut()
            .flatten()
            .for_each(|layer| layer.recorded.begin());
    }

    /// Tokens that have been recorded; `None` where the state is empty, or where not all tokens could be.
    pub fn recorded(&self) -> Option<usize> {
        let mut rows = self.layers.iter().flatten().map(|layer| layer.recorded.rows());
        let first = rows.next()??;
        rows.all(|other| other == Some(first)).then_some(first)
    }

    /// Goes back to the state behind the first `tokens` recorded tokens: `start`, which is the state where recording began, reads them again.
    /// The state has the bits that it had there, and the tokens behind are forgotten.
    ///
    /// # Errors
    /// [`ModelError::WrongRecurrentState`] for a state of another model or another place, and where fewer tokens have been recorded; it is as
    /// it was then.
    pub fn replay(&mut self, model: &Decoder, start: &RecurrentState, tokens: usize) -> Result<(), ModelError> {
        let begins = |recorded: usize| self.tokens() == start.tokens().map(|start| start + recorded);
        let reaches = self
            .recorded()
            .is_some_and(|recorded| tokens <= recorded && begins(recorded));
        let fits = self.shapes().eq(start.shapes()) && self.shapes().eq(model.config.states.iter().copied());
        if !fits || !reaches {
            return Err(ModelError::WrongRecurrentState);
        }
        let layers = self.layers.iter_mut().zip(&start.layers).zip(&model.layers);
        for ((layer, start), weights) in layers {
            let (Some(layer), Some(start), Some(mixer)) = (layer, start, weights.mixer()) else {
                continue;
            };
            layer.copy_from(start);
            layer.version = next_version();
            mixer.replay(layer, tokens);
        }
        Ok(())
    }

    /// The state as little-endian bytes: for each layer with a state, of whatever kind, the tokens it has read as u64, the convolution's
    /// inputs and the memories as f32.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes() as usize);
        for layer in self.layers.iter().flatten() {
            bytes.extend_from_slice(&(layer.tokens as u64).to_le_bytes());
            for value in layer.convolution.iter().chain(Columns::values(&layer.memory)) {
                bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
        bytes
    }

    /// The state that [`to_bytes`](Self::to_bytes) stored, equal to the bit.
    ///
    /// # Errors
    ///
    /// [`ModelError::RecurrentBytes`] when there are not exactly as many bytes as a state of this model takes; nothing
    /// is allocated then.
    pub fn from_bytes(config: &ModelConfig, bytes: &[u8]) -> Result<RecurrentState, ModelError> {
        if bytes.len() as u64 != config.recurrent_bytes() {
            return Err(ModelError::RecurrentBytes {
                expected: config.recurrent_bytes(),
                found: bytes.len() as u64,
            });
        }
        let mut state = RecurrentState::new(config);
        let mut words = bytes.as_chunks::<4>().0.iter().copied();
        let mut next = || words.next().unwrap_or_default();
        for layer in state.layers.iter_mut().flatten() {
            let (low, high) = (u32::from_le_bytes(next()), u32::from_le_bytes(next()));
            layer.version = next_version();
            layer.tokens = (u64::from(high) << 32 | u64::from(low)) as usize;
            let memory = layer.memory.iter_mut().flat_map(|piece| &mut piece.0);
            for value in layer.convolution.iter_mut().chain(memory) {
                *value = f32::from_le_bytes(next());
            }
        }
        Ok(state)
    }

    /// The part of a layer that is to read from `start_position` on; `None` for a layer without a state.
    ///
    /// # Errors
    ///
    /// [`ModelError::WrongRecurrentState`] for a state of another model, [`ModelError::RecurrentPosition`] where the layer
    /// has read other tokens than those before.
    pub fn layer(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        start_position: usize,
    ) -> Result<Option<RecurrentLayer<'_>>, ModelError> {
        let state = self.find(config, layer, start_position)?;
        Ok(state.map(|state| RecurrentLayer { state }))
    }

    /// As [`layer`](Self::layer), to be written to.
    pub(crate) fn layer_mut(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        start_position: usize,
    ) -> Result<Option<&mut LayerState>, ModelError> {
        let mut found = self.find(config, layer, start_position)?;
        if let Some(state) = &mut found {
            state.version = next_version();
        }
        Ok(found)
    }

    fn find(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        start_position: usize,
    ) -> Result<Option<&mut LayerState>, ModelError> {
        let state = self.layers.get_mut(layer).and_then(Option::as_mut);
        if state.as_ref().map(|state| state.shape) != config.state_of(layer) {
            return Err(ModelError::WrongRecurrentState);
        }
        let Some(state) = state else { return Ok(None) };
        if state.tokens != start_position {
            return Err(ModelError::RecurrentPosition {
                layer,
                tokens: state.tokens,
                start_position,
            });
        }
        Ok(Some(state))
    }
}
