//! Dense decoders as data: a family is a [`Plan`] of its differences from Llama.
//!
//! Four differences need no code, because other numbers give the same model:
//! - Adjacent rotated pairs in a head are separated when the weights are loaded.
//! - A layer without positions has an identity rotation.
//! - A factor on logits goes into the weights of the last norm.
//! - A factor on the branches of all layers becomes the inverse factor on the embedding and, squared, on the norms'
//!   epsilons.

mod attention;
mod build;
mod convolution_families;
mod encoder_families;
mod expert_families;
mod families;
mod latent_families;
mod layer_norm_families;
mod layered_families;
mod linear_families;
mod mixer_families;
mod mixers;
mod plan;
mod position_families;
mod rms_families;
mod routed_families;

use build::{build, configure};
pub(super) use families::FAMILIES;
use mixers::{LayerParts, MixerPlan, NormedStream};
use plan::{AttentionGate, Block, Gate, HeadNorms, Inputs, MlpNames, NormKind, Plan, Positions};
