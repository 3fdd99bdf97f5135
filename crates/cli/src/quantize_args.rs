//! Arguments of `riffle quantize`.

use std::path::PathBuf;

use clap::Args;
use riffle_model::WeightFormat;
use riffle_quantize::{Mix, QuantizeError, TypeRule, parse_type};

use crate::{hub_args, numbers};

#[derive(Debug, Args)]
pub(crate) struct QuantizeArguments {
    /// Model: a folder, a GGUF file or a pulled model's name
    #[arg(value_name = "IN", value_parser = hub_args::model_path())]
    pub(crate) input: PathBuf,
    /// File to write
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Mix of types, by llama.cpp's names
    ///
    /// From large to small: F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, IQ4_NL, IQ4_XS,
    /// Q4_1, Q4_0, Q3_K_L, Q3_K_M, Q3_K_S, IQ3_M, IQ3_S, IQ3_XS, IQ3_XXS, Q2_K, Q2_K_S, IQ2_M, IQ2_S, IQ2_XS,
    /// IQ2_XXS, IQ1_M, IQ1_S, TQ2_0, TQ1_0. Below Q4_K_S an importance matrix pays (--imatrix).
    #[arg(long = "type", value_name = "MIX", value_parser = mix, default_value = "Q4_K_M")]
    pub(crate) mix: Mix,
    /// Importance matrix of riffle calibrate --imatrix or of llama.cpp
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<PathBuf>,
    /// Type of tensors whose names match a regular expression; may be repeated
    ///
    /// The first match counts, before the mix. Examples: 'blk\.[0-3]\.ffn_down=q6_k', 'token_embd=q8_0' for the
    /// embedding, '^output\.weight=q6_k' for the head.
    #[arg(long, hide_short_help = true, value_name = "REGEX=TYPE", value_parser = rule)]
    pub(crate) tensor_type: Vec<TypeRule>,
    /// The same as --tensor-type '^output\.weight=TYPE', and the head's type if it is the embedding
    #[arg(long, hide = true, value_name = "TYPE", value_parser = tensor_type)]
    pub(crate) output_type: Option<WeightFormat>,
    /// The same as --tensor-type 'token_embd=TYPE'
    #[arg(long, hide = true, value_name = "TYPE", value_parser = tensor_type)]
    pub(crate) embedding_type: Option<WeightFormat>,
    /// Replace OUT if it exists
    #[arg(long)]
    pub(crate) force: bool,
    /// Show the types and sizes, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Text on which the result is compared with the original [default: a shipped one]
    #[arg(long, hide_short_help = true, value_name = "FILE", conflicts_with = "no_check")]
    pub(crate) text: Option<PathBuf>,
    /// Tokens of the text to compare
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "512", hide_short_help = true)]
    pub(crate) check_tokens: usize,
    /// Do not compare the result with the original
    #[arg(long)]
    pub(crate) no_check: bool,
    /// Maximum memory for the weights in work, and for each model of the comparison
    #[arg(long, hide_short_help = true, value_name = "BYTES", value_parser = numbers::memory)]
    pub(crate) memory: Option<u64>,
    /// Number of threads [default: every core]
    #[arg(short = 't', long, value_name = "N", value_parser = numbers::threads)]
    pub(crate) threads: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn mix(name: &str) -> Result<Mix, QuantizeError> {
    name.parse()
}

fn rule(rule: &str) -> Result<TypeRule, QuantizeError> {
    rule.parse()
}

fn tensor_type(name: &str) -> Result<WeightFormat, QuantizeError> {
    parse_type(name)
}
