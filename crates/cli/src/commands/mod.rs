//! The commands, one file each.

pub(crate) mod ask;
pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod documents;
pub(crate) mod eval;
#[cfg(feature = "pull")]
mod first_look;
pub(crate) mod inspect;
pub(crate) mod launch;
pub(crate) mod list;
pub(crate) mod plan;
pub(crate) mod policies;
pub(crate) mod pull;
pub(crate) mod quantize;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod tokenize;

use std::io::{self, IsTerminal};
use std::path::Path;

use riffle_engine::{Engine, EngineError, EngineOptions, Profile, StreamWindow, human_bytes};
use riffle_files::FileError;
use riffle_kv::{DiskTier, KvTiers};
use riffle_model::ModelConfig;
use riffle_policy::PolicyRules;

use crate::args::{EngineArguments, HeadsArguments, PromptArguments};
use crate::console;
use crate::device;
use crate::failure::Failure;
use crate::flags;
use crate::unused;

pub(crate) use crate::console::{print, print_json};
pub(crate) use riffle_files::grouped;

/// The engine's options from the arguments.
pub(crate) fn engine_options(arguments: &EngineArguments) -> Result<EngineOptions, Failure> {
    unused::check_formats(arguments)?;
    let (key_format, value_format) = riffle_engine::parse_kv_type(&arguments.kv_formats())?;
    let defaults = EngineOptions::default();
    let profile = profile(arguments)?;
    let preferred = profile.prefill.preferred_chunk_tokens();
    let batch_tokens = arguments.batch.unwrap_or(defaults.machine.batch_tokens);
    let chunk_tokens = preferred.unwrap_or(defaults.machine.chunk_tokens).min(batch_tokens);
    let options = EngineOptions::default()
        .with_context_tokens(arguments.ctx)
        .with_rope_scaling(
            arguments
                .rope_scaling
                .as_deref()
                .map(str::parse)
                .transpose()
                .map_err(EngineError::from)?,
        )
        .with_activations(arguments.activations.unwrap_or_default())
        .with_adapters(arguments.lora.clone())
        .with_attention(arguments.attention)
        .with_batch_tokens(batch_tokens)
        .with_batch_grows(arguments.batch.is_none())
        .with_chunk_tokens(arguments.chunk.unwrap_or(chunk_tokens))
        .with_page_tokens(arguments.page_tokens.unwrap_or(defaults.cache.page_tokens))
        .with_key_format(key_format)
        .with_rotate(arguments.kv_rotate)
        .with_value_format(value_format)
        .with_prefill(profile.prefill)
        .with_decode(profile.decode)
        .with_cost(profile.cost)
        .with_audit(arguments.audit)
        .with_score_pairs(arguments.score_pairs)
        .with_auto_target(arguments.auto)
        .with_token_selection(arguments.select_tokens.as_deref().map(str::parse).transpose()?)
        .with_kv_tiers(KvTiers {
            device_budget_bytes: arguments.kv_device_budget.unwrap_or(0),
            ram_budget_bytes: arguments.kv_ram_budget,
            disk: arguments.kv_disk.clone().map(|folder| DiskTier {
                folder,
                budget_bytes: arguments.kv_disk_budget,
            }),
            slots: arguments.kv_slots,
            ..defaults.cache.kv_tiers
        })
        .with_memory_budget_bytes(arguments.memory)
        .with_weights_budget_bytes(arguments.weights_ram);
    let options = options.on_device(arguments.device.as_deref(), device::open)?;
    unused::refuse_device_budget(arguments, &options)?;
    match arguments.window_size {
        Some(window_tokens) => Ok(options.with_window(StreamWindow {
            window_tokens,
            sink_tokens: arguments.sink_tokens,
        })?),
        None => Ok(options),
    }
}

/// Refuses a file for an option that takes a folder; a missing folder is created later.
pub(crate) fn check_folder(option: &str, path: Option<&Path>) -> Result<(), Failure> {
    match path {
        Some(path) if path.as_os_str().is_empty() => Err(Failure::new(format!(
            "{option} is empty: give a folder, or . for the one you are in"
        ))),
        Some(path) if path.exists() && !path.is_dir() => Err(Failure::new(format!(
            "{option} is {}, but that is a file: give a folder",
            path.display()
        ))),
        _ => Ok(()),
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

/// Policies from the arguments: from a file, or one for each phase.
fn profile(arguments: &EngineArguments) -> Result<Profile, Failure> {
    if let Some(path) = &arguments.profile {
        let profile = read_text(path)?.parse::<Profile>();
        return profile.map_err(|error| {
            let hint = if error.to_string().contains("riffle calibrate") {
                ""
            } else {
                "; riffle calibrate --out writes a profile"
            };
            Failure::new(format!("{}: {error}{hint}", path.display()))
        });
    }
    let h2o = [("local", arguments.h2o_local), ("heavy", arguments.h2o_heavy)];
    let mut prefill: PolicyRules = match &*arguments.prefill.to_ascii_lowercase() {
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

/// Prints a note if --activations has no effect.
pub(crate) fn note_activations(arguments: &EngineArguments, config: &ModelConfig, on_device: bool) {
    let given = arguments.activations;
    if let Some(note) = given.and_then(|given| riffle_engine::activations_note(config, given, on_device)) {
        console::note(flags::typed(&note));
    }
}

/// Warns about a model that continues texts and was not trained to answer.
pub(crate) fn note_template(engine: &Engine) {
    if let Some(note) = template_note(engine) {
        console::note(note);
    }
}

/// The warning about a model that was not trained to answer.
pub(crate) fn template_note(engine: &Engine) -> Option<&'static str> {
    let predicts_tokens = engine.model().config().predicts_tokens;
    (predicts_tokens && engine.chat_template().is_none()).then_some(
        "this model has no chat template: it continues text, and its answers may make no sense; take one made for conversation, \
         often named -Instruct or -it (riffle pull --list)",
    )
}

/// Maximum number of bytes of a prompt or another text: some fifty million tokens.
pub(crate) const LARGEST_TEXT_BYTES: u64 = 256 << 20;

/// The given text, or the text of a file, a pipe or standard input, up to `most_bytes` bytes.
pub(crate) fn read_input(input: &PromptArguments, most_bytes: u64) -> Result<String, Failure> {
    let most_bytes = most_bytes.min(LARGEST_TEXT_BYTES);
    match (&input.prompt, &input.file) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(path)) => {
            let bytes = riffle_files::read_file_or_pipe(path, most_bytes);
            text_of(&path.display().to_string(), bytes)
        }
        (None, None) => {
            if io::stdin().is_terminal() {
                console::note("reading the text from the keyboard: Ctrl-D on a line of its own ends it");
            }
            let bytes = riffle_files::read_within(io::stdin().lock(), most_bytes);
            text_of("standard input", bytes)
        }
    }
}

/// Reads a whole text file.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = riffle_files::read(path, LARGEST_TEXT_BYTES);
    text_of(&path.display().to_string(), bytes)
}

fn text_of(name: &str, bytes: Result<Vec<u8>, FileError>) -> Result<String, Failure> {
    let bytes = bytes.map_err(|error| {
        let what = match &error {
            FileError::TooLarge { limit_bytes } if *limit_bytes < LARGEST_TEXT_BYTES => format!(
                "the text is longer than memory allows: use at most {}, or a larger --memory",
                human_bytes(*limit_bytes)
            ),
            _ if error.kind() == io::ErrorKind::IsADirectory => {
                "a folder; give a file, or use riffle ask, which reads folders".to_owned()
            }
            _ => unread(&error),
        };
        Failure::new(format!("{name}: {what}"))
    })?;
    utf8(bytes, name)
}

/// The reason why a file cannot be read.
pub(crate) fn unread(error: &FileError) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file; check the path".to_owned(),
        _ => error.to_string(),
    }
}

/// Bytes as text; the error gives the position of invalid UTF-8.
pub(crate) fn utf8(bytes: Vec<u8>, name: &str) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        Failure::new(format!(
            "{name}: not UTF-8 text (byte {} is wrong): convert it first, e.g. with iconv -t UTF-8",
            error.utf8_error().valid_up_to()
        ))
    })
}

/// The lines of a table, header first: columns as wide as their widest cell, columns in `numbers` aligned to the
/// right.
pub(crate) fn aligned<const N: usize>(
    header: &[String; N],
    rows: &[[String; N]],
    numbers: std::ops::Range<usize>,
) -> Vec<String> {
    let all = || [header].into_iter().chain(rows);
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = all().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    });
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if numbers.contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all().map(line).collect()
}
