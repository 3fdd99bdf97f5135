//! The answering thread without HTTP.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use riffle_engine::{GenerateOptions, Request};
use riffle_events::{Event, Group, Medium, Picture};
use riffle_server::{AnswerEvent, EventSink, Form, Worker};
use tokio::runtime::{Builder, Runtime};

use crate::testing::{engine, options, start};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn request(tokens: &[u32], max_tokens: usize) -> Request {
    Request {
        tokens: tokens.to_vec(),
        generate: GenerateOptions {
            max_tokens,
            ignores_end: true,
            ..GenerateOptions::default()
        },
        ..Request::default()
    }
}

/// The tokens of an answer, and the number of its cached prompt tokens.
async fn answer(worker: &Worker, request: Request) -> (Vec<u32>, usize) {
    let mut answer = worker.ask(request).await.unwrap();
    let mut tokens = Vec::new();
    loop {
        match answer.next().await.unwrap() {
            AnswerEvent::Token { token, .. } => tokens.push(token),
            AnswerEvent::Finished(report) => return (tokens, report.reused_tokens),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_sink_is_told_what_later_requests_find() {
    let picture = Arc::new(Mutex::new(Picture::default()));
    let told = Arc::clone(&picture);
    let sink: EventSink = Box::new(move |events: Vec<Event>| {
        let mut picture = told.lock().unwrap();
        events.iter().for_each(|event| picture.apply(event));
    });
    let engine = engine();
    let worker = Worker::start(&engine, &options(), Some(sink)).unwrap();
    let prompt: Vec<u32> = (0..300).map(|number| 40 + number * 11 % 1900).collect();
    runtime().block_on(async {
        let (tokens, found) = answer(&worker, request(&prompt, 4)).await;
        assert_eq!(found, 0);
        // The server reports four whole pages of 64 tokens promptly.
        let until = Instant::now() + Duration::from_secs(20);
        let blocks = || picture.lock().unwrap().snapshot();
        while blocks().len() < 5 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let stored = blocks().into_iter().filter_map(|event| match event {
            Event::Stored { block, medium, group } => Some((block, medium, group)),
            _ => None,
        });
        let stored: Vec<_> = stored.collect();
        assert_eq!(stored.len(), 4);
        for ((block, medium, group), page) in stored.iter().zip(prompt.chunks(64)) {
            assert_eq!(*block.tokens, *page);
            assert_eq!((*medium, *group), (Medium::Gpu, Group::Attention));
        }
        let (again, found) = answer(&worker, request(&prompt, 4)).await;
        assert_eq!(again, tokens);
        assert!(found >= 256, "{found}");
    });
    assert!(
        worker
            .metrics()
            .contains("vllm:request_success_total{finished_reason=\"length\"} 2")
    );
    worker.stop(Duration::ZERO);
    assert!(!worker.is_alive());
    let refused = runtime().block_on(worker.ask(request(&prompt, 4))).unwrap_err();
    assert_eq!(refused.status(), 503);
}

#[test]
fn it_answers_as_the_server_does_and_refuses_in_its_words() {
    let server = start(options());
    let engine = engine();
    let worker = Worker::start(&engine, &options(), None).unwrap();
    let text = "In the beginning";
    let prompt = engine.tokenizer().unwrap().encode(text, true).unwrap();
    runtime().block_on(async {
        let (tokens, _) = answer(&worker, request(&prompt, 12)).await;
        let written = server.complete(text, serde_json::json!({"max_tokens": 12, "ignore_eos": true}));
        let written = written["choices"][0]["text"].as_str().unwrap().to_owned();
        assert_eq!(engine.tokenizer().unwrap().decode(&tokens).unwrap(), written);
        for (refused, part) in [
            (worker.ask(request(&[], 1)).await.map(drop), "the prompt is empty"),
            (
                worker.ask(request(&prompt, 1 << 20)).await.map(drop),
                "shorten the prompt",
            ),
            (
                worker
                    .prepare_form(Form::Pattern("(".to_owned()), "regex")
                    .await
                    .map(drop),
                "regex: ",
            ),
            (Form::choice(&[], "choice").map(drop), "choice: "),
            (Form::schema("{".into(), "json").map(drop), "json: "),
        ] {
            let failure = refused.unwrap_err();
            assert_eq!(failure.status(), 400, "{failure}");
            assert!(failure.to_string().contains(part), "{failure}");
        }
    });
    worker.stop(Duration::ZERO);
}
