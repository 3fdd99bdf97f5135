//! Options of every command that runs, plans or measures a model.

use std::path::PathBuf;

use clap::Args;
use riffle_engine::AttentionPrecision;
use riffle_model::{Activations, AdapterSpec};

use crate::numbers;

/// Options of every command that runs or plans a model.
#[derive(Debug, Clone, Args)]
pub(crate) struct EngineArguments {
    /// Adapter for the weights: a folder of PEFT or a GGUF file; may be repeated
    ///
    /// SCALE is the strength of the adapter [default: 1]. With 0 it is loaded and unused, until a request to riffle
    /// serve asks for it. At most eight adapters are possible, on the CPU.
    #[arg(long, value_name = "PATH[=SCALE]", value_parser = adapter, display_order = 1, hide_short_help = true)]
    pub(crate) lora: Vec<AdapterSpec>,
    /// Processor to compute on: cpu, cuda or cuda:N [default: a CUDA device that supports the model, else the CPU]
    ///
    /// Only builds with the feature cuda have CUDA devices: cargo install --path crates/cli --features cuda
    #[arg(
        long,
        value_name = "DEVICE",
        help_heading = "Machine and memory",
        hide_short_help = true
    )]
    pub(crate) device: Option<String>,
    /// Maximum memory, e.g. 12G [default: the free memory]
    #[arg(long, value_name = "BYTES", value_parser = numbers::memory, help_heading = "Machine and memory")]
    pub(crate) memory: Option<u64>,
    /// Maximum memory for weights, e.g. 6G; other experts of a mixture stay in the file
    ///
    /// Riffle reads them when a token needs them. [default: all weights, or the rest of --memory after the KV cache]
    #[arg(long, value_name = "BYTES", value_parser = numbers::memory, help_heading = "Machine and memory", hide_short_help = true)]
    pub(crate) weights_ram: Option<u64>,
    /// Number of threads [default: every core]
    #[arg(short = 't', long, value_name = "N", value_parser = numbers::threads, help_heading = "Machine and memory")]
    pub(crate) threads: Option<usize>,
    /// Maximum tokens of prompt and answer together
    ///
    /// [default: the model's context, or as much as fits in memory if that is less]
    #[arg(short = 'c', long, alias = "ctx-size", value_name = "N", value_parser = numbers::tokens, help_heading = "Machine and memory")]
    pub(crate) ctx: Option<usize>,
    /// Extend the model's context
    ///
    /// METHOD is yarn, linear, or own for the model's own method. F is the factor of the extension. Add
    /// original=TOKENS if the training was shorter than the model states, as in yarn:factor=4,original=32768
    /// [default: the model's statement]
    #[arg(
        long,
        value_name = "METHOD:factor=F",
        help_heading = "Longer context",
        hide_short_help = true
    )]
    pub(crate) rope_scaling: Option<String>,
    /// Keep only the latest N tokens and the sinks: endless text in constant memory
    ///
    /// The sinks are the first tokens; --sink-tokens sets their number. The model forgets the tokens between.
    #[arg(long, value_name = "N", value_parser = numbers::tokens, conflicts_with_all = ["ctx", "prefill", "decode", "batch", "auto", "profile"], help_heading = "Longer context", hide_short_help = true)]
    pub(crate) window_size: Option<usize>,
    /// First tokens that --window-size keeps
    #[arg(long, value_name = "M", value_parser = numbers::tokens_or_none, default_value = "64", requires = "window_size", help_heading = "Longer context", hide_short_help = true)]
    pub(crate) sink_tokens: usize,
    /// Number format of cached keys and values
    ///
    /// One format for both, or KEYS:VALUES. q8_0 takes about half of the memory of f16, q4_0 about a quarter; keys in
    /// q4_0 break some models.
    #[arg(
        long,
        value_name = riffle_engine::KV_TYPES,
        default_value = "f16",
        help_heading = "KV cache",
        hide_short_help = true
    )]
    pub(crate) kv_type: String,
    /// llama.cpp's spelling of the first part of --kv-type
    #[arg(long, value_name = "FORMAT", hide = true, conflicts_with = "kv_type")]
    pub(crate) cache_type_k: Option<String>,
    /// llama.cpp's spelling of the second part of --kv-type
    #[arg(long, value_name = "FORMAT", hide = true, conflicts_with = "kv_type")]
    pub(crate) cache_type_v: Option<String>,
    /// Rotate keys and values in the cache (Hadamard) [default: on for the one in q4_0]
    ///
    /// This avoids most of the loss of 4-bit formats.
    #[arg(long, value_name = "on|off", value_parser = numbers::switch, help_heading = "KV cache", hide_short_help = true)]
    pub(crate) kv_rotate: Option<bool>,
    /// Tokens in a page of the KV cache, a multiple of 16 [default: 256]
    #[arg(long, value_name = "N", value_parser = numbers::tokens, help_heading = "KV cache", hide_short_help = true)]
    pub(crate) page_tokens: Option<usize>,
    /// Maximum bytes of the newest KV pages on the device, e.g. 4G
    ///
    /// With --device cuda this is the device's memory [default: the rest after weights and scratch]. On a CPU it is
    /// memory besides --kv-ram-budget, which is then required.
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, help_heading = "KV cache", hide_short_help = true)]
    pub(crate) kv_device_budget: Option<u64>,
    /// Maximum bytes of KV pages in memory, e.g. 500M [default: all, or the free memory if --kv-disk is given]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, help_heading = "KV cache", hide_short_help = true)]
    pub(crate) kv_ram_budget: Option<u64>,
    /// Folder for the oldest KV pages, once --kv-ram-budget is full
    ///
    /// The files there are removed at the end of the run.
    #[arg(long, value_name = "DIR", help_heading = "KV cache", hide_short_help = true)]
    pub(crate) kv_disk: Option<PathBuf>,
    /// Maximum bytes of KV pages on disk, e.g. 20G [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, requires = "kv_disk", help_heading = "KV cache", hide_short_help = true)]
    pub(crate) kv_disk_budget: Option<u64>,
    /// Maximum number of KV pages that are loaded from a slower tier at a time
    #[arg(long, value_name = "N", value_parser = numbers::slots, default_value_t = riffle_kv::DEFAULT_SLOTS, help_heading = "KV cache", hide_short_help = true)]
    pub(crate) kv_slots: usize,
    /// Policy for reading the prompt
    ///
    /// A policy selects the earlier tokens that each token reads, e.g. streaming:sinks=64,window=1024. riffle
    /// policies lists all.
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "full",
        help_heading = "Attention policies"
    )]
    pub(crate) prefill: String,
    /// Policy for writing the answer
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "full",
        help_heading = "Attention policies"
    )]
    pub(crate) decode: String,
    /// Upper layers read only this share of the prompt, the most attended tokens
    ///
    /// The end of the prompt decides by its attention (FastKV). The lower half of the layers reads every token, or the
    /// first N layers with layers=N. The answer may change. Use it for one question at the end of a text: later
    /// questions do not find the other tokens.
    #[arg(long, value_name = "SHARE[,layers=N]", conflicts_with_all = ["auto", "audit", "window_size"], help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) select_tokens: Option<String>,
    /// Take the policy of each head from this file of riffle calibrate
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prefill", "decode"], help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) profile: Option<PathBuf>,
    /// Choose for each head the cheapest policy that keeps this share of its attention
    ///
    /// Riffle chooses while it reads the prompt. All but one in a hundred sampled queries must keep the share
    /// [default when given without a value: 0.9]
    #[arg(long, value_name = "P", num_args = 0..=1, default_missing_value = "0.9", value_parser = numbers::share, conflicts_with_all = ["prefill", "profile", "h2o_local", "h2o_heavy"], help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) auto: Option<f64>,
    /// The same as --prefill h2o-chunk with local=N
    #[arg(long, value_name = "N", value_parser = numbers::tokens_or_none, conflicts_with = "profile", help_heading = "Attention policies", hide = true)]
    pub(crate) h2o_local: Option<usize>,
    /// The same as --prefill h2o-chunk with heavy=N
    #[arg(long, value_name = "N", value_parser = numbers::tokens_or_none, conflicts_with = "profile", help_heading = "Attention policies", hide = true)]
    pub(crate) h2o_heavy: Option<usize>,
    /// Measure how much of the exact attention the policies keep
    ///
    /// Sampled queries are compared with exact attention, so the run takes longer.
    #[arg(long, help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) audit: bool,
    /// Score keys and values while reading, so that riffle session compress need not read again
    ///
    /// The session stores the scores, 4 bytes for each key of each head.
    #[arg(long, conflicts_with_all = ["window_size", "select_tokens"], help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) score_pairs: bool,
    /// Logical batch: tokens that one layer computes before the next [default: 4096, more with experts in files]
    #[arg(short = 'b', long = "batch", alias = "batch-size", value_name = "N", value_parser = numbers::tokens, help_heading = "Speed and precision", hide_short_help = true)]
    pub(crate) batch: Option<usize>,
    /// Chunk: tokens of a batch whose attention is computed together, also -ub [default: 512, at most -b]
    #[arg(long = "ub", alias = "ubatch-size", value_name = "N", value_parser = numbers::tokens, help_heading = "Speed and precision", hide_short_help = true)]
    pub(crate) chunk: Option<usize>,
    /// Precision of the inputs of bf16 weights on the CPU [default: exact]
    ///
    /// exact keeps the input in f32. rounded rounds it to bfloat16, like llama.cpp: with AVX512-BF16 it reads prompts
    /// at twice the speed, and it changes logits by about 1e-2. Other formats do not change: quantised weights always
    /// round their input to 8 bits.
    #[arg(long, value_name = "exact|rounded", value_parser = activations, help_heading = "Speed and precision", hide_short_help = true)]
    pub(crate) activations: Option<Activations>,
    /// Precision of prompt attention on the CPU
    ///
    /// exact multiplies in f32. rounded multiplies integers of 11 to 16 bits: it is faster, and it changes outputs by
    /// about 10⁻³ of their length. Answers always use exact attention.
    #[arg(long, value_name = "exact|rounded", value_parser = attention, default_value = "exact", help_heading = "Speed and precision", hide_short_help = true)]
    pub(crate) attention: AttentionPrecision,
}

impl EngineArguments {
    /// The formats of keys and values, one for both or KEYS:VALUES.
    pub(crate) fn kv_formats(&self) -> String {
        let given = |format: &Option<String>| format.clone().unwrap_or_else(|| "f16".to_owned());
        match (&self.cache_type_k, &self.cache_type_v) {
            (None, None) => self.kv_type.clone(),
            (keys, values) => format!("{}:{}", given(keys), given(values)),
        }
    }
}

/// Parses `PATH` or `PATH=SCALE`. The text after the last `=` is a scale if it is a number.
fn adapter(text: &str) -> Result<AdapterSpec, String> {
    let scaled = text
        .rsplit_once('=')
        .and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
    let (path, scale) = scaled.unwrap_or((text, 1.0));
    if path.is_empty() {
        return Err("it must be a path, or PATH=SCALE".to_owned());
    }
    if !scale.is_finite() {
        return Err("its scale must be a number".to_owned());
    }
    Ok(AdapterSpec {
        path: path.into(),
        scale,
    })
}

fn attention(text: &str) -> Result<AttentionPrecision, String> {
    let mut all = AttentionPrecision::ALL.iter();
    let named = all.find(|precision| precision.name().eq_ignore_ascii_case(text));
    named.copied().ok_or_else(|| "it must be exact or rounded".to_owned())
}

fn activations(text: &str) -> Result<Activations, String> {
    let mut all = Activations::ALL.iter();
    let named = all.find(|activations| activations.name().eq_ignore_ascii_case(text));
    named.copied().ok_or_else(|| "it must be exact or rounded".to_owned())
}
