//! Describes how linear layers round their input.

use riffle_model::{Activations, ModelConfig, WeightFormat};

/// How linear layers of this model read their input: exactly, or rounded and to which precision.
pub fn described_activations(config: &ModelConfig, activations: Activations, on_device: bool) -> String {
    let most = described(config.weight_format, activations, on_device);
    if config.has_bf16_weights && is_quantised(config.weight_format) {
        let others = described(WeightFormat::Bf16, activations, on_device);
        return format!("{most}; {others}");
    }
    most
}

/// A note if the choice of `activations` has no effect; `None` otherwise.
pub fn activations_note(config: &ModelConfig, activations: Activations, on_device: bool) -> Option<String> {
    let format = config.weight_format;
    let why = match activations {
        Activations::Rounded if on_device => "a device rounds by rules of its own".to_owned(),
        Activations::Rounded if config.has_bf16_weights => return None,
        _ if is_quantised(format) => "the input of quantised weights is rounded to 8 bits in any case".to_owned(),
        Activations::Rounded => format!("this model's weights are {}", format.name()),
        Activations::Exact => return None,
    };
    Some(format!(
        "`activations={activations}` concerns bf16 weights on the CPU alone: {why}"
    ))
}

fn described(format: WeightFormat, activations: Activations, on_device: bool) -> String {
    let name = format.name();
    match format {
        format if is_quantised(format) => "rounded to 8 bits for quantised weights".to_owned(),
        WeightFormat::F16 | WeightFormat::Bf16 if on_device => {
            format!("rounded to {name} for {name} weights where more than 8 tokens are read at a time")
        }
        WeightFormat::Bf16 if activations == Activations::Rounded => "rounded to bf16 for bf16 weights".to_owned(),
        _ => format!("exact (f32) for {name} weights"),
    }
}

fn is_quantised(format: WeightFormat) -> bool {
    format.block_weights() > 1
}
