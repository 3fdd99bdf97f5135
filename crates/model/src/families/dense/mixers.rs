//! Layers that a plan lists by parts: a mixer with a state, attention, a feed-forward part.

use std::sync::Arc;

use super::attention::Parts;
use super::{Block, Plan};
use crate::blocks::{
    Activation, DeltaNetStorage, GatedDeltaNet, KimiDeltaAttention, LightningAttention, Mamba2, Mamba2Factors,
    Mamba2Settings, Mixer, Norm, Projection, ShortConvolution,
};
use crate::layer::{Layer, Rows, Step};
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError, StateShape};

/// The parts of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LayerParts {
    /// The state of the layer's mixer, if there is one.
    pub(super) state: Option<StateShape>,
    pub(super) attends: bool,
    /// True if the layer's attention has the window of `sliding_window`.
    pub(super) slides: bool,
    /// True if the layer ends with a feed-forward part.
    pub(super) feeds: bool,
}

impl LayerParts {
    /// A mixer with a state, and a feed-forward part.
    pub(super) fn mixer(state: StateShape) -> LayerParts {
        LayerParts {
            state: Some(state),
            attends: false,
            slides: false,
            feeds: true,
        }
    }

    /// Attention and a feed-forward part.
    pub(super) const ATTENTION: LayerParts = LayerParts {
        state: None,
        attends: true,
        slides: false,
        feeds: true,
    };
}

/// The mixers of a plan: the name of their tensors below a layer, and the settings that differ between families.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum MixerPlan {
    None,
    ShortConvolution {
        name: &'static str,
        biased: bool,
    },
    Mamba2 {
        name: &'static str,
        settings: Mamba2Settings,
        factors: Mamba2Factors,
    },
    GatedDeltaNet {
        name: &'static str,
        /// True if each projection is a separate tensor, named as in attention.
        is_apart: bool,
        /// The largest strength.
        strength_limit: f32,
        epsilon: f32,
    },
    KimiDelta {
        name: &'static str,
        epsilon: f32,
    },
    Lightning {
        name: &'static str,
        activation: Activation,
    },
}

/// Layers whose parts are `x ← kept · n + added · f(n)` with `n = norm(x)`: the factors `[kept, added]` of each kind of
/// part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NormedStream {
    pub(super) mixer: [f64; 2],
    pub(super) attention: [f64; 2],
    pub(super) feed: [f64; 2],
}

impl NormedStream {
    /// `x ← n + f(n)` in every kind of part.
    pub(super) const PLAIN: NormedStream = NormedStream {
        mixer: [1.0, 1.0],
        attention: [1.0, 1.0],
        feed: [1.0, 1.0],
    };

    /// The steps that replace the residual stream by a norm's result in [`Rows::Normed`].
    fn keep([kept, added]: [f64; 2], hidden: usize) -> Vec<Step> {
        let copy = Step::Normalise {
            norm: Arc::new(Norm::Identity { width: hidden }),
            from: Rows::Normed,
            to: Rows::Hidden,
        };
        let factor = (kept / added) as f32;
        let scale = (factor != 1.0).then_some(Step::Scale(factor));
        std::iter::once(copy).chain(scale).collect()
    }

    /// The step after the sum of both, if there is one.
    fn scale([_, added]: [f64; 2]) -> Option<Step> {
        (added != 1.0).then_some(Step::Scale(added as f32))
    }
}

impl Plan {
    /// Sets which layers have a state, and which attend.
    pub(super) fn set_states(&self, config: &mut ModelConfig) -> Result<(), ModelError> {
        if self.layers.is_empty() {
            return Ok(());
        }
        if self.layers.len() != config.layers {
            let problem = format!("is {}, and {} layers are listed", config.layers, self.layers.len());
            return Err(self.fields.error("num_hidden_layers", problem));
        }
        config.states = self.layers.iter().map(|layer| layer.state).collect();
        config.attends = self.layers.iter().map(|layer| layer.attends).collect();
        if self.layers.iter().any(|layer| layer.slides) {
            let window = self.fields.optional_size("sliding_window")?;
            let of_layer = |layer: &LayerParts| window.filter(|_| layer.slides);
            config.windows = self.layers.iter().map(of_layer).collect();
        }
        Ok(())
    }

    /// Names of the norms before the parts of a listed layer, and of the norms after them.
    fn mixed_norms(&self) -> Result<([&'static str; 2], Option<[&'static str; 2]>), ModelError> {
        match self.block {
            Block::Before(norms) => Ok((norms, None)),
            Block::Both([mixer, behind_mixer, mlp, behind_mlp]) => Ok(([mixer, mlp], Some([behind_mixer, behind_mlp]))),
            Block::One(norm) => Ok(([norm, norm], None)),
            // Layers with a mixer have norms before their parts. The second has the name of the first norm in
            // attention layers.
            Block::After([mlp, _]) => Ok((["input_layernorm", mlp], None)),
            _ => {
                let problem = "names norms that layers of these kinds do not have";
                Err(self.fields.error("layer_types", problem))
            }
        }
    }

    /// A layer listed by parts.
    pub(super) fn mixed_layer(
        &self,
        parts: &Parts,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        (layer, own): (usize, &LayerParts),
    ) -> Result<Layer, ModelError> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let ([first, second], behind) = self.mixed_norms()?;
        let add = |weights: &mut Checkpoint, place: usize| match behind {
            None => Ok::<_, ModelError>(vec![Step::Add(Rows::Branch)]),
            Some(names) => Ok(vec![
                Step::Normalise {
                    norm: self.branch_norm(config, weights, &name(names[place]))?,
                    from: Rows::Branch,
                    to: Rows::Normed,
                },
                Step::Add(Rows::Normed),
            ]),
        };
        let keep = |factors: fn(&NormedStream) -> [f64; 2]| {
            let stream = self.normed_stream.as_ref().map(factors);
            stream.map_or_else(Vec::new, |factors| NormedStream::keep(factors, config.hidden_size))
        };
        let scale = |factors: fn(&NormedStream) -> [f64; 2]| {
            let stream = self.normed_stream.as_ref().map(factors);
            stream.and_then(NormedStream::scale)
        };
        let (mut steps, mut attention) = (Vec::new(), None);
        if own.state.is_some() || own.attends {
            let norm = Arc::new(self.norm(config, weights, &name(first))?);
            if let Some(state) = own.state {
                let mixer = self.mixer(config, weights, (layer, &name("")), state)?;
                steps.push(normalise(Arc::clone(&norm)));
                steps.extend(keep(|stream| stream.mixer));
                steps.push(Step::Recur(mixer));
                steps.extend(add(weights, 0)?);
                steps.extend(scale(|stream| stream.mixer));
            }
            if own.attends {
                let (attends, output) = parts.attention(self, config, weights, layer, Arc::clone(&norm))?;
                attention = Some(attends);
                if self.normed_stream.is_some() {
                    steps.push(normalise(Arc::clone(&norm)));
                    steps.extend(keep(|stream| stream.attention));
                }
                if let Some(gate) = self.gate {
                    let width = gate.width(&config.attention_of(layer));
                    let opening = gate.opening;
                    let gate = Projection::load(weights, &name(gate.name), width, config.hidden_size, false)?;
                    steps.push(Step::OpenGate { norm, gate, opening });
                }
                steps.push(output.step(Rows::Branch));
                steps.extend(add(weights, 0)?);
                steps.extend(scale(|stream| stream.attention));
            }
        }
        if own.feeds {
            let norm = Arc::new(self.norm(config, weights, &name(second))?);
            steps.push(normalise(norm));
            steps.extend(keep(|stream| stream.feed));
            steps.push(self.feed(config, weights, layer)?);
            steps.extend(add(weights, 1)?);
            steps.extend(scale(|stream| stream.feed));
        }
        Ok(Layer { attention, steps })
    }

    /// The mixer of the layer with the name prefix `prefix`.
    fn mixer(
        &self,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        (layer, prefix): (usize, &str),
        state: StateShape,
    ) -> Result<Mixer, ModelError> {
        let hidden = config.hidden_size;
        match (self.mixer, state) {
            (MixerPlan::ShortConvolution { name, biased }, StateShape::ShortConvolution(shape)) => {
                let name = format!("{prefix}{name}");
                let mixer = ShortConvolution::load(weights, &name, &shape, hidden, biased)?;
                Ok(Mixer::ShortConvolution(Box::new(mixer)))
            }
            (
                MixerPlan::Mamba2 {
                    name,
                    settings,
                    factors,
                },
                StateShape::Mamba2(shape),
            ) => {
                let mixer = Mamba2::load(weights, &format!("{prefix}{name}"), &shape, hidden, settings)?;
                Ok(Mixer::Mamba2(Box::new(mixer.scaled(&factors))))
            }
            (
                MixerPlan::GatedDeltaNet {
                    name,
                    is_apart,
                    strength_limit,
                    epsilon,
                },
                StateShape::GatedDeltaNet(shape),
            ) => {
                let storage = DeltaNetStorage {
                    is_apart,
                    ..DeltaNetStorage::default()
                };
                let mixer = GatedDeltaNet::load(weights, &format!("{prefix}{name}"), &shape, hidden, epsilon, storage)?;
                Ok(Mixer::GatedDeltaNet(Box::new(
                    mixer.with_strength_limit(strength_limit),
                )))
            }
            (MixerPlan::KimiDelta { name, epsilon }, StateShape::KimiDelta(shape)) => {
                let mixer = KimiDeltaAttention::load(weights, &format!("{prefix}{name}"), &shape, hidden, epsilon)?;
                Ok(Mixer::KimiDelta(Box::new(mixer)))
            }
            (MixerPlan::Lightning { name, activation }, StateShape::Lightning(shape)) => {
                let (name, place) = (format!("{prefix}{name}"), (layer, config.layers));
                let mixer = LightningAttention::load(weights, &name, &shape, hidden, place, activation)?;
                Ok(Mixer::Lightning(Box::new(mixer)))
            }
            _ => {
                let problem = format!("names a layer of {}, which this family does not build", state.kind());
                Err(self.fields.error("layer_types", problem))
            }
        }
    }
}

fn normalise(norm: Arc<Norm>) -> Step {
    Step::Normalise {
        norm,
        from: Rows::Hidden,
        to: Rows::Normed,
    }
}
