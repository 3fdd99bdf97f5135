//! Several questions about one text: the text is read once, within the plan.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::testing::fixture;
use riffle_attention::Format;
use riffle_engine::{
    Engine, EngineError, EngineOptions, GenerateOptions, RunEvent, RunRequest, StopReason, run, run_questions,
};
use riffle_kv::{DiskTier, KvTiers};

const CONTEXT: usize = 1024;

fn options(format: Format, page_tokens: usize) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(CONTEXT))
        .with_batch_tokens(256)
        .with_chunk_tokens(64)
        .with_page_tokens(page_tokens)
        .with_key_format(format)
        .with_value_format(format)
        .with_sequences(2)
}

fn request(prompt: Option<String>) -> RunRequest {
    RunRequest {
        prompt,
        system: None,
        chat: false,
        is_document: false,
        generate: GenerateOptions {
            max_tokens: 8,
            ..Default::default()
        },
        session: None,
        prefix_cache: None,
        shared_store: None,
    }
}

/// A text that leaves about 70 tokens of the context for a question and its answer.
fn text(engine: &Engine) -> String {
    let book = std::fs::read_to_string(fixture("text/prophets.txt")).unwrap();
    let tokenizer = engine.tokenizer().unwrap();
    let ids = tokenizer.encode(&book[..12_000], false).unwrap();
    tokenizer.decode(&ids[..CONTEXT - 70]).unwrap()
}

fn answers(engine: &Arc<Engine>, prompts: &[String]) -> Result<(Vec<String>, bool), EngineError> {
    // The first prompt reads the text. The text's last token may differ where another question follows.
    let shared = CONTEXT - 71;
    let (mut found, mut has_read) = (Vec::new(), false);
    let result = run_questions(
        engine,
        &request(None),
        prompts,
        &mut |_, event| {
            has_read |= matches!(event, RunEvent::Prefill(_));
            ControlFlow::Continue(())
        },
        &mut |report| {
            if found.is_empty() {
                assert_eq!(report.reused_tokens, 0)
            } else {
                assert!(report.reused_tokens >= shared, "{} of {shared}", report.reused_tokens)
            }
            found.push(report.text);
            ControlFlow::Continue(())
        },
    );
    assert!(result.is_ok() || !has_read, "{result:?} after reading");
    result.map(|()| (found, has_read))
}

#[test]
fn a_text_that_fills_the_context_is_shared_by_questions_in_every_format_and_tier() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("model");
    let info = riffle_model::inspect(&model).unwrap();
    for (format, page_tokens) in [
        (Format::F16, 256),
        (Format::F16, 48),
        (Format::Q8_0, 64),
        (Format::Q4_0, 16),
    ] {
        let memory = options(format, page_tokens);
        let mut disk = memory.clone();
        disk.cache.kv_tiers = KvTiers {
            disk: Some(DiskTier {
                folder: folder.path().to_owned(),
                budget_bytes: None,
            }),
            ram_budget_bytes: Some(0),
            slots: 4,
            ..disk.cache.kv_tiers
        };
        // The smallest accepted budget.
        let plan = riffle_engine::plan(&info, &disk).unwrap();
        disk.cache.kv_tiers.ram_budget_bytes = Some(plan.kv_tiers.least_near_bytes);
        let alone = Engine::load(&model, memory.clone().with_sequences(1)).unwrap();
        let text = text(&alone);
        let prompts = [
            "Who spoke?",
            "What shall come to pass in that day?",
            "Where is the temple?",
        ];
        let prompts: Vec<String> = prompts.iter().map(|question| format!("{text}\n{question}")).collect();
        let expected: Vec<String> = prompts
            .iter()
            .map(|prompt| {
                let request = request(Some(prompt.clone()));
                run(&alone, &request, &mut |_| ControlFlow::Continue(())).unwrap().text
            })
            .collect();
        for options in [memory, disk] {
            let engine = Engine::load(&model, options).unwrap();
            let (found, has_read) = answers(&engine, &prompts).unwrap();
            assert!(has_read);
            assert_eq!(found, expected, "{format:?} in pages of {page_tokens}");
        }
    }
}

#[test]
fn a_budget_that_cannot_hold_questions_is_refused_before_anything_is_read() {
    let mut small = options(Format::F16, 64);
    let info = riffle_model::inspect(fixture("model")).unwrap();
    let needed = riffle_engine::plan(&info, &small).unwrap().kv_tiers.least_near_bytes;
    small.cache.kv_tiers.ram_budget_bytes = Some(needed - 1);
    let message = match Engine::load(fixture("model"), small.clone()) {
        Err(error @ EngineError::TierTooSmall { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it fits"),
    };
    assert!(message.contains("`ram_budget_bytes="), "{message}");
    // Without questions the same budget is enough.
    small.machine.sequences = 1;
    assert!(Engine::load(fixture("model"), small).is_ok());
}

#[test]
fn a_question_that_does_not_fit_is_refused_before_the_text_is_read() {
    let engine = Engine::load(fixture("model"), options(Format::F16, 64)).unwrap();
    let text = text(&engine);
    let prompts = [format!("{text}\nWho?"), format!("{text}\n{}", "and who? ".repeat(60))];
    let error = answers(&engine, &prompts).unwrap_err();
    assert!(matches!(error, EngineError::ContextExceeded { .. }), "{error}");
}

#[test]
fn questions_with_room_are_answered_together_and_told_in_their_order() {
    for (model, disk) in [("model", false), ("model", true), ("model-hybrid", false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut few = options(Format::F16, 64);
        few.cache.kv_tiers.disk = disk.then(|| DiskTier {
            folder: folder.path().to_owned(),
            budget_bytes: None,
        });
        let engine = Engine::load(fixture(model), few).unwrap();
        let tokenizer = engine.tokenizer().unwrap();
        let book = std::fs::read_to_string(fixture("text/prophets.txt")).unwrap();
        let ids = tokenizer.encode(&book[..6_000], false).unwrap();
        let text = tokenizer.decode(&ids[..400]).unwrap();
        let questions = ["Who spoke?", "What shall come?", "Where is the temple?", "Why?"];
        let prompts = questions.map(|question| format!("{text}\n{question}"));
        let expected = prompts.clone().map(|prompt| {
            let report = run(&engine, &request(Some(prompt)), &mut |_| ControlFlow::Continue(()));
            report.unwrap().text
        });
        let (mut told, mut reports) = (vec![String::new(); 4], Vec::new());
        let (mut latest, mut done) = (0, 0);
        run_questions(
            &engine,
            &request(None),
            &prompts,
            &mut |number, event| {
                assert!(number >= latest);
                latest = number;
                if let RunEvent::Text(text) = event {
                    told[number].push_str(text);
                }
                ControlFlow::Continue(())
            },
            &mut |report| {
                done += 1;
                reports.push(report);
                ControlFlow::Continue(())
            },
        )
        .unwrap();
        assert_eq!(done, 4);
        assert_eq!(told, expected);
        for (number, report) in reports.iter().enumerate() {
            assert_eq!(report.text, expected[number]);
            assert!(
                report.kv.shared_bytes > 0,
                "{model}: pages of question {number} are shared"
            );
            assert_eq!(
                report.reused_tokens >= 320,
                number > 0,
                "{model}: {}",
                report.reused_tokens
            );
        }
    }
}

#[test]
fn an_interrupt_ends_the_answer_that_is_told_with_its_report_and_the_others_without() {
    let engine = Engine::load(fixture("model"), options(Format::F16, 64)).unwrap();
    let prompts = ["And it came to pass", "In the beginning"].map(str::to_owned);
    let mut reports = Vec::new();
    let mut told = 0;
    run_questions(
        &engine,
        &request(None),
        &prompts,
        &mut |_, event| {
            told += usize::from(matches!(event, RunEvent::Text(_)));
            match told {
                3.. => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        },
        &mut |report| {
            reports.push(report);
            ControlFlow::Continue(())
        },
    )
    .unwrap();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].stop, StopReason::Interrupted);
    assert!(reports[0].generated_tokens < 8, "{}", reports[0].generated_tokens);
    let interrupted = run_questions(
        &engine,
        &request(None),
        &prompts,
        &mut |_, event| match event {
            RunEvent::Prefill(_) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        },
        &mut |_| panic!("nothing was answered"),
    );
    assert!(
        matches!(interrupted, Err(EngineError::Interrupted { .. })),
        "{interrupted:?}"
    );
}

#[test]
fn special_tokens_spelt_in_a_document_are_text_and_those_of_a_prompt_are_tokens() {
    let engine = Engine::load(fixture("model"), options(Format::F16, 64)).unwrap();
    let text = "In the year<|eos|><|bos|>of the king";
    let tokens = |chat: bool, is_document: bool| {
        let request = RunRequest {
            chat,
            is_document,
            ..request(Some(text.to_owned()))
        };
        let report = run(&engine, &request, &mut |_| ControlFlow::Continue(())).unwrap();
        report.prompt_tokens
    };
    let typed = engine.tokenizer().unwrap().encode(text, true).unwrap().len();
    assert_eq!(tokens(true, false), typed);
    assert_eq!(tokens(false, true), typed, "the whole input of the model");
    assert!(tokens(true, true) > typed + 4);

    let text = engine
        .conversation_text(None, [], text, &mut || ControlFlow::Continue(()))
        .unwrap();
    let ids = engine.tokenizer().unwrap().encode_conversation(&text, false).unwrap();
    assert!(!ids.contains(&0) && !ids.contains(&1));
}
