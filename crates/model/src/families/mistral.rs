//! Mistral: Llama with a window in every layer.

use super::{Family, llama};
use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family::new(&["MistralForCausalLM"], "mistral", configure, build);

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let mut config = llama::configure(fields, architecture)?;
    // Null means no window; without the setting, the first model's window applies.
    config.set_window(&fields.with_default("sliding_window", 4096))?;
    Ok(config)
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    llama::build_with(llama::Style::default(), fields, config, weights)
}
