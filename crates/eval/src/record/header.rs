//! Header of a record: command, time, model and machine.

use std::time::{SystemTime, UNIX_EPOCH};

use riffle_attention::ceiling::instructions;
use riffle_engine::{AttentionPrecision, CompressOptions, Engine};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::commit;
use crate::EvalError;

/// Version of the format of records. 1: no `schema` field. 2: `schema`, `commit`, `text`, and the scores of single
/// questions in comparisons.
pub const SCHEMA: u32 = 2;

/// The head of every record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Header {
    /// Format of the record: the value of [`SCHEMA`] at writing.
    #[serde(default = "first_schema")]
    pub schema: u32,
    /// The record's file name without `.json`.
    pub name: String,
    /// Version of riffle.
    pub version: String,
    /// Commit of the program's sources, with `+changes` if they differed from it; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Time of completion, UTC, such as `2026-01-31T12:00:00Z`.
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    /// Seed of all random values.
    pub seed: u64,
    /// The measured model, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSummary>,
    /// The text of the prompts, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TextSummary>,
    /// The machine.
    pub machine: MachineInfo,
    /// Duration in seconds; a resumed run counts only its own part.
    pub seconds: f64,
}

/// The measured model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelSummary {
    /// File or folder name, without the folders above.
    pub name: String,
    /// Hash of settings and weights, in hexadecimal.
    pub fingerprint: String,
    /// Architecture.
    pub architecture: String,
    /// Layers.
    pub layers: usize,
    /// Layers with keys and values.
    pub attention_layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Context length of the model, in tokens.
    pub max_position: usize,
    /// Bytes of weights.
    pub weights_bytes: u64,
}

/// The measured text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TextSummary {
    /// File name, without the folders above.
    pub name: String,
    /// Bytes of the text.
    pub bytes: u64,
    /// XXH3 of the text's bytes, 128 bits in hexadecimal.
    pub xxh3: String,
}

impl TextSummary {
    /// Summarises a text under a name.
    pub fn new(name: &str, text: &str) -> Self {
        Self {
            name: name.to_owned(),
            bytes: text.len() as u64,
            xxh3: format!("{:032x}", XxHash3_128::oneshot(text.as_bytes())),
        }
    }
}

fn first_schema() -> u32 {
    1
}

/// The machine that ran the measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MachineInfo {
    /// The processor's own name.
    pub processor: String,
    /// Cores that the system reports.
    pub cores: usize,
    /// Threads of the computation.
    pub threads: usize,
    /// Instructions the kernels use.
    pub instructions: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Operating system and architecture, such as `linux x86_64`.
    pub system: String,
}

/// How the model was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunSettings {
    /// Policy for reading the prompt.
    pub prefill: String,
    /// Policy for writing the answer.
    pub decode: String,
    /// Format of cached keys.
    pub key_format: String,
    /// Format of cached values.
    pub value_format: String,
    /// Arithmetic of prompt attention, if it is inexact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
    /// Tokens in a page.
    pub page_tokens: usize,
    /// Logical batch (`-b`).
    pub batch_tokens: usize,
    /// Chunk (`-ub`).
    pub chunk_tokens: usize,
    /// Limit on the tokens of the context.
    pub context_tokens: usize,
    /// Tiers of the KV pages: `ram`, or the tiers with their budgets.
    pub tiers: String,
    /// Tokens of a prompt that the upper layers read, spelled like `--select-tokens` (`0.1,layers=10`); `None` if
    /// they read all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_selection: Option<String>,
    /// Compression of each document after reading, such as `kvzip:0.3`; `None` without compression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compress: Option<String>,
}

impl Header {
    /// The header of a record that is complete now. Call it on the threads that computed.
    ///
    /// # Errors
    /// The model's files can no longer be read.
    pub fn new(
        name: &str,
        command: Vec<String>,
        seed: u64,
        engine: Option<&Engine>,
        seconds: f64,
    ) -> Result<Self, EvalError> {
        Ok(Self {
            schema: SCHEMA,
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit::of_program(),
            text: None,
            date: now_utc(),
            command,
            seed,
            model: engine.map(ModelSummary::from_engine).transpose()?,
            machine: MachineInfo::here(),
            seconds,
        })
    }

    /// Adds the text.
    pub fn with_text(mut self, text: Option<TextSummary>) -> Self {
        self.text = text;
        self
    }
}

impl ModelSummary {
    /// Summarises the model of an engine.
    ///
    /// # Errors
    /// The model's files can no longer be read.
    pub fn from_engine(engine: &Engine) -> Result<Self, EvalError> {
        let config = engine.model().config();
        let path = engine.path();
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Ok(Self {
            name: path
                .file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            fingerprint: format!("{:032x}", engine.fingerprint()?),
            architecture: config.architecture.clone(),
            layers: config.layers,
            attention_layers: config.attention_layers(),
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            max_position: config.max_position,
            weights_bytes: engine.plan().weights_bytes,
        })
    }
}

impl MachineInfo {
    /// This machine and the threads of the current pool.
    pub fn here() -> Self {
        let mut system = sysinfo::System::new();
        system.refresh_memory();
        system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
        let processor = system.cpus().first().map_or("", |cpu| cpu.brand().trim());
        Self {
            processor: if processor.is_empty() { "unknown" } else { processor }.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            threads: rayon::current_num_threads(),
            instructions: instructions().to_owned(),
            memory_bytes: system.total_memory(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

impl RunSettings {
    /// Settings of an engine's runs.
    pub fn from_engine(engine: &Engine) -> Self {
        let (options, plan) = (engine.options(), engine.plan());
        let budget = |bytes: Option<u64>| bytes.map_or("all".to_owned(), riffle_engine::human_bytes);
        let tiers = &options.cache.kv_tiers;
        let mut named = Vec::new();
        if tiers.device_budget_bytes > 0 {
            named.push(format!("device {}", budget(Some(tiers.device_budget_bytes))));
        }
        if tiers.ram_budget_bytes.is_some() || tiers.disk.is_some() {
            named.push(format!("ram {}", budget(tiers.ram_budget_bytes)));
        }
        if let Some(disk) = &tiers.disk {
            named.push(format!("disk {}", budget(disk.budget_bytes)));
        }
        Self {
            prefill: match options.sequence.auto_target {
                Some(target) => format!("auto {target}"),
                None => options.sequence.prefill.to_string(),
            },
            decode: options.sequence.decode.to_string(),
            key_format: options.cache.key_format.name().to_owned(),
            value_format: options.cache.value_format.name().to_owned(),
            attention: (options.model.attention != AttentionPrecision::Exact)
                .then(|| options.model.attention.to_string()),
            page_tokens: options.cache.page_tokens,
            batch_tokens: options.machine.batch_tokens,
            chunk_tokens: options.machine.chunk_tokens,
            context_tokens: plan.context_tokens,
            tiers: if named.is_empty() {
                "ram".to_owned()
            } else {
                named.join(", ")
            },
            token_selection: options.model.token_selection.as_ref().map(ToString::to_string),
            compress: None,
        }
    }

    /// Adds the compression of documents after reading.
    pub fn compressed_by(self, compress: Option<&CompressOptions>) -> Self {
        Self {
            compress: compress.map(ToString::to_string),
            ..self
        }
    }
}

/// The current time, such as `2026-01-31T12:00:00Z`.
pub fn now_utc() -> String {
    // A clock before 1970 must not lose a measurement.
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    utc(seconds)
}

/// Converts seconds since 1970 to a date, with the days of 400-year cycles that begin in March.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A test header with a model.
    pub(crate) fn header(name: &str) -> Header {
        Header {
            schema: SCHEMA,
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            commit: None,
            text: None,
            date: utc(0),
            command: vec!["riffle".to_owned(), "eval".to_owned()],
            seed: 7,
            model: Some(ModelSummary {
                name: "model".to_owned(),
                fingerprint: "00".to_owned(),
                architecture: "llama".to_owned(),
                layers: 4,
                attention_layers: 4,
                heads: 4,
                kv_heads: 2,
                head_dim: 32,
                max_position: 131_072,
                weights_bytes: 2_000_000,
            }),
            machine: MachineInfo::here(),
            seconds: 1.5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), date);
        }
    }

    #[test]
    fn the_machine_names_itself() {
        let machine = MachineInfo::here();
        assert!(
            machine.cores > 0 && machine.memory_bytes > 0 && !machine.processor.is_empty(),
            "{machine:?}"
        );
    }
}
