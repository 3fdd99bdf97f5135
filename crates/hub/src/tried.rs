//! Models that are known to work with Riffle, by short name: the common list of `riffle pull --list` and the book.

/// A model of the list.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct TriedModel {
    /// Short name, such as `qwen3:4b`. Case, spaces and punctuation do not matter.
    pub name: &'static str,
    /// Repository of the model on the hub.
    pub repository: &'static str,
    /// The quantisation of the given size.
    pub quantisation: &'static str,
    /// Bytes of the model's files, rounded to two digits.
    pub file_bytes: u64,
    /// Context length of the model, in tokens.
    pub context_tokens: u64,
    /// The layers of the model's KV cache.
    pub cache: CacheShape,
    /// Kind of test.
    pub evidence: Evidence,
}

/// Kind of a model's test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// The model was run and measured in this or another quantisation; `docs/results` has the figures.
    Run,
    /// The architecture was compared with transformers on small random weights; the model itself was not run.
    Architecture,
}

/// Layers with keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheShape {
    /// Layers that keep every token.
    pub full_layers: u64,
    /// Layers that keep a window.
    pub window_layers: u64,
    /// Tokens of that window.
    pub window_tokens: u64,
    /// Bytes per token of a layer in f16.
    pub layer_bytes: u64,
    /// Bytes of recurrent states, for any context.
    pub state_bytes: u64,
}

/// Context in [`TriedModel::memory_bytes`], in tokens.
const CONTEXT_TOKENS: u64 = 8192;
/// Tokens that a layer with a window keeps in addition: earlier tokens, and a batch.
const TOKENS_BESIDES_WINDOW: u64 = 512 + 4096;
/// Memory of the program, the tokenizer and the scratch of a batch, in bytes, and their share of the weights.
const PROGRAM_BYTES: u64 = 200_000_000;
const SCRATCH_SHARE: u64 = 16;

/// Every model of the list, smallest first.
pub const TRIED: &[TriedModel] = &[
    model(
        "smollm2:135m",
        "bartowski/SmolLM2-135M-Instruct-GGUF",
        ("Q4_K_M", 105),
        8192,
        full(30, 768),
        Evidence::Run,
    ),
    model(
        "gemma3:270m",
        "unsloth/gemma-3-270m-it-GGUF",
        ("Q4_K_M", 253),
        32_768,
        windows(3, 15, 512, 1024),
        Evidence::Run,
    ),
    model(
        "qwen2.5:0.5b",
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        ("Q4_K_M", 490),
        32_768,
        full(24, 512),
        SHAPE,
    ),
    model(
        "qwen3:0.6b",
        "Qwen/Qwen3-0.6B-GGUF",
        ("Q8_0", 640),
        40_960,
        full(28, 4096),
        SHAPE,
    ),
    model(
        "llama3.2:1b",
        "bartowski/Llama-3.2-1B-Instruct-GGUF",
        ("Q4_K_M", 810),
        131_072,
        full(16, 2048),
        SHAPE,
    ),
    model(
        "gemma3:1b",
        "ggml-org/gemma-3-1b-it-GGUF",
        ("Q4_K_M", 810),
        32_768,
        windows(4, 22, 512, 1024),
        SHAPE,
    ),
    model(
        "qwen2.5:1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
        ("Q4_K_M", 1120),
        32_768,
        full(28, 1024),
        SHAPE,
    ),
    model(
        "qwen2.5-coder:1.5b",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        ("Q4_K_M", 1120),
        32_768,
        full(28, 1024),
        Evidence::Run,
    ),
    model(
        "qwen3:1.7b",
        "Qwen/Qwen3-1.7B-GGUF",
        ("Q8_0", 1830),
        40_960,
        full(28, 4096),
        SHAPE,
    ),
    model(
        "smollm3:3b",
        "ggml-org/SmolLM3-3B-GGUF",
        ("Q4_K_M", 1920),
        65_536,
        full(36, 2048),
        SHAPE,
    ),
    model(
        "llama3.2:3b",
        "bartowski/Llama-3.2-3B-Instruct-GGUF",
        ("Q4_K_M", 2020),
        131_072,
        full(28, 4096),
        SHAPE,
    ),
    model(
        "qwen2.5:3b",
        "Qwen/Qwen2.5-3B-Instruct-GGUF",
        ("Q4_K_M", 2100),
        32_768,
        full(36, 1024),
        SHAPE,
    ),
    model(
        "gemma3:4b",
        "ggml-org/gemma-3-4b-it-GGUF",
        ("Q4_K_M", 2490),
        131_072,
        windows(5, 29, 1024, 4096),
        SHAPE,
    ),
    model(
        "phi4-mini:3.8b",
        "unsloth/Phi-4-mini-instruct-GGUF",
        ("Q4_K_M", 2490),
        131_072,
        full(32, 4096),
        SHAPE,
    ),
    model(
        "qwen3:4b",
        "Qwen/Qwen3-4B-GGUF",
        ("Q4_K_M", 2500),
        40_960,
        full(36, 4096),
        SHAPE,
    ),
    model(
        "qwen3.5:4b",
        "unsloth/Qwen3.5-4B-GGUF",
        ("Q4_K_M", 2740),
        262_144,
        states(8, 4096, 210),
        SHAPE,
    ),
    model(
        "mistral:7b",
        "bartowski/Mistral-7B-Instruct-v0.3-GGUF",
        ("Q4_K_M", 4370),
        32_768,
        full(32, 4096),
        SHAPE,
    ),
    model(
        "qwen2.5:7b",
        "bartowski/Qwen2.5-7B-Instruct-GGUF",
        ("Q4_K_M", 4680),
        32_768,
        full(28, 2048),
        SHAPE,
    ),
    model(
        "llama3.1:8b",
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
        ("Q4_K_M", 4920),
        131_072,
        full(32, 4096),
        SHAPE,
    ),
    model(
        "qwen3:8b",
        "Qwen/Qwen3-8B-GGUF",
        ("Q4_K_M", 5030),
        40_960,
        full(36, 4096),
        SHAPE,
    ),
    model(
        "gemma3:12b",
        "ggml-org/gemma-3-12b-it-GGUF",
        ("Q4_K_M", 7300),
        131_072,
        windows(8, 40, 1024, 8192),
        SHAPE,
    ),
    model(
        "qwen3:14b",
        "Qwen/Qwen3-14B-GGUF",
        ("Q4_K_M", 9000),
        40_960,
        full(40, 4096),
        SHAPE,
    ),
    model(
        "mistral-small3.2:24b",
        "unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF",
        ("Q4_K_M", 14_300),
        131_072,
        full(40, 4096),
        SHAPE,
    ),
    model(
        "qwen3.8:27b",
        "unsloth/Qwen3.8-27B-GGUF",
        ("UD-Q4_K_M", 16_460),
        262_144,
        states(16, 4096, 600),
        SHAPE,
    ),
    model(
        "gemma3:27b",
        "ggml-org/gemma-3-27b-it-GGUF",
        ("Q4_K_M", 16_500),
        131_072,
        windows(10, 52, 1024, 8192),
        SHAPE,
    ),
    model(
        "qwen3:32b",
        "Qwen/Qwen3-32B-GGUF",
        ("Q4_K_M", 19_800),
        40_960,
        full(64, 4096),
        SHAPE,
    ),
];

const SHAPE: Evidence = Evidence::Architecture;

const fn model(
    name: &'static str,
    repository: &'static str,
    (quantisation, megabytes): (&'static str, u64),
    context_tokens: u64,
    cache: CacheShape,
    evidence: Evidence,
) -> TriedModel {
    TriedModel {
        name,
        repository,
        quantisation,
        file_bytes: megabytes * 1_000_000,
        context_tokens,
        cache,
        evidence,
    }
}

const fn full(layers: u64, layer_bytes: u64) -> CacheShape {
    windows(layers, 0, 0, layer_bytes)
}

const fn windows(full_layers: u64, window_layers: u64, window_tokens: u64, layer_bytes: u64) -> CacheShape {
    CacheShape {
        full_layers,
        window_layers,
        window_tokens,
        layer_bytes,
        state_bytes: 0,
    }
}

const fn states(full_layers: u64, layer_bytes: u64, state_megabytes: u64) -> CacheShape {
    CacheShape {
        state_bytes: state_megabytes * 1_000_000,
        ..full(full_layers, layer_bytes)
    }
}

impl TriedModel {
    /// The name that [`pull`](crate::pull) takes: `owner/name:Q4_K_M`.
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.repository, self.quantisation)
    }

    /// Estimated memory of a run with a context of 8,192 tokens in f16, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let windows = CONTEXT_TOKENS.min(self.cache.window_tokens + TOKENS_BESIDES_WINDOW);
        let tokens = self.cache.full_layers * CONTEXT_TOKENS + self.cache.window_layers * windows;
        let cache = tokens * self.cache.layer_bytes + self.cache.state_bytes;
        self.file_bytes + cache + PROGRAM_BYTES + self.file_bytes / SCRATCH_SHARE
    }

    /// The list for the book, as a Markdown table.
    pub fn table() -> String {
        let mut text = String::from(
            "| name | repository | file | size | memory | context | known by |\n|---|---|---|---:|---:|---:|---|\n",
        );
        for model in TRIED {
            text += &format!(
                "| `{}` | `{}` | {} | {} | {} | {} | {} |\n",
                model.name,
                model.repository,
                model.quantisation,
                gigabytes(model.file_bytes),
                gigabytes(model.memory_bytes()),
                model.context_tokens,
                model.evidence.words(),
            );
        }
        text
    }
}

impl Evidence {
    /// The evidence in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Run => "was run",
            Self::Architecture => "architecture",
        }
    }
}

/// Bytes in units of 10⁹, as in the list.
pub fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// The model of a short name: `qwen3-4b`, `Llama 3.2 1B`, `gemma3:4b`.
pub fn tried(name: &str) -> Option<&'static TriedModel> {
    let wanted = key(name);
    TRIED
        .iter()
        .find(|model| key(model.name) == wanted || key(own_name(model)) == wanted)
}

/// The most similar short names for an unknown name, at most five. Empty if none is similar.
pub fn nearest(name: &str) -> Vec<&'static str> {
    let wanted = key(name);
    if wanted.is_empty() {
        return Vec::new();
    }
    let mut near: Vec<(usize, &'static str)> = TRIED
        .iter()
        .filter_map(|model| {
            let found = key(model.name);
            let distance = if found.starts_with(&wanted) {
                0
            } else {
                strsim::osa_distance(&wanted, &found)
            };
            (distance <= 1 + wanted.len() / 4).then_some((distance, model.name))
        })
        .collect();
    near.sort_by_key(|(distance, _)| *distance);
    near.truncate(MOST_SUGGESTIONS);
    near.into_iter().map(|(_, name)| name).collect()
}

const MOST_SUGGESTIONS: usize = 5;
/// Words in names that do not distinguish these models.
const COMMON_WORDS: [&str; 6] = ["instruct", "it", "chat", "gguf", "hf", "latest"];
/// Limit on the compared characters of a name.
const LONGEST: usize = 100;

/// The model's name within its repository's name.
fn own_name(model: &TriedModel) -> &'static str {
    model.repository.rsplit('/').next().unwrap_or_default()
}

/// The letters and digits of a name in small letters, without common words.
fn key(name: &str) -> String {
    let name: String = name.chars().take(LONGEST).collect::<String>().to_ascii_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| !COMMON_WORDS.contains(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelName;

    #[test]
    fn short_names_are_read_as_people_write_them() {
        for (text, name) in [
            ("qwen3-4b", "qwen3:4b"),
            ("llama3.2:1b", "llama3.2:1b"),
            ("Gemma 3 4B", "gemma3:4b"),
            ("Llama-3.2-1B-Instruct", "llama3.2:1b"),
            ("gemma-3-27b-it", "gemma3:27b"),
            ("Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder:1.5b"),
        ] {
            assert_eq!(tried(text).map(|model| model.name), Some(name), "{text}");
        }
        for text in ["", "qwen3", "qwen", "gpt2", "llama3.2:70b"] {
            assert_eq!(tried(text), None, "{text}");
        }
    }

    #[test]
    fn near_names_are_suggested() {
        assert_eq!(nearest("qwen3")[..2], ["qwen3:0.6b", "qwen3:1.7b"]);
        assert_eq!(nearest("lama3.2:1b")[0], "llama3.2:1b");
        assert!(nearest("zzzzzzzzzz").is_empty() && nearest("").is_empty());
        assert!(nearest(&"é".repeat(10_000)).is_empty());
    }

    #[test]
    fn every_model_has_names_that_find_it_and_sizes_that_grow() {
        for model in TRIED {
            assert_eq!(tried(model.name), Some(model), "{}", model.name);
            assert!(model.full_name().parse::<ModelName>().is_ok(), "{}", model.full_name());
            assert!(model.memory_bytes() > model.file_bytes);
        }
        assert!(TRIED.is_sorted_by_key(|model| model.file_bytes));
    }
}
