//! The state of recurrent layers: its size is independent of the context; it can be copied for rollbacks and stored
//! as bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use riffle_linear::Columns;

use crate::recorded::Recorded;
use crate::state_shape::MemoryShape;
use crate::{Decoder, ModelConfig, ModelError, StateShape};

/// The states of the layers of one sequence, in f32: for each layer with a [`StateShape`] the last inputs of its
/// convolution and the memories of its heads. It is empty for a model without such layers. All kinds use the same
/// form, in memory and as bytes.
///
/// A copy is a snapshot: [`copy_from`](Self::copy_from) restores it exactly.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentState {
    // by layer of the model; `None` for a layer without a state
    layers: Vec<Option<LayerState>>,
}

/// One layer's part of the state.
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
    /// Inputs since [`RecurrentState::record`]; copies have none.
    pub(crate) recorded: Recorded,
}

impl PartialEq for LayerState {
    fn eq(&self, other: &Self) -> bool {
        // Versions are not compared: states of different origin may be equal.
        self.shape == other.shape
            && self.tokens == other.tokens
            && self.convolution == other.convolution
            && self.memory == other.memory
    }
}

/// One layer's part of a [`RecurrentState`], for devices that compute the layer outside main memory.
pub struct RecurrentLayer<'a> {
    state: &'a mut LayerState,
}

/// Version before the first token.
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

    /// Copies tokens, convolution and memories from a state of the same shape.
    pub(crate) fn copy_from(&mut self, other: &LayerState) {
        self.tokens = other.tokens;
        self.convolution.copy_from_slice(&other.convolution);
        self.memory.copy_from_slice(&other.memory);
    }
}

impl RecurrentLayer<'_> {
    /// Version of this layer's state. It changes whenever the state changes; two layers with equal versions hold
    /// equal state, so a device copy with the same version is up to date.
    pub fn version(&self) -> u64 {
        self.state.version
    }

    /// The last inputs of the convolution, `[kernel - 1, channels]`, the oldest token first.
    pub fn convolution(&self) -> &[f32] {
        &self.state.convolution
    }

    /// Copies the memories of the heads to `out`, `[heads, rows, columns]`: of a Gated DeltaNet
    /// `[value_heads, key_dim, value_dim]`.
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

    /// Replaces the state after `tokens` more tokens. The convolution's inputs and the memories have the shapes of
    /// [`convolution`](Self::convolution) and [`copy_memory`](Self::copy_memory). Returns the new version.
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

    /// Index in the state's memory of a piece of row `at`, counted over all heads.
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

    /// True if no layer of the model has a state.
    pub fn is_empty(&self) -> bool {
        self.layers.iter().all(Option::is_none)
    }

    /// The shape of each layer's state.
    fn shapes(&self) -> impl Iterator<Item = Option<StateShape>> {
        self.layers.iter().map(|layer| layer.as_ref().map(|layer| layer.shape))
    }

    /// Tokens that every layer has read; `None` if layers disagree, as after a failed batch, or if the state is
    /// empty.
    pub fn tokens(&self) -> Option<usize> {
        let mut tokens = self.layers.iter().flatten().map(|layer| layer.tokens);
        let first = tokens.next()?;
        tokens.all(|other| other == first).then_some(first)
    }

    /// Bytes of the state in memory, and in the form of [`to_bytes`](Self::to_bytes):
    /// [`ModelConfig::recurrent_bytes`].
    pub fn bytes(&self) -> u64 {
        self.shapes().flatten().map(|shape| shape.bytes()).sum()
    }

    /// Resets to the state before the first token.
    pub fn reset(&mut self) {
        for layer in self.layers.iter_mut().flatten() {
            (layer.version, layer.tokens) = (EMPTY, 0);
            layer.convolution.fill(0.0);
            layer.memory.fill(Columns::ZERO);
            layer.recorded.end();
        }
    }

    /// Copies another state of the same model, without allocation.
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

    /// Starts to record the inputs of generated tokens, so that [`replay`](Self::replay) can return to any of them.
    pub fn record(&mut self) {
        self.layers
            .iter_mut()
            .flatten()
            .for_each(|layer| layer.recorded.begin());
    }

    /// Number of recorded tokens; `None` if the state is empty, or not all tokens were recorded.
    pub fn recorded(&self) -> Option<usize> {
        let mut rows = self.layers.iter().flatten().map(|layer| layer.recorded.rows());
        let first = rows.next()??;
        rows.all(|other| other == Some(first)).then_some(first)
    }

    /// Returns to the state after the first `tokens` recorded tokens: `start`, the state at the start of the
    /// recording, reads them again. The state then has exactly the same bits as at that point, and later tokens are
    /// removed.
    ///
    /// # Errors
    /// [`ModelError::WrongRecurrentState`] for a state of another model or position, and if fewer tokens were
    /// recorded. The state is then unchanged.
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

    /// The state as little-endian bytes. For each layer with a state of any kind: the number of tokens read as u64,
    /// then the convolution's inputs and the memories as f32.
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

    /// Restores a state from [`to_bytes`](Self::to_bytes), with the same bits.
    ///
    /// # Errors
    ///
    /// [`ModelError::RecurrentBytes`] if the number of bytes differs from this model's; nothing is then allocated.
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

    /// The part of a layer that reads next from `start_position` on; `None` for a layer without a state.
    ///
    /// # Errors
    ///
    /// [`ModelError::WrongRecurrentState`] for a state of another model, [`ModelError::RecurrentPosition`] if the
    /// layer has not read exactly the tokens before it.
    pub fn layer(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        start_position: usize,
    ) -> Result<Option<RecurrentLayer<'_>>, ModelError> {
        let state = self.find(config, layer, start_position)?;
        Ok(state.map(|state| RecurrentLayer { state }))
    }

    /// As [`layer`](Self::layer), writable.
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
