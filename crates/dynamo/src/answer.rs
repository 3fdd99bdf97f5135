//! Converts an answer to Dynamo's form: a chunk per token, and a last one with the reason and the usage.

use std::sync::Arc;

use dynamo_backend_common::{
    AsyncEngineContext, CompletionUsage, DynamoError, LLMEngineOutput, LLMEngineOutputExt, PromptTokensDetails,
    StopReason as DynamoStop, TopLogprob, chunk, usage,
};
use futures::stream::BoxStream;
use riffle_engine::{RequestReport, StopReason, TokenProbabilities};
use riffle_server::{Answer, AnswerEvent};

use crate::failure::of_request;
use crate::load::{CountedRequest, Load};

/// The chunks of an answer. Dropping it cancels the request, for example if the client disconnects.
pub(crate) fn chunks(
    mut answer: Answer,
    context: Arc<dyn AsyncEngineContext>,
    prompt_tokens: usize,
    load: Arc<Load>,
    mut place: CountedRequest,
) -> BoxStream<'static, Result<LLMEngineOutput, DynamoError>> {
    Box::pin(async_stream::stream! {
        let mut written = 0;
        loop {
            let event = tokio::select! {
                biased;
                () = context.stopped() => {
                    yield Ok(LLMEngineOutput::cancelled().with_usage(usage_of(prompt_tokens, written, None)));
                    return;
                }
                event = answer.next() => event,
            };
            match event {
                Ok(AnswerEvent::Token { token, probabilities }) => {
                    written += 1;
                    place.grow();
                    yield Ok(chunk_of(token, probabilities));
                }
                Ok(AnswerEvent::Finished(report)) => {
                    load.count_prompt(report.prompt_tokens, report.reused_tokens);
                    yield Ok(last_chunk(&report, written));
                    return;
                }
                // No other event of an answer exists at present.
                Ok(_) => {}
                Err(failure) => {
                    yield Err(of_request(&failure));
                    return;
                }
            }
        }
    })
}

fn chunk_of(token: u32, probabilities: Option<TokenProbabilities>) -> LLMEngineOutput {
    let mut chunk = chunk::token(token);
    if let Some(found) = probabilities {
        chunk.log_probs = Some(vec![f64::from(found.log_probability)]);
        let likeliest = (1..)
            .zip(found.likeliest)
            .map(|(rank, (token_id, log_probability))| TopLogprob {
                rank,
                token_id,
                // The frontend has the tokenizer.
                token: None,
                logprob: f64::from(log_probability),
                bytes: None,
            });
        chunk.top_logprobs = Some(vec![likeliest.collect()]);
    }
    chunk
}

fn last_chunk(report: &RequestReport, written: usize) -> LLMEngineOutput {
    let chunk = match &report.generation.stop {
        StopReason::EndOfText | StopReason::Loop { .. } => LLMEngineOutput::stop(),
        StopReason::StopString(text) => LLMEngineOutput {
            stop_reason: Some(DynamoStop::String(text.clone())),
            ..LLMEngineOutput::stop()
        },
        StopReason::MaxTokens | StopReason::ContextFull => LLMEngineOutput::length(),
        StopReason::Interrupted => LLMEngineOutput::cancelled(),
    };
    chunk.with_usage(usage_of(report.prompt_tokens, written, Some(report.reused_tokens)))
}

fn usage_of(prompt_tokens: usize, written: usize, cached_tokens: Option<usize>) -> CompletionUsage {
    let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
    CompletionUsage {
        prompt_tokens_details: cached_tokens.map(|cached| PromptTokensDetails {
            cached_tokens: Some(count(cached)),
            ..PromptTokensDetails::default()
        }),
        ..usage(count(prompt_tokens), count(written))
    }
}
