//! The architectures, one file each.

mod foreign;
mod gemma;
mod llama;
mod mistral;
mod phi;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_5;

use crate::decoder::Decoder;
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

/// How models of one architecture are configured and put together.
pub(crate) struct Family {
    /// Names in config.json's `architectures`.
    pub(crate) architectures: &'static [&'static str],
    /// config.json's `model_type`, for files that name no architecture.
    pub(crate) model_type: &'static str,
    /// Reads the sizes.
    configure: fn(&Fields, &str) -> Result<ModelConfig, ModelError>,
    /// Takes the weights.
    pub(crate) build: fn(&Fields, &ModelConfig, &mut Checkpoint) -> Result<Decoder, ModelError>,
}

const FAMILIES: &[Family] = &[
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    qwen3_5::FAMILY,
    phi::FAMILY,
    phi3::FAMILY,
    gemma::GEMMA2,
    gemma::GEMMA3,
];

/// The family that `fields` name and the model they describe, checked.
pub(crate) fn configure(fields: &Fields) -> Result<(&'static Family, ModelConfig), ModelError> {
    let (family, architecture) = find(fields)?;
    foreign::refuse(fields, &architecture)?;
    let config = (family.configure)(fields, &architecture)?;
    foreign::check_layer_types(fields, &config)?;
    Ok((family, config))
}

/// The family config.json names, and the name it goes by there.
fn find(fields: &Fields) -> Result<(&'static Family, String), ModelError> {
    let architectures = fields.texts("architectures")?;
    let model_type = fields.text("model_type")?;
    for family in FAMILIES {
        for name in family.architectures {
            if architectures.iter().any(|found| found == name) {
                return Ok((family, (*name).to_owned()));
            }
        }
        if architectures.is_empty() && model_type == Some(family.model_type) {
            return Ok((family, family.architectures[0].to_owned()));
        }
    }
    Err(ModelError::UnknownArchitecture {
        found: match architectures.first() {
            Some(name) => name.clone(),
            None => model_type.unwrap_or("(none named)").to_owned(),
        },
        known: FAMILIES
            .iter()
            .flat_map(|family| family.architectures)
            .copied()
            .collect(),
    })
}
