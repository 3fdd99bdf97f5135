//! Checks that the worker refuses by name every request it cannot serve.

use dynamo_backend_common::engine::RoutingHints;
use dynamo_backend_common::testing::mock_context;
use dynamo_backend_common::{
    BackendError, ErrorType, GenerateContext, GuidedDecodingOptions, LLMEngine, PreprocessedRequest,
};
use serde_json::json;

use crate::testing::{MANY, changed, chunks, request, started};

type Change = Box<dyn Fn(&mut PreprocessedRequest)>;

#[allow(clippy::too_many_lines, reason = "a table of refusals")]
fn refusals() -> Vec<(&'static str, Change)> {
    let guided = |change: fn(&mut GuidedDecodingOptions)| -> Change {
        Box::new(move |request| change(request.sampling_options.guided_decoding.get_or_insert_default()))
    };
    let routed = |change: fn(&mut RoutingHints)| -> Change {
        Box::new(move |request| change(request.routing.get_or_insert_default()))
    };
    vec![
        ("n: ", Box::new(|request| request.sampling_options.n = Some(2))),
        (
            "best_of: ",
            Box::new(|request| request.sampling_options.best_of = Some(3)),
        ),
        (
            "use_beam_search: ",
            Box::new(|request| request.sampling_options.use_beam_search = Some(true)),
        ),
        (
            "length_penalty: ",
            Box::new(|request| request.sampling_options.length_penalty = Some(0.5)),
        ),
        (
            "max_thinking_tokens: ",
            Box::new(|request| request.stop_conditions.max_thinking_tokens = Some(9)),
        ),
        (
            "prompt_logprobs: ",
            Box::new(|request| request.output_options.prompt_logprobs = Some(1)),
        ),
        (
            "prompt_embeds: ",
            Box::new(|request| request.prompt_embeds = Some("AAAA".to_owned())),
        ),
        (
            "multi_modal_data: ",
            Box::new(|request| request.encoder_result = Some(json!({}))),
        ),
        (
            "multi_modal_data: ",
            Box::new(|request| request.multi_modal_data = Some([("image".to_owned(), vec![])].into())),
        ),
        (
            "lora_name: ",
            routed(|routing| routing.lora_name = Some("one".to_owned())),
        ),
        (
            "cache_salt: ",
            routed(|routing| routing.cache_namespace = Some("mine".to_owned())),
        ),
        (
            "guided_decoding.structural_tag: ",
            guided(|guided| guided.structural_tag = Some(json!({}))),
        ),
        (
            "guided_decoding.backend: ",
            guided(|guided| guided.backend = Some("xgrammar".to_owned())),
        ),
        (
            "guided_decoding.whitespace_pattern: ",
            guided(|guided| guided.whitespace_pattern = Some(" ".to_owned())),
        ),
        (
            "guided_decoding.json: ",
            guided(|guided| guided.json = Some(json!("{"))),
        ),
        (
            "guided_decoding.regex: ",
            guided(|guided| guided.regex = Some("(".to_owned())),
        ),
        (
            "guided_decoding.choice: ",
            guided(|guided| guided.choice = Some(vec![])),
        ),
        (
            "guided_decoding: an answer has one form",
            guided(|guided| (guided.regex, guided.json) = (Some("a".to_owned()), Some(json!({})))),
        ),
        (
            "token_ids: token 4000000",
            Box::new(|request| request.token_ids = vec![4_000_000].into()),
        ),
        (
            "stop_token_ids: token 2048",
            Box::new(|request| request.stop_conditions.stop_token_ids = Some(vec![2048])),
        ),
        (
            "the prompt is empty",
            Box::new(|request| request.token_ids = vec![].into()),
        ),
        (
            "the prompt and the answer need",
            Box::new(|request| request.stop_conditions.max_tokens = Some(1 << 20)),
        ),
        (
            "--top-p",
            Box::new(|request| request.sampling_options.top_p = Some(2.0)),
        ),
        (
            "--temperature",
            Box::new(|request| request.sampling_options.temperature = Some(-1.0)),
        ),
    ]
}

#[tokio::test]
async fn what_it_does_not_do_is_refused_by_name() {
    let worker = started(&[]).await;
    for (name, change) in refusals() {
        let error = chunks(&worker, changed(change)).await.expect_err(name);
        let message = error.message();
        assert!(message.starts_with(name), "{name}: {message}");
        assert!(!message.contains('\n'), "{message:?}");
        // Clients see only the public message.
        assert_eq!(error.public_message(), Some(message));
        assert_eq!(
            error.error_type(),
            ErrorType::Backend(BackendError::InvalidArgument),
            "{message}"
        );
    }
    // The refused requests hold no place: a valid request is answered.
    assert_eq!(chunks(&worker, request(&[5, 6, 7], 4)).await.unwrap().len(), 5);
    worker.cleanup().await.unwrap();
}

#[tokio::test]
async fn one_request_too_many_is_told_so() {
    let worker = started(&["--max-requests", "1"]).await;
    let context = GenerateContext::new(mock_context(), None);
    let stream = worker.generate(request(&[5, 6, 7], MANY), context).await.unwrap();
    let error = chunks(&worker, request(&[5, 6, 7], 4)).await.unwrap_err();
    assert_eq!(error.error_type(), ErrorType::ResourceExhausted);
    drop(stream);
    assert_eq!(chunks(&worker, request(&[5, 6, 7], 4)).await.unwrap().len(), 5);
    worker.cleanup().await.unwrap();
}
