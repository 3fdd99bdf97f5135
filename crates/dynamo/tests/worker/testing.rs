//! Shared by the tests: workers on the shipped model, requests, and readers of an answer's chunks.

use std::ffi::OsString;

use dynamo_backend_common::testing::mock_context;
use dynamo_backend_common::{
    DynamoError, FinishReason, GenerateContext, LLMEngine, LLMEngineOutput, OutputOptions, PreprocessedRequest,
    SamplingOptions, StopConditions,
};
use futures::StreamExt;
use riffle_dynamo::{Arguments, RiffleWorker};

pub(crate) const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/model");

/// The options of all test workers.
const OPTIONS: [&str; 11] = [
    "--model",
    MODEL,
    "--ctx",
    "131072",
    "--pool-tokens",
    "131072",
    "--page-tokens",
    "32",
    "--threads",
    "1",
    "--quiet",
];

/// So many tokens that their answer takes minutes.
pub(crate) const MANY: u32 = 120_000;

/// The parsed arguments, or the line that refuses them. The program's name is added in front.
pub(crate) fn parsed(arguments: &[&str]) -> Result<Arguments, String> {
    let words = ["riffle-dynamo"].iter().chain(arguments).map(OsString::from);
    riffle_cli::arguments_of(words).map_err(|failure| failure.message().to_owned())
}

/// A worker that has not been started.
pub(crate) fn worker(more: &[&str]) -> RiffleWorker {
    let arguments = parsed(&[&OPTIONS, more].concat()).unwrap();
    arguments.worker().unwrap().0
}

/// A worker that has been started.
pub(crate) async fn started(more: &[&str]) -> RiffleWorker {
    let worker = worker(more);
    worker.start(0).await.unwrap();
    worker
}

/// A greedy request for this many tokens.
pub(crate) fn request(tokens: &[u32], max_tokens: u32) -> PreprocessedRequest {
    PreprocessedRequest::builder()
        .model("model".to_owned())
        .token_ids(tokens.to_vec())
        .stop_conditions(StopConditions {
            max_tokens: Some(max_tokens),
            ..StopConditions::default()
        })
        .sampling_options(SamplingOptions {
            temperature: Some(0.0),
            ..SamplingOptions::default()
        })
        .output_options(OutputOptions::default())
        .build()
        .unwrap()
}

/// A request, changed.
pub(crate) fn changed(change: impl FnOnce(&mut PreprocessedRequest)) -> PreprocessedRequest {
    let mut request = request(&[5, 6, 7], 4);
    change(&mut request);
    request
}

/// All chunks of an answer.
pub(crate) async fn chunks(
    worker: &RiffleWorker,
    request: PreprocessedRequest,
) -> Result<Vec<LLMEngineOutput>, DynamoError> {
    let context = GenerateContext::new(mock_context(), None);
    let stream = worker.generate(request, context).await?;
    stream.collect::<Vec<_>>().await.into_iter().collect()
}

/// Tokens of an answer, the reason for its end, and the number of cached prompt tokens.
pub(crate) async fn answer(worker: &RiffleWorker, request: PreprocessedRequest) -> (Vec<u32>, FinishReason, u32) {
    let chunks = chunks(worker, request).await.unwrap();
    let tokens: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.token_ids.clone()).collect();
    let last = chunks.last().unwrap();
    let usage = last.completion_usage.as_ref().unwrap();
    assert_eq!(usage.completion_tokens as usize, tokens.len());
    let cached = usage.prompt_tokens_details.as_ref().unwrap().cached_tokens.unwrap();
    (tokens, last.finish_reason.clone().unwrap(), cached)
}
