//! Arguments for the hub's models, and model names instead of paths.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Arg, ArgAction, Args};
use clap_complete::Shell;
use riffle_engine::DraftSpec;
use riffle_hub::{HubError, OtherPrograms, Settings};

use crate::model::NamedModel;
use crate::numbers;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  riffle pull --list\n  riffle pull qwen3:4b\n  riffle pull qwen2.5:1.5b --quant Q8_0\n  riffle chat --model qwen3:4b\n\nA pull that was interrupted goes on where it was.",
    after_long_help = "Examples:\n  riffle pull --list\n  riffle pull qwen3:4b\n  riffle pull qwen2.5:1.5b --quant Q8_0\n  riffle chat --model qwen3:4b\n\nA pull that was interrupted goes on where it was.\n\nWithout a quantisation riffle takes the largest GGUF model that fits in free memory and answers at 10 tokens a second or more; where only slower ones fit, one of about four bits; where none fits, the smallest. Files that are not quantised, and Q4_0 to Q5_1, are taken only where there is nothing else. Without GGUF files it takes the safetensors.\n\nEnvironment:\n  HF_TOKEN      Token for gated and private models [default: the file that hf auth login writes]\n  HF_ENDPOINT   Another hub\n  HF_HUB_CACHE  Folder of the models, which Python's huggingface_hub shares; or HF_HOME\n  HTTPS_PROXY   A proxy"
)]
pub(crate) struct PullArguments {
    /// Name: owner/name, owner/name:Q4_K_M, owner/name/file.gguf or a short name
    ///
    /// owner/name:Q4_K_M selects a quantisation, owner/name/file.gguf a file. Without a name the short names are
    /// listed.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Quantisation, such as Q4_K_M or UD-Q4_K_XL [default: the best for this machine]
    #[arg(long, value_name = "NAME", requires = "name")]
    pub(crate) quant: Option<String>,
    /// List the short names, with sizes and memory
    #[arg(long, conflicts_with = "name")]
    pub(crate) list: bool,
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
    /// owner/name removes the whole repository, owner/name:Q4_K_M or owner/name/file.gguf one file.
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

/// Parses a model: an existing path, or the name of a pulled model of riffle or another program, which becomes its
/// path.
pub(crate) fn model_path() -> impl TypedValueParser<Value = PathBuf> {
    model().map(|model| model.path)
}

/// Parses a model's name or path, and keeps the typed name.
pub(crate) fn model() -> impl TypedValueParser<Value = NamedModel> {
    PathBufValueParser::new().try_map(|name| resolved(name).map_err(|error| error.to_string()))
}

/// The model's option for a server, which may be repeated and takes `NAME=PATH` with the server's name of the model.
pub(crate) fn of_a_server(option: Arg) -> Arg {
    const LINE: &str = "Model, also as NAME=PATH; may be repeated [default: last used]";
    let details = option.get_long_help().map(ToString::to_string).unwrap_or_default();
    let details = details.split_once("\n\n").map_or("", |(_, details)| details);
    option
        .action(ArgAction::Append)
        .value_parser(PathBufValueParser::new().try_map(served))
        .help(LINE)
        .long_help(format!("{LINE}\n\nNAME is the model's name for clients. {details}"))
}

fn served(text: PathBuf) -> Result<NamedModel, String> {
    let parts = text.to_str().filter(|_| !text.exists());
    match parts.and_then(|text| text.split_once('=')) {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok(NamedModel {
            served_as: Some(name.to_owned()),
            ..resolved(path.into())?
        }),
        _ => resolved(text),
    }
}

/// Parses a `--draft`. Its small model may be a name, as for [`model`].
pub(crate) fn draft(text: &str) -> Result<DraftSpec, String> {
    let spec: DraftSpec = text.parse().map_err(numbers::requirement)?;
    match spec.model() {
        Some(name) => {
            let model = resolved(name.to_owned())?;
            Ok(spec.with_model(model.path))
        }
        None => Ok(spec),
    }
}

/// Finds the model of a name or a path.
pub(crate) fn resolved(name: PathBuf) -> Result<NamedModel, String> {
    let at = |path: PathBuf, name: PathBuf| {
        Ok(NamedModel {
            name,
            path,
            served_as: None,
        })
    };
    if name.symlink_metadata().is_ok() {
        return at(name.clone(), name);
    }
    let Some(text) = name.to_str() else {
        return at(name.clone(), name);
    };
    let found = Settings::from_environment()
        .and_then(|settings| riffle_hub::locate(&settings, &OtherPrograms::from_environment(), text));
    match found {
        Ok(Some(path)) => at(path, name),
        // The loader reports a text that is neither a file nor a name.
        Ok(None) => at(name.clone(), name),
        Err(HubError::NotStored { name }) => Err(format!(
            "there is no such file or folder, nor a model of that name here; get it: riffle pull {name}"
        )),
        Err(HubError::Incomplete { name, missing }) => Err(format!(
            "it is not complete in the cache of models ({missing}); get the rest: riffle pull {name}"
        )),
        Err(error) => Err(error.to_string()),
    }
}
