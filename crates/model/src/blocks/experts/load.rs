//! Loads experts from the tensors of files, in any of several layouts.

use std::sync::Arc;

use riffle_linear::{PackedMatrix, WeightFormat};

use super::StreamedLayer;
use super::{Expert, ExpertSettings, ExpertWeights, Experts, Router, SharedExpert, StreamedExperts};
use crate::ModelError;
use crate::blocks::{Mlp, Norm, Projection};
use crate::weights::{Checkpoint, Stack, StackParts};

/// Prefixes and names of the parts' tensors below a layer, in all families.
const PLACES: &[&str] = &["mlp.", "block_sparse_moe.", "feed_forward.", "mixer.", ""];
const ROUTERS: &[&str] = &[
    "gate",
    "router",
    "gate.wg",
    "router.layer",
    "router.proj",
    "router.gate",
];
const CHOICE_BIASES: &[&str] = &[
    "gate.e_score_correction_bias",
    "e_score_correction_bias",
    "expert_bias",
    "gate.moe_statics.e_score_correction_bias",
    "moe_statics.e_score_correction_bias",
    "experts.e_score_correction_bias",
    "gate.expert_bias",
    // Name in GGUF files.
    "exp_probs_b.bias",
];
const SHARED: &[&str] = &["shared_expert", "shared_experts", "shared_mlp"];
pub(super) const GATES: &[&str] = &["gate_proj", "w1"];
pub(super) const UPS: &[&str] = &["up_proj", "w3"];
pub(super) const DOWNS: &[&str] = &["down_proj", "w2"];
/// A choice bias directly below the layer.
const LAYER_CHOICE_BIAS: &str = "moe.router.expert_bias";
/// Gate and up of all experts, down of all experts.
pub(super) const FUSED_INPUTS: &[&str] = &[
    "experts.gate_up_proj",
    "experts.gate_up_proj.weight",
    "input_linear.weight",
    "experts.fc1.weight",
];
pub(super) const FUSED_OUTPUTS: &[&str] = &[
    "experts.down_proj",
    "experts.down_proj.weight",
    "output_linear.weight",
    "experts.fc2.weight",
    "switch_mlp.down_proj.weight",
    "switch_mlp.fc2.weight",
];
/// Gates of all experts, and ups of all experts.
const SEPARATE_GATES: &[&str] = &["switch_mlp.gate_proj.weight", "experts.gate_proj.weight"];
const SEPARATE_UPS: &[&str] = &["switch_mlp.up_proj.weight", "experts.up_proj.weight"];
/// Ups of all experts without gates.
const UNGATED_UPS: &[&str] = &["switch_mlp.fc1.weight", "experts.up_proj", "experts.up_proj.weight"];

/// The tensors of a layer, and the sizes of its experts.
struct Source<'a> {
    weights: &'a mut Checkpoint,
    /// The prefix of names, including the full stop.
    base: String,
    hidden: usize,
    settings: &'a ExpertSettings,
}

impl Experts {
    /// Loads the router, the experts and the shared block below `layer`, such as `model.layers.3`: one tensor per
    /// expert, or one for all.
    ///
    /// # Errors
    /// [`ModelError`] for tensors that are missing, of another shape or of an unsupported type.
    pub fn load(
        weights: &mut Checkpoint,
        layer: &str,
        hidden: usize,
        settings: &ExpertSettings,
    ) -> Result<Experts, ModelError> {
        let has = |base: &str, router: &str| weights.info(&format!("{base}{router}.weight")).is_some();
        let places = PLACES.iter().map(|place| format!("{layer}.{place}"));
        let mut found = places.flat_map(|base| ROUTERS.iter().map(move |router| (base.clone(), router)));
        let Some((base, router)) = found.find(|(base, router)| has(base, router)) else {
            return Err(ModelError::MissingTensor {
                tensor: format!("{layer}.mlp.gate.weight"),
            });
        };
        let mut source = Source {
            weights,
            base,
            hidden,
            settings,
        };
        if settings.has_pictures {
            source.forget_pictures();
        }
        Ok(Experts {
            router: source.router(layer, router)?,
            experts: source.experts()?,
            shared: source.shared(layer)?,
            activation: settings.activation,
            weighs_input: settings.weighs_input,
            after: None,
        })
    }
}

impl Source<'_> {
    /// The first of several names that exists.
    fn find(&self, names: &[&str]) -> Option<String> {
        let mut names = names.iter().map(|name| format!("{}{name}", self.base));
        names.find(|name| self.weights.info(name).is_some())
    }

    /// A vector with one number per expert, stored as `[experts]` or `[1, experts]`.
    fn vector(&mut self, name: &str) -> Result<Vec<f32>, ModelError> {
        let experts = self.settings.shape.experts;
        let is_row = self.weights.info(name).is_some_and(|info| info.shape == [1, experts]);
        if is_row {
            self.weights.array(name, &[1, experts])
        } else if self.settings.has_pictures {
            let mut both = self.weights.array(name, &[2, experts])?;
            both.truncate(experts);
            Ok(both)
        } else {
            self.weights.vector(name, experts)
        }
    }

    fn router(&mut self, layer: &str, router: &str) -> Result<Router, ModelError> {
        let settings = self.settings;
        let name = format!("{}{router}", self.base);
        let (experts, hidden) = (settings.shape.experts, self.hidden);
        let projection = if settings.has_pictures {
            self.transposed(&format!("{name}.weight"))?
        } else {
            Projection::load(self.weights, &name, experts, hidden, settings.router_bias)?
        };
        let of_layer = format!("{layer}.{LAYER_CHOICE_BIAS}");
        let of_layer = self.weights.info(&of_layer).is_some().then_some(of_layer);
        let choice_bias = self.find(CHOICE_BIASES).or(of_layer);
        let choice_bias = choice_bias.map(|name| self.vector(&name)).transpose()?;
        let scales = self.find(&["router.per_expert_scale"]);
        let expert_scales = scales.map(|name| self.vector(&name)).transpose()?;
        let norm = match (
            settings.router_epsilon,
            self.find(&["router.scale", "gate.scale", "router.proj.scale"]),
        ) {
            (Some(epsilon), Some(name)) => {
                let mut weight = self.weights.vector(&name, self.hidden)?;
                let factor = (self.hidden as f32).sqrt().recip();
                weight.iter_mut().for_each(|weight| *weight *= factor);
                Some(Norm::Rms { weight, epsilon })
            }
            _ => None,
        };
        Ok(Router {
            norm,
            projection,
            choice_bias,
            expert_scales,
            rules: settings.rules,
        })
    }

    /// A router stored as `[hidden, experts]`.
    fn transposed(&mut self, name: &str) -> Result<Projection, ModelError> {
        let (experts, hidden) = (self.settings.shape.experts, self.hidden);
        let stored = self.weights.array(name, &[hidden, experts])?;
        let value = |at: usize| stored[at % hidden * experts + at / hidden];
        let bytes: Vec<u8> = (0..stored.len()).flat_map(|at| value(at).to_le_bytes()).collect();
        let matrix = PackedMatrix::pack(WeightFormat::F32, experts, hidden, &bytes);
        let matrix = matrix.map_err(|source| ModelError::Pack {
            tensor: name.to_owned(),
            source,
        })?;
        Ok(Projection::of_parts(matrix, None))
    }

    /// Leaves out tensors that only pictures use.
    fn forget_pictures(&mut self) {
        let experts = self.settings.shape.experts;
        let (router, expert) = (format!("{}gate.weight_1", self.base), format!("{}experts.", self.base));
        self.weights.forget(|name| {
            let number = name.strip_prefix(&expert).and_then(|rest| rest.split_once('.'));
            let number = number.and_then(|(number, _)| number.parse::<usize>().ok());
            name == router || number.is_some_and(|number| number >= experts)
        });
    }

    fn experts(&mut self) -> Result<ExpertWeights, ModelError> {
        match self.streamed()? {
            Some(streamed) => Ok(ExpertWeights::Streamed(streamed)),
            None => Ok(ExpertWeights::Resident(self.resident()?)),
        }
    }

    /// Experts that stay in the files, if the checkpoint allows it. Their biases and scales are loaded.
    fn streamed(&mut self) -> Result<Option<StreamedExperts>, ModelError> {
        let Some(streams) = self.weights.streams() else {
            return Ok(None);
        };
        let Some(layer) = streams.layers.iter().position(|layer| layer.base == self.base) else {
            return Ok(None);
        };
        let cache = Arc::clone(&streams.cache);
        let StreamedLayer { tensors, parts, .. } = streams.layers[layer].clone();
        let has_halves = parts.iter().flatten().any(|(_, half)| half.is_some());
        if has_halves && self.settings.layout.alternating {
            return Err(ModelError::NotStreamed {
                tensor: tensors[0].clone(),
            });
        }
        self.weights.take_unread(tensors);
        let (count, width, hidden) = (self.settings.shape.experts, self.settings.shape.width, self.hidden);
        let mut biases: Vec<[Option<Box<[f32]>>; 3]> = vec![[const { None }; 3]; count];
        for (part, (name, half)) in parts
            .iter()
            .enumerate()
            .filter_map(|(part, found)| Some((part, found.as_ref()?)))
        {
            let rows = if part == 2 { hidden } else { width };
            self.streamed_biases(name, *half, rows, |expert, bias| biases[expert][part] = Some(bias))?;
        }
        Ok(Some(StreamedExperts {
            cache,
            layer,
            count,
            width,
            is_gated: self.settings.gated,
            biases,
        }))
    }

    /// The biases of a part, `rows` per expert.
    fn streamed_biases(
        &mut self,
        name: &str,
        half: Option<usize>,
        rows: usize,
        mut take: impl FnMut(usize, Box<[f32]>),
    ) -> Result<(), ModelError> {
        let count = self.settings.shape.experts;
        if !self.settings.biased {
            return Ok(());
        }
        if name.contains('*') {
            for expert in 0..count {
                let name = name.replace('*', &expert.to_string());
                let bias = format!("{}.bias", name.trim_end_matches(".weight"));
                take(expert, self.weights.vector(&bias, rows)?.into());
            }
            return Ok(());
        }
        let (parts, stride) = match half {
            None => (0..rows, rows),
            Some(half) => (half * rows..(half + 1) * rows, 2 * rows),
        };
        // The second half of a tensor uses the same biases again.
        let values = self.weights.array(&bias_name(name), &[count, stride])?;
        for (expert, bias) in values.chunks_exact(stride).enumerate() {
            take(expert, bias[parts.clone()].into());
        }
        Ok(())
    }

    fn resident(&mut self) -> Result<Vec<Expert>, ModelError> {
        let first = UPS.iter().map(|up| format!("experts.0.{up}.weight"));
        let first: Vec<String> = first.collect();
        if self
            .find(&first.iter().map(String::as_str).collect::<Vec<_>>())
            .is_some()
        {
            return (0..self.settings.shape.experts)
                .map(|expert| self.single(expert))
                .collect();
        }
        let (hidden, width) = (self.hidden, self.settings.shape.width);
        let down = self.all(FUSED_OUTPUTS, [hidden, width], StackParts::Whole)?;
        let inputs = if !self.settings.gated {
            self.all(UNGATED_UPS, [width, hidden], StackParts::Whole)?
        } else if self.find(FUSED_INPUTS).is_some() {
            let parts = if self.settings.layout.alternating {
                StackParts::Alternating
            } else {
                StackParts::Halves
            };
            self.all(FUSED_INPUTS, [2 * width, hidden], parts)?
        } else {
            let [gates, ups] =
                [SEPARATE_GATES, SEPARATE_UPS].map(|names| self.all(names, [width, hidden], StackParts::Whole));
            let (gates, ups) = (gates?, ups?);
            gates.into_iter().chain(ups).collect()
        };
        let mut inputs = inputs.into_iter();
        let gates: Option<Vec<Option<Projection>>> = if self.settings.gated {
            inputs.next().map(|gates| gates.into_iter().map(Some).collect())
        } else {
            None
        };
        let gates = gates.unwrap_or_else(|| (0..self.settings.shape.experts).map(|_| None).collect());
        let parts = gates.into_iter().zip(inputs.flatten()).zip(down.into_iter().flatten());
        Ok(parts.map(|((gate, up), down)| Expert { gate, up, down }).collect())
    }

    /// An expert with separate tensors.
    fn single(&mut self, expert: usize) -> Result<Expert, ModelError> {
        let (hidden, width, biased) = (self.hidden, self.settings.shape.width, self.settings.biased);
        let gates = self.settings.gated.then_some(GATES);
        let mut load = |names: &[&str], outputs, inputs| {
            let named = |name: &str| format!("{}experts.{expert}.{name}", self.base);
            let has = |name: &&&str| self.weights.info(&format!("{}.weight", named(name))).is_some();
            let name = names.iter().find(has).unwrap_or(&names[0]);
            let name = named(name);
            // Adapters do not support experts: such a part remains unused and is refused.
            let [matrix] = self.weights.matrices(&format!("{name}.weight"), 1, [outputs], inputs)?;
            let bias = biased.then(|| self.weights.vector(&format!("{name}.bias"), outputs));
            Ok::<Projection, ModelError>(Projection::of_parts(matrix, bias.transpose()?))
        };
        Ok(Expert {
            gate: match gates {
                Some(gates) => Some(load(gates, width, hidden)?),
                None => None,
            },
            up: load(UPS, width, hidden)?,
            down: load(DOWNS, hidden, width)?,
        })
    }

    /// The projections of a tensor of all experts, `[part][expert]`.
    fn all(&mut self, names: &[&str], size: [usize; 2], parts: StackParts) -> Result<Vec<Vec<Projection>>, ModelError> {
        let name = self
            .find(names)
            .unwrap_or_else(|| format!("{}{}", self.base, names[names.len() - 1]));
        let count = self.settings.shape.experts;
        let stack = Stack {
            count,
            rows: size[0],
            columns: size[1],
            transposed: self.is_transposed(&name, size),
            parts,
        };
        let matrices = self.weights.stack(&name, &stack)?;
        let biases = self.biases(&name, &stack)?;
        let scales = format!("{}.scale", name.trim_end_matches(".weight"));
        let scales = match self.weights.info(&scales) {
            Some(_) => Some(self.weights.vector(&scales, count)?),
            None => None,
        };
        let split =
            |bias: &[f32], part: usize| -> Vec<f32> { parts.rows(part, size[0]).map(|row| bias[row]).collect() };
        let of_part = |(part, matrices): (usize, Vec<PackedMatrix>)| -> Vec<Projection> {
            let bias = |expert: usize| {
                biases
                    .as_ref()
                    .map(|all| split(&all[expert * size[0]..][..size[0]], part))
            };
            let matrices = matrices.into_iter().enumerate();
            let scaled = |expert: usize, matrix: PackedMatrix| match &scales {
                Some(scales) => matrix.with_factor(scales[expert]),
                None => matrix,
            };
            matrices
                .map(|(expert, matrix)| Projection::of_parts(scaled(expert, matrix), bias(expert)))
                .collect()
        };
        Ok(matrices.into_iter().enumerate().map(of_part).collect())
    }

    /// True if a tensor holds `[experts, columns, rows]`. The shape decides; if rows equal columns, the family
    /// decides. GGUF files have one order.
    fn is_transposed(&self, name: &str, [rows, columns]: [usize; 2]) -> bool {
        let shape = self.weights.info(name).map(|info| &info.shape[..]);
        match shape {
            Some(&[_, first, second]) if rows != columns => (first, second) == (columns, rows),
            _ => {
                self.settings.layout.transposed && !(name.ends_with("_proj.weight") || name.ends_with("_linear.weight"))
            }
        }
    }

    /// The biases of a tensor of all experts, `[experts, rows]`.
    fn biases(&mut self, name: &str, stack: &Stack) -> Result<Option<Vec<f32>>, ModelError> {
        if !self.settings.biased {
            return Ok(None);
        }
        self.weights
            .array(&bias_name(name), &[stack.count, stack.rows])
            .map(Some)
    }

    fn shared(&mut self, layer: &str) -> Result<Option<SharedExpert>, ModelError> {
        let width = self.settings.shape.shared_width;
        if width == 0 {
            return Ok(None);
        }
        let (hidden, activation, gated) = (self.hidden, self.settings.activation, self.settings.gated);
        let beside = format!("{layer}.shared_mlp");
        if self.weights.info(&format!("{beside}.input_linear.weight")).is_some() {
            let rows = [width, width];
            let input = format!("{beside}.input_linear");
            let [gate, up] = Projection::load_parts(self.weights, &input, 1, rows, hidden, false)?;
            let down = Projection::load(self.weights, &format!("{beside}.output_linear"), hidden, width, false)?;
            let mlp = Mlp::Gated {
                gate,
                up,
                down,
                activation,
            };
            return Ok(Some(SharedExpert::plain(mlp, None)));
        }
        let named = |name: &str, part: &str| format!("{}{name}.{part}", self.base);
        let mut parts = SHARED
            .iter()
            .flat_map(|name| UPS.iter().map(move |part| (*name, *part)));
        let has = |(name, part): &(&str, &str)| self.weights.info(&format!("{}.weight", named(name, part))).is_some();
        let (name, up) = parts.find(has).unwrap_or((SHARED[0], UPS[0]));
        let at = UPS.iter().position(|part| *part == up).unwrap_or(0);
        let [gate, up, down] = [GATES[at], up, DOWNS[at]].map(|part| named(name, part));
        let opening = format!("{}{name}_gate", self.base);
        let scale = self.settings.shared_scale;
        let mut load = |name: &str, outputs, inputs| {
            let biased = self.weights.info(&format!("{name}.bias")).is_some();
            Projection::load(self.weights, name, outputs, inputs, biased)
        };
        let (up, down) = (load(&up, width, hidden)?, load(&down, hidden, width)?);
        let down = down.scaled(scale, scale);
        let mlp = if gated {
            Mlp::Gated {
                gate: load(&gate, width, hidden)?,
                up,
                down,
                activation,
            }
        } else {
            Mlp::Plain { up, down, activation }
        };
        let gate = match self
            .weights
            .info(&format!("{opening}.weight"))
            .map(|info| info.shape.len())
        {
            None => None,
            // GGUF files hold a vector.
            Some(1) => Some(Projection::row(self.weights, &opening, hidden)?),
            Some(_) => Some(Projection::load(self.weights, &opening, 1, hidden, false)?),
        };
        Ok(Some(SharedExpert::plain(mlp, gate)))
    }
}

/// The name of the biases of a tensor of all experts.
fn bias_name(name: &str) -> String {
    let stem = name.strip_suffix(".weight");
    stem.map_or_else(|| format!("{name}_bias"), |stem| format!("{stem}.bias"))
}
