//! Inspects the beginning of a model during its download: its kind, and whether it runs and fits on this machine.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use riffle_engine::{EngineOptions, MemoryPlan, available_memory_bytes, human_bytes};
use riffle_hub::Beginning;
use riffle_model::{LoadOptions, ModelConfig, ModelError, ModelInfo};
use riffle_system::files::make_sparse;

use super::grouped;
use crate::console;

/// Tokens of the planned context.
const CONTEXT_TOKENS: usize = 4096;

/// Prints the model's properties. An error is the reason why it cannot run, and stops the download.
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

/// Inspects the first bytes of a GGUF file. `None` if they are too few; the complete file is then inspected later.
fn inspect_head(path: &Path, whole_bytes: u64) -> Result<Option<ModelInfo>, String> {
    // A sparse file of the full length, without the bytes that the inspection ignores.
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
    make_sparse(file.as_file())?;
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

/// Bytes of the weights that every token reads: all except a separate embedding.
fn bytes_of_a_token(info: &ModelInfo) -> u64 {
    let rows_only = |name: &str| name == "model.embed_tokens.weight" && !info.config.tied_embeddings;
    let read = info.tensors.iter().filter(|tensor| !rows_only(&tensor.name));
    read.map(|tensor| tensor.bytes).sum()
}

/// The approximate rate of answers on the CPU with little context: every token reads the weights once.
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

/// Compares the model's memory with this machine's memory.
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
