//! The command line of `riffle eval fleet`.

use clap::Args;
use riffle_eval::{FleetOptions, FleetRates};

use crate::numbers;

#[derive(Debug, Args)]
pub(crate) struct FleetArguments {
    /// Workers of each fleet
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = numbers::samples, default_value = "1,10,100,1000")]
    workers: Vec<usize>,
    /// Documents that are asked about
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "2000")]
    documents: usize,
    /// How uneven: document n is asked for in proportion to 1 / n to this power
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    zipf: f64,
    /// Tokens of a document
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "16384")]
    document_tokens: usize,
    /// Tokens of a question
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "64", hide_short_help = true)]
    question_tokens: usize,
    /// Tokens of an answer
    #[arg(short = 'n', long = "tokens", value_name = "N", value_parser = numbers::tokens, default_value = "128")]
    tokens: usize,
    /// Requests an hour for each worker of a fleet
    #[arg(long, value_name = "NUMBER", default_value = "20")]
    arrivals: f64,
    /// Requests for each worker of a fleet
    #[arg(long, value_name = "N", value_parser = numbers::samples, default_value = "400")]
    requests: usize,
    /// Tokens of prompts that a worker reads a second (riffle bench measures it)
    #[arg(long, value_name = "NUMBER", default_value_t = FleetRates::default().prompt_tokens_per_s, help_heading = "What a worker does")]
    prompt_rate: f64,
    /// Tokens of answers that a worker writes a second, over all answers under way
    #[arg(long, value_name = "NUMBER", default_value_t = FleetRates::default().answer_tokens_per_s, help_heading = "What a worker does", hide_short_help = true)]
    answer_rate: f64,
    /// Bytes of the KV cache for a token (riffle plan says it)
    #[arg(long, value_name = "NUMBER", default_value_t = FleetRates::default().bytes_per_token, help_heading = "What a worker does", hide_short_help = true)]
    bytes_per_token: f64,
    /// Tokens that a worker holds in memory
    #[arg(long, value_name = "N", value_parser = numbers::tokens_or_none, default_value_t = FleetRates::default().worker_tokens, help_heading = "What a worker does", hide_short_help = true)]
    pool_tokens: usize,
    /// Bytes a second between a worker and a store
    #[arg(long, value_name = "NUMBER", default_value_t = FleetRates::default().link_bytes_per_s, help_heading = "What a worker does", hide_short_help = true)]
    link: f64,
    /// Bytes a second of the store for all workers together
    #[arg(long, value_name = "NUMBER", default_value_t = FleetRates::default().store_bytes_per_s, help_heading = "What a worker does", hide_short_help = true)]
    store: f64,
    /// Price of a worker for an hour
    #[arg(long, value_name = "NUMBER", default_value_t = FleetRates::default().worker_hour, help_heading = "What a worker does", hide_short_help = true)]
    price: f64,
    /// Seed of arrivals and choices
    #[arg(short = 's', long, value_name = "N", value_parser = numbers::seed, default_value = "1", hide_short_help = true)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
}

impl FleetArguments {
    pub(crate) fn options(&self) -> FleetOptions {
        FleetOptions {
            workers: self.workers.clone(),
            documents: self.documents,
            zipf: self.zipf,
            document_tokens: self.document_tokens,
            question_tokens: self.question_tokens,
            answer_tokens: self.tokens,
            requests_per_worker: self.requests,
            arrivals_per_hour: self.arrivals,
            rates: FleetRates {
                prompt_tokens_per_s: self.prompt_rate,
                answer_tokens_per_s: self.answer_rate,
                bytes_per_token: self.bytes_per_token,
                worker_tokens: self.pool_tokens,
                link_bytes_per_s: self.link,
                store_bytes_per_s: self.store,
                worker_hour: self.price,
            },
            seed: self.seed,
        }
    }
}
