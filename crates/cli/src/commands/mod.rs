//! One file a command.

pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod demo;
pub(crate) mod eval;
pub(crate) mod inspect;
pub(crate) mod plan;
pub(crate) mod policies;
pub(crate) mod run;

use std::io::{self, Write};
use std::path::Path;

use riffle_engine::{EngineError, EngineOptions, Profile, StreamWindow};
use riffle_files::FileError;
use riffle_kv::{DiskTier, KvTiers};
use riffle_policy::PolicyRules;
use serde::Serialize;

use crate::args::{EngineArguments, HeadsArguments};
use crate::failure::Failure;

/// The engine's options, as the arguments give them.
pub(crate) fn engine_options(arguments: &EngineArguments) -> Result<EngineOptions, Failure> {
    let (key_format, value_format) = riffle_engine::parse_kv_type(&arguments.kv_type)?;
    let defaults = EngineOptions::default();
    let profile = profile(arguments)?;
    let preferred = profile.prefill.preferred_chunk_tokens();
    let chunk_tokens = preferred.unwrap_or(defaults.chunk_tokens).min(arguments.batch);
    let options = EngineOptions {
        context_tokens: arguments.ctx,
        rope_scaling: arguments
            .rope_scaling
            .as_deref()
            .map(str::parse)
            .transpose()
            .map_err(EngineError::from)?,
        activations: arguments.activations,
        batch_tokens: arguments.batch,
        chunk_tokens: arguments.chunk.unwrap_or(chunk_tokens),
        page_tokens: arguments.page_tokens.unwrap_or(defaults.page_tokens),
        key_format,
        rotate: arguments.kv_rotate,
        value_format,
        prefill: profile.prefill,
        decode: profile.decode,
        cost: profile.cost,
        audit: arguments.audit,
        auto_target: arguments.auto,
        kv_tiers: KvTiers {
            device_budget_bytes: bytes("--kv-device-budget", &arguments.kv_device_budget)?.unwrap_or(0),
            ram_budget_bytes: bytes("--kv-ram-budget", &arguments.kv_ram_budget)?,
            disk: match &arguments.kv_disk {
                Some(folder) => Some(DiskTier {
                    folder: folder.clone(),
                    budget_bytes: bytes("--kv-disk-budget", &arguments.kv_disk_budget)?,
                }),
                None => None,
            },
            slots: arguments.kv_slots,
            ..defaults.kv_tiers
        },
        memory_budget_bytes: bytes("--memory", &arguments.memory)?,
        ..defaults
    };
    let options = options.on_device(arguments.device.as_deref())?;
    match arguments.window_size {
        Some(window_tokens) => Ok(options.with_window(StreamWindow {
            window_tokens,
            sink_tokens: arguments.sink_tokens,
        })?),
        None => Ok(options),
    }
}

/// Query heads, KV heads and the width of a head.
pub(crate) fn heads(arguments: &HeadsArguments) -> Result<[usize; 3], Failure> {
    match arguments.shape[..] {
        [heads, kv_heads, width] if kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads) && width > 0 => {
            Ok([heads, kv_heads, width])
        }
        _ => Err(Failure::new(
            "--shape takes query heads, KV heads that divide them, and the width of a head, such as 16,8,128"
                .to_owned(),
        )),
    }
}

/// Policies as the arguments give them: from a file, or one for each phase.
fn profile(arguments: &EngineArguments) -> Result<Profile, Failure> {
    if let Some(path) = &arguments.profile {
        let profile = read_text(path)?.parse::<Profile>();
        return profile.map_err(|error| Failure::new(format!("{}: {error}", path.display())));
    }
    let h2o = [("local", arguments.h2o_local), ("heavy", arguments.h2o_heavy)];
    let mut prefill: PolicyRules = match &*arguments.prefill {
        "full" if h2o.iter().any(|(_, value)| value.is_some()) => "h2o-chunk".parse().map_err(EngineError::from)?,
        text => text.parse().map_err(EngineError::from)?,
    };
    for (parameter, value) in h2o {
        if let Some(value) = value {
            if prefill.base.name() != "h2o-chunk" {
                return Err(Failure::new(format!(
                    "--h2o-{parameter} belongs to --prefill h2o-chunk, not to {}: leave one of them out",
                    prefill.base.name()
                )));
            }
            let changed = prefill.base.with(parameter, &value.to_string());
            prefill.base = changed.map_err(EngineError::from)?;
        }
    }
    Ok(Profile {
        prefill,
        decode: arguments.decode.parse().map_err(EngineError::from)?,
        ..Profile::default()
    })
}

fn bytes(name: &'static str, text: &Option<String>) -> Result<Option<u64>, EngineError> {
    text.as_deref()
        .map(|text| riffle_engine::parse_bytes(name, text))
        .transpose()
}

/// Most bytes of a prompt or another text: some fifty million tokens.
const LARGEST_TEXT_BYTES: u64 = 256 << 20;

/// A text file, whole.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    text(path, riffle_files::read(path, LARGEST_TEXT_BYTES))
}

/// A prompt, whole, from a file or from a pipe.
pub(crate) fn read_prompt(path: &Path) -> Result<String, Failure> {
    text(path, riffle_files::read_file_or_pipe(path, LARGEST_TEXT_BYTES))
}

/// Standard input, to its end.
pub(crate) fn read_standard_input() -> Result<String, Failure> {
    let bytes = riffle_files::read_within(io::stdin().lock(), LARGEST_TEXT_BYTES);
    utf8(
        bytes.map_err(|error| Failure::new(format!("standard input: {error}")))?,
        "standard input",
    )
}

fn text(path: &Path, bytes: Result<Vec<u8>, FileError>) -> Result<String, Failure> {
    let bytes = bytes.map_err(|error| {
        let what = match error.kind() {
            io::ErrorKind::NotFound => "no such file; check the path".to_owned(),
            io::ErrorKind::IsADirectory => "a folder; give a file".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(format!("{}: {what}", path.display()))
    })?;
    utf8(bytes, &path.display().to_string())
}

/// Bytes as text; says where they stop being UTF-8.
pub(crate) fn utf8(bytes: Vec<u8>, name: &str) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        Failure::new(format!(
            "{name}: not UTF-8 text (byte {} is wrong): convert it first, e.g. with iconv -t UTF-8",
            error.utf8_error().valid_up_to()
        ))
    })
}

/// Writes to standard output and says plainly when that fails.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .map_err(|error| Failure::output(&error))
}

/// One JSON object on standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::new)?;
    print(&(text + "\n"))
}

/// A number with thousands separated.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
