//! Dense decoders as data: a family is a [`Plan`], which says how it differs from Llama.
//!
//! Four differences need no code of their own, because other numbers give the same model:
//! - Pairs that stand side by side in a head are put apart when the weights are taken.
//! - A layer without positions has a rotation by no angle.
//! - A factor on logits goes into the weights of the last norm.
//! - A factor on the branches of all layers is the inverse factor on the embedding and, squared, on the terms that norms add.

mod attention;
mod build;
mod convolution_families;
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
