//! Classes without a language-model head: `Qwen3Model` gives hidden states, `Qwen3ForSequenceClassification` scores.
//!
//! Each has the layers of the class that predicts tokens (`Qwen3ForCausalLM`), and therefore its family.

use super::Family;
use crate::ModelError;
use crate::fields::Fields;
use crate::weights::Checkpoint;

/// Suffixes of names of classes without a language-model head. The first match counts.
const ENDS: [&str; 4] = [
    "TextForSequenceClassification",
    "ForSequenceClassification",
    "TextModel",
    "Model",
];

/// The class that predicts tokens with the same layers; `None` for other classes.
pub(super) fn causal_class(class: &str) -> Option<String> {
    let stem = ENDS.iter().find_map(|end| class.strip_suffix(end))?;
    Some(format!("{stem}ForCausalLM"))
}

/// The family of the class that predicts tokens.
pub(super) fn family_of(causal_class: &str, families: &'static [Family]) -> Option<&'static Family> {
    families
        .iter()
        .find(|family| family.architectures.contains(&causal_class))
}

/// True if config.json names a class without a head that the family itself does not know.
pub(super) fn is_headless(fields: &Fields, family: &Family) -> Result<bool, ModelError> {
    let classes = fields.texts("architectures")?;
    let is_known = classes
        .iter()
        .any(|class| family.architectures.contains(&class.as_str()));
    let is_headless =
        |class: &String| causal_class(class).is_some_and(|causal| family.architectures.contains(&&*causal));
    Ok(!is_known && classes.iter().any(is_headless))
}

/// Adds the outer class's prefix to the tensor names of a model saved without that class: `layers.0.…` becomes
/// `model.layers.0.…`.
pub(crate) fn name_bare_tensors(weights: &mut Checkpoint) {
    const HEADS: [&str; 2] = ["lm_head.", "score."];
    if weights.info("embed_tokens.weight").is_none() {
        return;
    }
    weights.rename(|name| {
        let is_head = HEADS.iter().any(|head| name.starts_with(head));
        format!("{}{name}", if is_head { "" } else { "model." })
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_without_a_head_have_the_layers_of_the_one_that_predicts() {
        for (class, causal) in [
            ("Qwen3Model", "Qwen3ForCausalLM"),
            ("Gemma3TextModel", "Gemma3ForCausalLM"),
            ("Qwen3ForSequenceClassification", "Qwen3ForCausalLM"),
            ("Gemma3TextForSequenceClassification", "Gemma3ForCausalLM"),
        ] {
            assert_eq!(causal_class(class).as_deref(), Some(causal));
        }
        assert_eq!(causal_class("Qwen3ForCausalLM"), None);
    }
}
