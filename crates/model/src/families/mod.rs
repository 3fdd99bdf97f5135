//! The architectures, one file each.

mod defaults;
mod dense;
mod foreign;
mod gemma;
mod gemma3n;
mod gemma4;
mod headless;
mod indexer;
mod latent;
pub(crate) mod llama;
mod mistral;
mod muse_glimmer;
mod ngrams;
mod phi;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen4_exp;
mod wrappers;

pub(crate) use headless::name_bare_tensors;
pub use wrappers::wrapper_classes;
pub(crate) use wrappers::{NAMES as WRAPPED_NAMES, is_of_text_model, is_wrapper, text_fields};

use crate::blocks::{Activation, Mlp, Norm, Projection};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::weights::{Checkpoint, Quantisation};
use crate::{ModelConfig, ModelError, Predictor};

/// Configures and builds models of one architecture.
///
/// To add a family from another crate, pass a `static` list to
/// [`LoadOptions::with_families`](crate::LoadOptions::with_families) or the engine's options.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Family {
    /// Names in config.json's `architectures`.
    pub architectures: &'static [&'static str],
    /// config.json's `model_type`, for files without an architecture.
    pub model_type: &'static str,
    /// Settings that this family supports and others refuse, such as `embedding_multiplier`.
    pub settings: &'static [&'static str],
    /// Prefixes of tensor names, and the family's prefixes for them.
    pub(crate) renames: &'static [(&'static str, &'static str)],
    /// True if the default rotation respects `partial_rotary_factor`.
    pub(crate) rotates_partly: bool,
    /// Reads the sizes.
    pub configure: Configure,
    /// Builds the model from the weights.
    pub build: Build,
    /// Builds the layer that predicts further tokens, for families with one.
    pub build_predictor: Option<BuildPredictor>,
}

/// Reads the sizes of a model from config.json, of the architecture named.
pub type Configure = fn(&Fields, &str) -> Result<ModelConfig, ModelError>;

/// Builds a configured model from the weights.
pub type Build = fn(&Fields, &ModelConfig, &mut Checkpoint) -> Result<Decoder, ModelError>;

/// Builds a configured model's layer that predicts further tokens, from tensors with the prefix `mtp.`.
pub type BuildPredictor = fn(&Fields, &ModelConfig, &mut Checkpoint) -> Result<Predictor, ModelError>;

impl Family {
    /// A family of these architectures, at least one, and this `model_type`.
    pub const fn new(
        architectures: &'static [&'static str],
        model_type: &'static str,
        configure: Configure,
        build: Build,
    ) -> Self {
        Self {
            architectures,
            model_type,
            settings: &[],
            renames: &[],
            rotates_partly: false,
            configure,
            build,
            build_predictor: None,
        }
    }

    /// Adds a layer that predicts further tokens, for files with one.
    pub const fn with_predictor(mut self, build: BuildPredictor) -> Self {
        self.build_predictor = Some(build);
        self
    }

    /// Sets other tensor names.
    pub(crate) const fn with_renames(mut self, renames: &'static [(&'static str, &'static str)]) -> Self {
        self.renames = renames;
        self
    }

    /// Makes the default rotation respect `partial_rotary_factor`.
    pub const fn with_partial_rotation(mut self) -> Self {
        self.rotates_partly = true;
        self
    }

    /// Sets the settings that this family supports and others refuse, such as `embedding_multiplier`.
    pub const fn with_settings(mut self, settings: &'static [&'static str]) -> Self {
        self.settings = settings;
        self
    }
}

/// The families with separate files.
const OWN: [Family; 15] = [
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    qwen3_5::FAMILY,
    qwen3_5::MOE,
    qwen3_5::NEXT,
    qwen4_exp::FAMILY,
    phi::FAMILY,
    phi3::FAMILY,
    gemma::GEMMA2,
    gemma::GEMMA3,
    gemma3n::FAMILY,
    gemma4::FAMILY,
    muse_glimmer::FAMILY,
];

const FAMILIES: &[Family] = &{
    let mut all = [llama::FAMILY; OWN.len() + dense::FAMILIES.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < OWN.len() {
            OWN[at]
        } else {
            dense::FAMILIES[at - OWN.len()]
        };
        at += 1;
    }
    all
};

/// The families of this crate, for lists.
pub fn families() -> &'static [Family] {
    FAMILIES
}

/// Finds the family of `fields`, in this crate or `more`, and returns it with the checked configuration.
pub(crate) fn configure(
    fields: &Fields,
    more: &'static [Family],
) -> Result<(&'static Family, ModelConfig), ModelError> {
    let (family, architecture) = find(fields, more)?;
    foreign::refuse(fields, family, &architecture)?;
    let quantisation = Quantisation::read(fields)?;
    let is_headless = headless::is_headless(fields, family)?;
    let fields = &if is_headless {
        // The embedding takes the place of the head, which the files do not hold.
        fields.clone().with("tie_word_embeddings", true)
    } else {
        fields.clone()
    };
    let mut config = (family.configure)(fields, &architecture)?;
    config.predicts_tokens = !is_headless && !config.is_bidirectional;
    if let Some(quantisation) = quantisation {
        config.set_quantised(quantisation.method);
    }
    foreign::check_layer_types(fields, &config)?;
    config.check_states(fields)?;
    config.check_attention(fields)?;
    Ok((family, config))
}

/// A norm that multiplies by its weights and `added`.
fn norm_plus(
    added: f32,
    config: &ModelConfig,
    weights: &mut Checkpoint,
    name: &str,
    width: usize,
) -> Result<Norm, ModelError> {
    let mut weight = weights.vector(&format!("{name}.weight"), width)?;
    weight.iter_mut().for_each(|weight| *weight += added);
    Ok(Norm::Rms {
        weight,
        epsilon: config.norm_epsilon,
    })
}

/// The term added to norm weights, for norms that multiply by 1 + weight. GGUF files store the sum.
fn added_to_norms(fields: &Fields) -> Result<f32, ModelError> {
    Ok(if fields.flag("norms_include_one", false)? {
        0.0
    } else {
        1.0
    })
}

/// A gated feed-forward block without biases, of three tensors.
fn gated_mlp(
    config: &ModelConfig,
    weights: &mut Checkpoint,
    name: &str,
    activation: Activation,
) -> Result<Mlp, ModelError> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let mut load =
        |part: &str, outputs, inputs| Projection::load(weights, &format!("{name}.{part}"), outputs, inputs, false);
    Ok(Mlp::Gated {
        gate: load("gate_proj", inner, hidden)?,
        up: load("up_proj", inner, hidden)?,
        down: load("down_proj", hidden, inner)?,
        activation,
    })
}

/// The family of config.json, and its name there. Families of other crates take precedence.
fn find(fields: &Fields, more: &'static [Family]) -> Result<(&'static Family, String), ModelError> {
    let architectures = fields.texts("architectures")?;
    let model_type = fields.text("model_type")?;
    if let Some(wrapper) = wrappers::find(&architectures) {
        let text_type = wrappers::family_type(model_type.unwrap_or(wrapper.text_type));
        let found = FAMILIES.iter().find(|family| family.model_type == text_type);
        return match found {
            Some(family) => Ok((family, family.architectures[0].to_owned())),
            None => Err(unknown(format!("{} around {text_type}", wrapper.class), more)),
        };
    }
    // transformers loads EXAONE 3 with Llama's class, but its tensors keep their names.
    if model_type == Some("exaone")
        && architectures.iter().all(|name| name == "LlamaForCausalLM")
        && let Some(family) = FAMILIES.iter().find(|family| Some(family.model_type) == model_type)
    {
        return Ok((family, family.architectures[0].to_owned()));
    }
    let family_type = model_type.map(wrappers::family_type);
    for family in more.iter().chain(FAMILIES) {
        for name in family.architectures {
            if architectures.iter().any(|found| found == name) {
                return Ok((family, (*name).to_owned()));
            }
        }
        if architectures.is_empty() && family_type == Some(family.model_type) {
            let name = family.architectures.first().copied().unwrap_or(family.model_type);
            return Ok((family, name.to_owned()));
        }
    }
    let causal = architectures.iter().find_map(|name| headless::causal_class(name));
    if let Some(family) = causal.as_deref().and_then(|name| headless::family_of(name, FAMILIES)) {
        return Ok((family, family.architectures[0].to_owned()));
    }
    let found = match architectures.first() {
        Some(name) => name.clone(),
        None => model_type.unwrap_or("(none named)").to_owned(),
    };
    Err(unknown(found, more))
}

fn unknown(found: String, more: &'static [Family]) -> ModelError {
    let families = FAMILIES.iter().chain(more);
    ModelError::UnknownArchitecture {
        found,
        known: families.flat_map(|family| family.architectures).copied().collect(),
    }
}
