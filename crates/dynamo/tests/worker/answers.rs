//! Answers: their tokens, stop reasons and further reports.

use std::time::Duration;

use dynamo_backend_common::testing::{cancelling_context, mock_context};
use dynamo_backend_common::{FinishReason, GenerateContext, GuidedDecodingOptions, LLMEngine};
use futures::StreamExt;
use futures::future::join_all;
use riffle_engine::{Engine, EngineOptions, GenerateOptions, Session};
use tokio::time::timeout;

use crate::testing::{MANY, MODEL, answer, changed, chunks, request, started};

/// Prompts with a common beginning and different ends.
fn prompts() -> Vec<Vec<u32>> {
    let beginning = (0..200).map(|number| 40 + number * 7 % 1900);
    (0..6)
        .map(|prompt| beginning.clone().chain([300 + prompt, 17, 500 + prompt]).collect())
        .collect()
}

/// The tokens of a session without other requests.
fn alone(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let options = EngineOptions::default().with_context_tokens(Some(1024));
    let engine = Engine::load(MODEL, options).unwrap();
    let mut session = Session::new(&engine).unwrap();
    session
        .prefill(prompt, &mut |_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    let options = GenerateOptions {
        max_tokens,
        ..GenerateOptions::default()
    };
    let show = &mut |_: &str| std::ops::ControlFlow::Continue(());
    session.generate(&options, show).unwrap().tokens
}

#[tokio::test]
async fn tokens_are_those_of_a_session_alone_whatever_else_runs() {
    let worker = started(&[]).await;
    let prompts = prompts();
    let together = join_all(prompts.iter().map(|prompt| answer(&worker, request(prompt, 24)))).await;
    for (prompt, (tokens, reason, _)) in prompts.iter().zip(&together) {
        assert_eq!(*tokens, alone(prompt, 24));
        let ends = matches!(reason, FinishReason::Length) == (tokens.len() == 24);
        assert!(ends, "{reason:?} after {} tokens", tokens.len());
    }
    // The cache must find the prompt again, at least up to its last whole page.
    let (tokens, _, cached) = answer(&worker, request(&prompts[0], 24)).await;
    assert_eq!(tokens, together[0].0);
    assert!(cached >= 192, "{cached} tokens were found");
    worker.cleanup().await.unwrap();
}

#[tokio::test]
async fn answers_end_where_they_are_asked_to() {
    let worker = started(&[]).await;
    let free = answer(&worker, request(&[5, 6, 7], 12)).await.0;
    let stop = free[5];
    let first = free.iter().position(|token| *token == stop).unwrap();
    let stopped = |least: Option<u32>| {
        let mut request = request(&[5, 6, 7], 12);
        request.stop_conditions.stop_token_ids_hidden = Some(vec![stop]);
        request.stop_conditions.min_tokens = least;
        request
    };
    let (tokens, reason, _) = answer(&worker, stopped(None)).await;
    assert_eq!(tokens, free[..=first]);
    assert!(matches!(reason, FinishReason::Stop), "{reason:?}");
    let (tokens, _, _) = answer(&worker, stopped(Some(first as u32 + 3))).await;
    assert!(tokens.len() >= first + 3, "{tokens:?}");
    // Token 1 ends a text of this model. `ignore_eos` decides if it also ends the answer.
    let ended = |ignores: bool| {
        changed(|request| {
            request.stop_conditions.max_tokens = Some(40);
            request.stop_conditions.ignore_eos = Some(ignores);
        })
    };
    let (long, reason, _) = answer(&worker, ended(true)).await;
    assert_eq!(long.len(), 40);
    assert!(matches!(reason, FinishReason::Length), "{reason:?}");
    let (short, _, _) = answer(&worker, ended(false)).await;
    assert_eq!(long[..short.len()], short);
    worker.cleanup().await.unwrap();
}

#[tokio::test]
async fn who_leaves_takes_the_request_back() {
    let worker = started(&["--parallel", "1"]).await;
    let long = || request(&[5, 6, 7], MANY);
    // A stopped answer ends with its tokens so far.
    let context = GenerateContext::new(cancelling_context(Duration::from_millis(300)), None);
    let mut stream = worker.generate(long(), context).await.unwrap();
    let mut written = 0;
    let last = loop {
        let chunk = stream.next().await.unwrap().unwrap();
        written += chunk.token_ids.len();
        if chunk.finish_reason.is_some() {
            break chunk;
        }
    };
    assert!(matches!(last.finish_reason, Some(FinishReason::Cancelled)));
    assert_eq!(last.completion_usage.unwrap().completion_tokens as usize, written);
    assert!(stream.next().await.is_none());
    drop(stream);
    // A dropped answer frees its place at once; otherwise the next would wait for minutes.
    let context = GenerateContext::new(mock_context(), None);
    let mut stream = worker.generate(long(), context).await.unwrap();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    let short = timeout(Duration::from_secs(30), answer(&worker, request(&[8, 9, 10], 2))).await;
    assert_eq!(short.expect("the place is free").0.len(), 2);
    worker.cleanup().await.unwrap();
}

#[tokio::test]
async fn cleanup_ends_what_is_under_way_and_keeps_what_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let cache = ["--prefix-cache", folder.path().to_str().unwrap(), "--grace", "0"];
    let first = started(&cache).await;
    let prompt = prompts().remove(0);
    let (tokens, _, cached) = answer(&first, request(&prompt, 8)).await;
    assert_eq!(cached, 0);
    let context = GenerateContext::new(mock_context(), None);
    let mut stream = first.generate(request(&[5, 6, 7], MANY), context).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let (ended, _) = tokio::join!(stream.collect::<Vec<_>>(), first.cleanup());
    ended.into_iter().last().unwrap().unwrap_err();
    chunks(&first, request(&prompt, 8)).await.unwrap_err();
    let second = started(&cache).await;
    let (again, _, cached) = answer(&second, request(&prompt, 8)).await;
    assert_eq!(again, tokens);
    assert!(cached >= 192, "{cached} tokens were found");
    second.cleanup().await.unwrap();
}

#[tokio::test]
async fn log_probabilities_are_told_with_the_likeliest_tokens() {
    let worker = started(&[]).await;
    let asked = changed(|request| request.output_options.logprobs = Some(3));
    for chunk in chunks(&worker, asked).await.unwrap() {
        let [token] = chunk.token_ids[..] else {
            assert!(chunk.finish_reason.is_some());
            continue;
        };
        let (of_token, likeliest) = (chunk.log_probs.unwrap(), chunk.top_logprobs.unwrap());
        assert_eq!(likeliest[0].len(), 3);
        // The likeliest token is the one in a greedy answer.
        assert_eq!((likeliest[0][0].token_id, likeliest[0][0].rank), (token, 1));
        assert_eq!(likeliest[0][0].logprob, of_token[0]);
        assert!(of_token[0] <= 0.0 && likeliest[0][1].logprob <= of_token[0]);
    }
    worker.cleanup().await.unwrap();
}

#[tokio::test]
async fn forms_hold_answers() {
    let worker = started(&[]).await;
    let texts = vec!["heaven".to_owned(), "earth".to_owned()];
    let asked = changed(|request| {
        request.sampling_options.guided_decoding = Some(GuidedDecodingOptions {
            choice: Some(texts.clone()),
            ..GuidedDecodingOptions::default()
        });
        request.stop_conditions.max_tokens = Some(16);
    });
    let (tokens, reason, _) = answer(&worker, asked).await;
    let engine = Engine::load(MODEL, EngineOptions::default()).unwrap();
    let text = engine.tokenizer().unwrap().decode(&tokens).unwrap();
    assert!(texts.contains(&text), "{text:?}");
    assert!(matches!(reason, FinishReason::Stop), "{reason:?}");
    worker.cleanup().await.unwrap();
}

#[tokio::test]
async fn a_seed_decides_what_is_drawn() {
    let worker = started(&[]).await;
    let drawn = |seed: i64| {
        changed(|request| {
            request.sampling_options.temperature = Some(1.5);
            request.sampling_options.seed = Some(seed);
            request.stop_conditions.max_tokens = Some(24);
            request.stop_conditions.ignore_eos = Some(true);
        })
    };
    let first = answer(&worker, drawn(1)).await.0;
    assert_eq!(answer(&worker, drawn(1)).await.0, first);
    assert_ne!(answer(&worker, drawn(2)).await.0, first);
    worker.cleanup().await.unwrap();
}
