//! Arguments that have to do with the hub's models, and names of models where a path may stand.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use clap_complete::Shell;
use riffle_engine::DraftSpec;
use riffle_hub::{HubError, ModelName, Settings};

use crate::numbers;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  riffle pull Qwen/Qwen2.5-1.5B-Instruct-GGUF\n  riffle pull Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q8_0\n  riffle chat --model Qwen/Qwen2.5-1.5B-Instruct-GGUF\n\nA pull that was interrupted goes on where it was.",
    after_long_help = "Examples:\n  riffle pull Qwen/Qwen2.5-1.5B-Instruct-GGUF\n  riffle pull Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q8_0\n  riffle chat --model Qwen/Qwen2.5-1.5B-Instruct-GGUF\n\nA pull that was interrupted goes on where it was.\n\nWithout a quantisation riffle takes the first of these that the repository has: Q4_K_M, Q4_K_S, Q4_K_L, Q4_K, Q4_0, Q4_1, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q5_K_M, Q5_K_S, Q5_0, Q5_1, Q6_K, Q8_0, Q3_K_L, Q3_K_M, IQ3_M, IQ3_S, Q3_K_S, IQ3_XXS, Q2_K, IQ2_M, IQ2_S, IQ2_XS, BF16, F16, F32, IQ2_XXS, TQ2_0, TQ1_0, Q2_0, IQ1_M, IQ1_S, Q1_0; without GGUF files the safetensors.\n\nEnvironment:\n  HF_TOKEN      Token for gated and private models [default: the file that hf auth login writes]\n  HF_ENDPOINT   Another hub\n  HF_HUB_CACHE  Folder of the models, which Python's huggingface_hub shares; or HF_HOME\n  HTTPS_PROXY   A proxy"
)]
pub(crate) struct PullArguments {
    /// Name: owner/name, owner/name:Q4_K_M or owner/name/file.gguf
    ///
    /// owner/name:Q4_K_M takes a quantisation, owner/name/file.gguf a file.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RmArguments {
    /// Name, as riffle list shows it
    ///
    /// owner/name removes everything of it, owner/name:Q4_K_M or owner/name/file.gguf one file.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  riffle completions bash > ~/.local/share/bash-completion/completions/riffle\n  riffle completions zsh > ~/.zfunc/_riffle\n  riffle completions fish > ~/.config/fish/completions/riffle.fish"
)]
pub(crate) struct CompletionsArguments {
    /// Shell: bash, zsh, fish, elvish or powershell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// Folder to write the pages to
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

/// Reads a model: a path that exists, or else the name of a model in the hub's cache, for which its path there stands.
pub(crate) fn model() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| resolved(path).map_err(|error| error.to_string()))
}

/// Reads a `--draft`, whose small model may be named as [`model`] may.
pub(crate) fn draft(text: &str) -> Result<DraftSpec, String> {
    let spec: DraftSpec = text.parse().map_err(numbers::requirement)?;
    match spec.model() {
        Some(path) => {
            let path = resolved(path.to_owned())?;
            Ok(spec.with_model(path))
        }
        None => Ok(spec),
    }
}

fn resolved(path: PathBuf) -> Result<PathBuf, String> {
    if path.symlink_metadata().is_ok() {
        return Ok(path);
    }
    let Some(name) = path.to_str().and_then(named) else {
        // The loader reports a path that is no file and no name.
        return Ok(path);
    };
    let found = Settings::from_environment().and_then(|settings| riffle_hub::find(&settings.cache, &name));
    match found {
        Ok(found) => {
            riffle_hub::mark_used(&found);
            Ok(found)
        }
        Err(HubError::NotStored { .. }) => Err(format!(
            "there is no such file or folder, nor a model of that name in the cache; get it: riffle pull {name}"
        )),
        Err(HubError::Incomplete { missing, .. }) => Err(format!(
            "it is not complete in the cache of models ({missing}); get the rest: riffle pull {name}"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// The model that a text names; `None` for what reads like a path.
fn named(text: &str) -> Option<ModelName> {
    let is_file = text.matches('/').count() == 1 && (text.ends_with(".gguf") || text.ends_with(".safetensors"));
    if is_file { None } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_quantisations_in_the_help_is_the_one_that_is_used() {
        let command = <PullArguments as Args>::augment_args(clap::Command::new("pull"));
        let help = command.get_after_long_help().expect("help").to_string();
        assert!(help.contains(&riffle_hub::PREFERENCE.join(", ")), "{help}");
    }

    #[test]
    fn paths_are_not_taken_for_names() {
        for text in [
            "models/a.gguf",
            "/a/b",
            "./a/b",
            "../a/b",
            "a",
            "a/b/",
            "C:\\a/b",
            "a/b/c",
        ] {
            let name = named(text).map(|name| name.to_string());
            assert!(name.is_none() || text == "a/b/", "{text}: {name:?}");
        }
        assert_eq!(named("a/b:q8_0").map(|name| name.to_string()), Some("a/b:Q8_0".into()));
        assert!(named("a/b/c.gguf").is_some());
    }
}
