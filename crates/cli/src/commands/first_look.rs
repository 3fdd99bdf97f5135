//! A look at a model of which only the beginning has been downloaded: what it is, whether it runs here, whether it fits.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use riffle_engine::{EngineOptions, MemoryPlan, available_memory_bytes, human_bytes};
use riffle_hub::Beginning;
use riffle_model::{LoadOptions, ModelConfig, ModelError, ModelInfo};

use super::grouped;
use crate::console;

/// Tokens of the context that a model is planned with here.
const CONTEXT_TOKENS: usize = 4096;

/// Tells what the model is; an error says why it cannot run, so that the rest is not downloaded.
pub(crate) fn look(beginning: &Beginning<'_>) -> Result<(), String> {
    match beginning {
        Beginning::Settings(path, bytes) => {
            let config = riffle_model::configure(path, &LoadOptions::default()).map_err(|error| error.to_string())?;
            console::note(format!("{}; {}", described(&config), rate(*bytes)));
        }
        Beginning::Head(path, bytes) => {
            if let Some(info) = inspect_head(path, *bytes)? {
                let read = bytes_of_a_token(&info);
                console::note(format!(
                    "{}; {}; {}",
                    described(&info.config),
                    fitting(&info),
                    rate(read)
                ));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Inspects a GGUF file by its first bytes. `None` where these do not suffice: the file is looked at again when it is whole.
fn inspect_head(path: &Path, whole_bytes: u64) -> Result<Option<ModelInfo>, String> {
    // A file as long as the whole one, without the bytes that nobody reads here.
    let Ok(stand_in) = stand_in(path, whole_bytes) else {
        return Ok(None);
    };
    match riffle_model::inspect(stand_in.path()) {
        Ok(info) => Ok(Some(info)),
        Err(ModelError::UnknownArchitecture { found, .. }) => Err(format!("architecture {found:?} is not supported")),
        Err(ModelError::UnknownType { tensor, found, .. }) => {
            Err(format!("tensor {tensor} is of type {found}, which is not supported"))
        }
        Err(ModelError::Config { field, problem, .. }) => Err(format!("{field}: {problem}")),
        Err(_) => Ok(None),
    }
}

fn stand_in(path: &Path, whole_bytes: u64) -> io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new()?;
    let mut head = File::open(path)?.take(whole_bytes);
    io::copy(&mut head, &mut file)?;
    file.as_file().set_len(whole_bytes)?;
    Ok(file)
}

fn described(config: &ModelConfig) -> String {
    format!(
        "{}: {} layers, hidden {}, made for {} tokens{}",
        config.architecture,
        config.layers,
        grouped(config.hidden_size),
        grouped(config.max_position),
        config
            .quantised
            .map_or(String::new(), |method| format!(", weights quantised by {method}")),
    )
}

/// Bytes of the weights that every token reads: all but the rows of an embedding of its own.
fn bytes_of_a_token(info: &ModelInfo) -> u64 {
    let rows_only = |name: &str| name == "model.embed_tokens.weight" && !info.config.tied_embeddings;
    let read = info.tensors.iter().filter(|tensor| !rows_only(&tensor.name));
    read.map(|tensor| tensor.bytes).sum()
}

/// About how fast answers will be on the CPU, with little context: every token reads the weights once.
fn rate(weight_bytes: u64) -> String {
    let machine = super::pull::machine();
    let tokens = machine.tokens_per_s(weight_bytes);
    let digits = usize::from(tokens < 10.0);
    format!(
        "at most about {tokens:.digits$} tokens/s here ({} a token, memory read at {:.0} GB/s)",
        human_bytes(weight_bytes),
        machine.bytes_per_s / 1e9
    )
}

/// Compares what the model needs with the memory of this machine.
fn fitting(info: &ModelInfo) -> String {
    let available = available_memory_bytes();
    let context = CONTEXT_TOKENS.min(info.config.max_position);
    let options = EngineOptions::default().with_context_tokens(Some(context));
    match MemoryPlan::new(info, &options, available) {
        Ok(plan) if plan.fits() => format!(
            "fits this machine: {} of {} with a context of {} tokens",
            human_bytes(plan.total_bytes),
            human_bytes(available),
            grouped(context),
        ),
        Ok(plan) => format!(
            "does not fit this machine: it needs {} with a context of {} tokens, and {} are free",
            human_bytes(plan.total_bytes),
            grouped(context),
            human_bytes(available),
        ),
        Err(error) => error.to_string(),
    }
}
