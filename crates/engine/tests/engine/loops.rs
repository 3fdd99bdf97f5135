//! Answers that repeat the same tokens end, in sessions, under a scheduler and with drafts.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::testing::{fixture, go_on};
use riffle_engine::{
    Engine, EngineOptions, Event, GenerateOptions, Generation, Request, SamplingOptions, Scheduler, SchedulerOptions,
    Session, StopReason,
};

fn engine() -> Arc<Engine> {
    let options = EngineOptions::default()
        .with_context_tokens(Some(2048))
        .with_sequences(2);
    Engine::load(fixture("model"), options).unwrap()
}

fn options(ends_loops: bool) -> GenerateOptions {
    GenerateOptions {
        max_tokens: 600,
        ends_loops,
        ..GenerateOptions::default()
    }
}

fn answer(engine: &Arc<Engine>, tokens: &[u32], options: &GenerateOptions) -> Generation {
    let mut session = Session::new(engine).unwrap();
    session.prefill(tokens, &mut go_on).unwrap();
    session.generate(options, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// A prompt after which the model repeats a sentence.
fn repeating(engine: &Engine) -> Vec<u32> {
    let text = "And the king went up to the city of the south, and he built a wall there. ".repeat(12);
    engine.tokenizer().unwrap().encode(&text, true).unwrap()
}

#[test]
fn an_answer_that_repeats_itself_ends_with_the_reason_and_is_the_beginning_of_the_whole_one() {
    let engine = engine();
    let tokens = repeating(&engine);
    let whole = answer(&engine, &tokens, &options(false));
    assert_eq!(whole.stop, StopReason::MaxTokens);
    let ended = answer(&engine, &tokens, &options(true));
    let StopReason::Loop { period_tokens } = ended.stop else {
        panic!("{:?} {:?}", ended.stop, ended.text);
    };
    assert!(
        (2..60).contains(&period_tokens) && ended.tokens.len() < 400,
        "{period_tokens} {}",
        ended.tokens.len()
    );
    assert_eq!(ended.tokens, whole.tokens[..ended.tokens.len()]);
    assert!(whole.text.starts_with(&ended.text));
    let text = ended.stop.to_string();
    assert!(text.contains(&format!("the same {period_tokens} tokens")), "{text}");
    let report = serde_json::to_value(&ended.stop).unwrap();
    assert_eq!(report["reason"], "loop");
    assert_eq!(ended.stop.name(), "loop");
}

#[test]
fn drafts_and_schedulers_end_it_at_the_same_token() {
    let engine = engine();
    let tokens = repeating(&engine);
    let alone = answer(&engine, &tokens, &options(true));
    let drafted = GenerateOptions {
        draft: "ngram".parse().unwrap(),
        ..options(true)
    };
    let with_drafts = answer(&engine, &tokens, &drafted);
    assert!(with_drafts.drafts.accepted > 20, "{:?}", with_drafts.drafts);
    assert_eq!((&with_drafts.tokens, &with_drafts.stop), (&alone.tokens, &alone.stop));
    for generate in [options(true), drafted] {
        let mut scheduler = Scheduler::new(&engine, SchedulerOptions::for_engine(engine.options())).unwrap();
        let request = || Request {
            tokens: tokens.clone(),
            generate: generate.clone(),
            ..Request::default()
        };
        scheduler.submit(request()).unwrap();
        scheduler.submit(request()).unwrap();
        let mut found = Vec::new();
        scheduler
            .run(&mut |event| {
                if let Event::Finished(_, report, _) = event {
                    found.push(report.generation);
                }
            })
            .unwrap();
        assert_eq!(found.len(), 2);
        for generation in found {
            assert_eq!((&generation.tokens, &generation.stop), (&alone.tokens, &alone.stop));
        }
    }
}

#[test]
fn a_loop_goes_on_under_penalties_and_before_the_least_length() {
    let engine = engine();
    let tokens = repeating(&engine);
    let favourite = repeating(&engine)[20];
    let forced = SamplingOptions {
        logit_bias: vec![(favourite, 1e6)],
        ..SamplingOptions::default()
    };
    let one = GenerateOptions {
        sampling: forced.clone(),
        ..options(true)
    };
    let ended = answer(&engine, &tokens, &one);
    assert_eq!(
        (ended.stop, ended.tokens.len()),
        (StopReason::Loop { period_tokens: 1 }, 129)
    );
    let penalised = GenerateOptions {
        sampling: SamplingOptions {
            frequency_penalty: 0.1,
            ..forced
        },
        ..options(true)
    };
    assert_eq!(answer(&engine, &tokens, &penalised).stop, StopReason::MaxTokens);
    let long = GenerateOptions { min_tokens: 200, ..one };
    assert_eq!(answer(&engine, &tokens, &long).tokens.len(), 201);
}
