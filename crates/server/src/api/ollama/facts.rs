//! Facts about the files of a model, in the form for Ollama's clients.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::SystemTime;

use riffle_model::ModelInfo;
use serde_json::{Value, json};

/// Facts about a model's files, from their headers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelFacts {
    /// Format of the files, such as `gguf`.
    format: String,
    pub(super) family: String,
    pub(super) parameters: u64,
    pub(super) bytes: u64,
    /// Type of most weights, such as `Q4_K`.
    quantisation: String,
    pub(super) modified: SystemTime,
    /// Hash of the file's path, size and time, without its weights.
    digest: String,
}

impl ModelFacts {
    pub(crate) fn of(info: &ModelInfo) -> Self {
        let elements = |shape: &[usize]| shape.iter().map(|size| *size as u64).product::<u64>();
        let mut types: Vec<(String, u64)> = Vec::new();
        for tensor in &info.tensors {
            let name = tensor.element_type.to_string();
            match types.iter_mut().find(|(own, _)| *own == name) {
                Some((_, bytes)) => *bytes += tensor.bytes,
                None => types.push((name, tensor.bytes)),
            }
        }
        let modified = std::fs::metadata(&info.path).and_then(|metadata| metadata.modified());
        let modified = modified.unwrap_or(SystemTime::UNIX_EPOCH);
        let word = |number: u64| {
            let mut hasher = DefaultHasher::new();
            (number, &info.path, info.tensor_bytes, modified).hash(&mut hasher);
            format!("{:016x}", hasher.finish())
        };
        Self {
            format: info.format.to_lowercase(),
            family: family_of(&info.config.architecture),
            parameters: info.tensors.iter().map(|tensor| elements(&tensor.shape)).sum(),
            bytes: info.tensor_bytes,
            quantisation: types
                .into_iter()
                .max_by_key(|(_, bytes)| *bytes)
                .map_or_else(String::new, |(name, _)| name.to_uppercase()),
            modified,
            digest: (0..4).map(word).collect(),
        }
    }

    pub(super) fn details(&self) -> Value {
        json!({
            "parent_model": "",
            "format": self.format,
            "family": self.family,
            "families": [self.family],
            "parameter_size": rounded(self.parameters),
            "quantization_level": self.quantisation,
        })
    }

    /// Fields of a name in a list of models.
    pub(super) fn entry(&self, name: &str) -> Value {
        json!({
            "name": name,
            "model": name,
            "size": self.bytes,
            "digest": self.digest,
            "details": self.details(),
        })
    }
}

/// The family in GGUF's spelling: `LlamaForCausalLM` of other files is `llama`.
fn family_of(architecture: &str) -> String {
    let end = architecture.rfind("For").unwrap_or(architecture.len());
    architecture[..end].to_lowercase()
}

/// A count of parameters in Ollama's spelling, such as `134.5M`.
fn rounded(parameters: u64) -> String {
    let count = parameters as f64;
    match parameters {
        0..1_000 => parameters.to_string(),
        1_000..1_000_000 => format!("{:.1}K", count / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", count / 1e6),
        _ => format!("{:.1}B", count / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_models_are_rounded_as_ollama_writes_them() {
        for (parameters, text) in [
            (12, "12"),
            (747_000, "747.0K"),
            (134_515_008, "134.5M"),
            (7_615_616_512, "7.6B"),
        ] {
            assert_eq!(rounded(parameters), text);
        }
    }

    #[test]
    fn families_have_the_names_of_gguf_files() {
        for (architecture, family) in [
            ("llama", "llama"),
            ("LlamaForCausalLM", "llama"),
            ("Qwen2ForCausalLM", "qwen2"),
        ] {
            assert_eq!(family_of(architecture), family);
        }
    }

    #[test]
    fn facts_come_from_the_heads_of_the_files() {
        let engine = crate::forms::tests::engine();
        let read = || ModelFacts::of(&engine.options().model.inspect(engine.path()).unwrap());
        let facts = read();
        assert!(facts.parameters > 100_000 && facts.bytes > 2 << 20, "{facts:?}");
        assert_eq!(facts.digest.len(), 64);
        assert_eq!(facts, read());
    }
}
