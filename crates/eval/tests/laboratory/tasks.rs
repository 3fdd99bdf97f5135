//! Generated prompts are the same each time and contain their answers; policies are compared and fitted.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_engine::{Engine, EngineOptions};
use riffle_eval::{
    Ask, AskPlace, CellStep, CompareOptions, ComparisonRow, Corpus, EvalError, GivenQuestion, Journal, NeedleKind,
    NeedleOptions, PerplexityOptions, RulerOptions, RulerTable, RulerTask, Wording, compare, needle, perplexity, ruler,
};
use riffle_testing::fixtures;

fn engine() -> Arc<Engine> {
    Engine::load(fixtures().join("model"), EngineOptions::default()).unwrap()
}

fn corpus(engine: &Arc<Engine>, wording: Wording, given: Vec<GivenQuestion>) -> Corpus {
    let text = fs::read_to_string(fixtures().join("text/prophets.txt")).unwrap();
    Corpus::new(engine, &text, wording, given).unwrap()
}

fn on(_: &CellStep<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn every_task_fits_its_length_is_the_same_each_time_and_holds_its_answer() {
    let engine = engine();
    for wording in [Wording::plain(), Wording::ruler()] {
        let corpus = corpus(&engine, wording, Vec::new());
        for task in RulerTask::ALL {
            for context_tokens in [1500, 4096] {
                let prompt = |seed| corpus.ruler_prompt(task, context_tokens, seed).unwrap();
                let (text, expected) = prompt(1);
                assert_eq!(prompt(1), (text.clone(), expected.clone()), "{task}");
                assert_ne!(prompt(2).0, text, "{task}");
                assert!(!expected.is_empty());
                for answer in &expected {
                    assert!(text.contains(answer), "{task}: no {answer:?} in {text}");
                }
                let tokens = engine.tokenizer().unwrap().encode(&text, false).unwrap().len();
                // Parts are tokenised one by one; a few tokens may join in the whole text.
                assert!(
                    tokens <= context_tokens + 8 && tokens * 10 >= context_tokens * 8,
                    "{task} {context_tokens}: {tokens}"
                );
            }
        }
    }
}

#[test]
fn counted_words_are_the_ones_that_stand_most_often() {
    let engine = engine();
    let corpus = corpus(&engine, Wording::plain(), Vec::new());
    for task in [RulerTask::Cwe, RulerTask::Fwe] {
        let (text, expected) = corpus.ruler_prompt(task, 4096, 3).unwrap();
        let list = text.split("\nWhat are").next().unwrap();
        let mut counts = std::collections::HashMap::<&str, usize>::new();
        for word in list
            .split_whitespace()
            .filter(|word| word.chars().all(char::is_alphabetic))
        {
            *counts.entry(word).or_default() += 1;
        }
        let mut counts: Vec<(usize, &str)> = counts.into_iter().map(|(word, count)| (count, word)).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let mut most: Vec<&str> = counts[..expected.len()].iter().map(|(_, word)| *word).collect();
        assert!(
            counts[expected.len() - 1].0 > counts[expected.len()].0,
            "{task}: {counts:?}"
        );
        let mut expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        most.sort_unstable();
        expected.sort_unstable();
        assert_eq!(most, expected, "{task}");
    }
}

#[test]
fn given_questions_are_asked_among_documents_of_others() {
    let engine = engine();
    let question = |n: usize, documents: usize| GivenQuestion {
        question: format!("Who lives in house {n}?"),
        answers: vec![format!("Mr {n}")],
        documents: (0..documents)
            .map(|d| format!("House {n}, sheet {d}: Mr {n} lives here."))
            .collect(),
    };
    let given = corpus(
        &engine,
        Wording::plain(),
        vec![question(1, 1), question(2, 2), question(3, 1)],
    );
    let (text, expected) = given.ruler_prompt(RulerTask::Qa2, 2048, 1).unwrap();
    assert_eq!(expected, ["Mr 2"]);
    for part in [
        "House 2, sheet 0",
        "House 2, sheet 1",
        "House 3, sheet 0",
        "Who lives in house 2?",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let one_hop = corpus(&engine, Wording::plain(), vec![question(1, 1)]);
    let error = one_hop.ruler_prompt(RulerTask::Qa2, 2048, 1).unwrap_err().to_string();
    assert!(error.contains("no question with two documents"), "{error}");
}

fn ruler_table(journal: &mut Journal, stop_after: usize) -> Result<RulerTable, EvalError> {
    let engine = engine();
    let options = RulerOptions {
        tasks: vec![RulerTask::NiahSingle2, RulerTask::NiahMultikey1],
        lengths: vec![1024],
        samples: 2,
        seed: 1,
        late: false,
    };
    let corpus = corpus(&engine, Wording::plain(), Vec::new());
    ruler(&engine, &corpus, &options, journal, &mut |step| {
        if step.cells_done >= stop_after {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
}

#[test]
fn a_run_that_is_resumed_finds_what_one_run_finds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let open = || Journal::open(&path, &serde_json::json!({ "test": 1 })).unwrap();
    let stopped = ruler_table(&mut open(), 2);
    assert!(matches!(stopped, Err(EvalError::Interrupted { done: 2, cells: 4 })));
    let resumed = ruler_table(&mut open(), usize::MAX).unwrap();
    assert_eq!(resumed, ruler_table(&mut Journal::none(), usize::MAX).unwrap());
    assert!(resumed.samples.iter().all(|sample| sample.score == 1.0), "{resumed:?}");
}

/// A text of 1,536 tokens under these policies.
fn predicted(engine: &Engine, policies: &[&str]) -> PerplexityOptions {
    let text = fs::read_to_string(fixtures().join("text/zechariah.txt")).unwrap();
    let mut tokens = engine.tokenizer().unwrap().encode(&text, true).unwrap();
    tokens.truncate(1536);
    PerplexityOptions {
        text: "zechariah".to_owned(),
        beginning: tokens.first().copied(),
        tokens,
        window_tokens: 1024,
        stride_tokens: 512,
        policies: policies.iter().map(|policy| policy.parse().unwrap()).collect(),
        budget: None,
        predictions_budget_bytes: 1 << 30,
    }
}

#[test]
fn dense_attention_does_not_diverge_from_itself_and_less_attention_does() {
    let engine = engine();
    let policies = [
        "streaming:sinks=4,window=64",
        "oracle-top-p:mass=0.999999",
        "decode=streaming:sinks=4,window=64",
    ];
    let options = predicted(&engine, &policies);
    let table = perplexity(&engine, &options, &mut Journal::none(), &mut on).unwrap();
    let [full, streaming, oracle, decode] = &table.rows[..] else {
        panic!("{table:?}");
    };
    assert_eq!(
        (table.tokens, full.all.kl, full.all.flips, full.density),
        (1024, 0.0, 0.0, 1.0)
    );
    assert!(full.all.perplexity > 2.0 && full.all.perplexity < 40.0, "{full:?}");
    for sparse in [streaming, decode] {
        assert!(
            sparse.all.kl > 0.02 && sparse.all.flips > 0.02 && sparse.density < 0.2,
            "{sparse:?}"
        );
    }
    assert!(oracle.all.kl < 1e-3 && oracle.density < 1.0, "{oracle:?}");
    let scored: usize = full.buckets.iter().map(|bucket| bucket.tokens).sum();
    assert_eq!(scored, 1024);
    assert_eq!(full.buckets.len(), 1, "positions 512 to 1024 are scored");

    let unannounced = PerplexityOptions {
        beginning: None,
        policies: Vec::new(),
        ..options
    };
    let table = perplexity(&engine, &unannounced, &mut Journal::none(), &mut on).unwrap();
    let (there, missing) = (full.all.perplexity, table.rows[0].all.perplexity);
    assert!(
        there < missing,
        "attention rests on the first token: {there} with it, {missing} in mid-text"
    );
}

#[test]
fn policies_are_fitted_to_a_budget_and_predictions_keep_to_theirs() {
    let engine = engine();
    let options = predicted(&engine, &["streaming:sinks=4"]);
    let fitted = PerplexityOptions {
        budget: Some(0.4),
        ..options.clone()
    };
    let table = perplexity(&engine, &fitted, &mut Journal::none(), &mut on).unwrap();
    assert_eq!(table.rows[0].density, 1.0, "dense attention has no budget");
    for row in &table.rows[1..] {
        assert!((row.density - 0.4).abs() < 0.02, "{row:?}");
    }

    let little = PerplexityOptions {
        predictions_budget_bytes: 1000,
        ..options
    };
    let error = perplexity(&engine, &little, &mut Journal::none(), &mut on)
        .unwrap_err()
        .to_string();
    assert!(error.contains("--predictions-budget"), "{error}");
}

#[test]
fn at_an_equal_budget_the_oracle_finds_what_streaming_and_chance_lose() {
    let engine = engine();
    let corpus = corpus(&engine, Wording::plain(), Vec::new());
    let policies = ["streaming", "random:block=16", "oracle-top-k", "decode=oracle-top-k"];
    let options = CompareOptions {
        policies: policies.map(|policy| policy.parse().unwrap()).to_vec(),
        tasks: vec![
            "needle:multi-key:middle".parse().unwrap(),
            "niah_multikey_1".parse().unwrap(),
        ],
        lengths: vec![1024],
        samples: 1,
        depths: 5,
        seed: 1,
        budgets: vec![0.1],
        shares: false,
    };
    let table = compare(&engine, &corpus, &options, &mut Journal::none(), &mut on).unwrap();
    // The decode policy is not asked within a document.
    assert_eq!(table.rows.len(), 9);
    let row = |policy: &str| -> &ComparisonRow {
        let found = table
            .rows
            .iter()
            .find(|row| row.policy == policy && row.task.starts_with("needle"));
        found.unwrap_or_else(|| panic!("no {policy}"))
    };
    assert_eq!((row("full").density, row("full").budget), (1.0, None));
    assert!(
        row("full").score.mean >= 0.8 && row("oracle-top-k").score.mean >= 0.8,
        "{table:?}"
    );
    assert!(
        row("streaming").score.mean <= 0.2 && row("random:block=16").score.mean <= 0.2,
        "{table:?}"
    );
    for row in table.rows.iter().filter(|row| row.budget.is_some()) {
        assert!((row.density - 0.1).abs() < 0.04, "{row:?}");
    }
    // Every question has its own score, so that policies can be compared by question.
    for row in &table.rows {
        assert_eq!(row.scores.len(), row.score.samples, "{row:?}");
        let mean = row.scores.iter().sum::<f64>() / row.scores.len() as f64;
        assert!((mean - row.score.mean).abs() < 1e-9, "{row:?}");
    }
    let streaming = table.against_full(row("streaming")).unwrap();
    assert!(
        streaming.worse >= 3 && streaming.better == 0 && streaming.p <= 0.25,
        "{streaming:?}"
    );
    assert_eq!(table.against_full(row("full")), None);
    let decode = table.rows.iter().find(|row| row.phase == "decode").unwrap();
    let full = table
        .rows
        .iter()
        .find(|row| row.policy == "full" && row.task == "niah_multikey_1")
        .unwrap();
    assert!(decode.decode_bytes < 0.15 * full.decode_bytes, "{decode:?} {full:?}");
}

#[test]
fn what_is_read_once_for_several_cells_is_answered_as_if_each_had_read_it() {
    let engine = engine();
    let engine = engine
        .with_options(engine.options().clone().with_batch_tokens(256).with_chunk_tokens(128))
        .unwrap();
    let corpus = corpus(&engine, Wording::plain(), Vec::new());
    let policies = [
        "streaming:sinks=16,window=256",
        "xattention",
        "decode=quest:dense_layers=0,topk=1",
        "decode=twilight:dense_layers=0,least=1,candidates=0.1",
        "decode=snapkv:budget=600",
    ];
    let tasks = ["middle", "late", "end"].map(|place| format!("needle:multi-key:{place}").parse().unwrap());
    let options = CompareOptions {
        policies: policies.map(|policy| policy.parse().unwrap()).to_vec(),
        tasks: tasks.to_vec(),
        lengths: vec![1400, 2100],
        samples: 1,
        depths: 5,
        seed: 1,
        budgets: Vec::new(),
        shares: false,
    };
    let compared = |shares| {
        let options = CompareOptions {
            shares,
            ..options.clone()
        };
        compare(&engine, &corpus, &options, &mut Journal::none(), &mut on)
            .unwrap()
            .rows
    };
    let (whole, shared) = (compared(false), compared(true));
    assert_eq!((whole.len(), shared.len()), (24, 24));
    for (whole, shared) in whole.iter().zip(&shared) {
        assert_eq!(
            (&whole.policy, &whole.task, whole.score, &whole.settings),
            (&shared.policy, &shared.task, shared.score, &shared.settings)
        );
        assert!(whole.prefill_ms.is_some());
        if whole.phase == "decode" {
            assert_eq!(
                (whole.density, whole.decode_bytes),
                (shared.density, shared.decode_bytes)
            );
        }
    }
    let scores = |rows: &[ComparisonRow]| rows.iter().map(|row| row.score.mean).collect::<Vec<_>>();
    assert!(
        scores(&whole).contains(&1.0) && scores(&whole).contains(&0.0),
        "{whole:?}"
    );
    // At each length 4 of 12 rows read from the beginning: dense attention, the two prefill policies within the
    // document, and the learning policy.
    assert_eq!(shared.iter().filter(|row| row.prefill_ms.is_some()).count(), 8);
}

/// The shipped model with a chat template.
fn templated(template: &str) -> (tempfile::TempDir, Arc<Engine>) {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixtures().join("model")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join("tokenizer_config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["chat_template"] = template.into();
    fs::write(&path, config.to_string()).unwrap();
    let engine = Engine::load(folder.path(), EngineOptions::default()).unwrap();
    (folder, engine)
}

#[test]
fn a_chat_template_wraps_document_and_question_and_the_answer_begins_behind_it() {
    let path = fixtures().join("vectors/chat/templates/chatml.jinja");
    let (_folder, engine) = templated(&fs::read_to_string(path).unwrap());
    let wording = Wording::find("auto", &engine).unwrap();
    assert_eq!(wording.name, "ruler", "RULER's words where there is a template");
    let corpus = corpus(&engine, wording, Vec::new());
    for task in RulerTask::ALL {
        let (text, expected) = corpus.ruler_prompt(task, 1500, 1).unwrap();
        let (user, assistant) = text.rsplit_once("<|im_start|>assistant\n").unwrap();
        let (before, said) = user.split_once("<|im_start|>user\n").unwrap();
        assert!(
            !before.contains('\n') || before.contains("<|im_start|>system"),
            "{task}: {before:?}"
        );
        assert!(said.trim_end().ends_with("<|im_end|>"), "{task}");
        assert!(
            !assistant.is_empty() && !assistant.contains("<|"),
            "{task}: {assistant:?}"
        );
        assert!(expected.iter().all(|answer| said.contains(answer)), "{task}");
    }
}

#[test]
fn facts_are_found_through_a_chat_template() {
    // Turns without any markup, as in the model's training texts.
    let (_folder, engine) = templated("{{ bos_token }}{% for m in messages %}{{ m.content }} {% endfor %}");
    let chat = Wording {
        chat: true,
        ..Wording::plain()
    };
    let corpus = corpus(&engine, chat, Vec::new());
    let options = NeedleOptions {
        lengths: vec![2048],
        depths: 5,
        kinds: vec![NeedleKind::MultiKey],
        places: AskPlace::ALL.to_vec(),
        documents: 1,
        seed: 1,
        compress: None,
    };
    let table = needle(&engine, &corpus, &options, &mut Journal::none(), &mut on).unwrap();
    assert_eq!(table.samples.len(), 20);
    let found = table.samples.iter().filter(|sample| sample.correct == 1).count();
    assert!(found >= 16, "{:?}", table.samples);
}

/// A JSONL file of questions, worded as in the shipped model's training.
fn pass_keys(folder: &std::path::Path, contexts: &[String]) -> std::path::PathBuf {
    let lines = contexts.iter().enumerate().map(|(number, text)| {
        let (before, behind) = text.split_at(text.floor_char_boundary(text.len() / 2));
        let line = serde_json::json!({
            "context": format!("{before}\nThe pass key for river stone is 1234{number}.\n{behind}"),
            "question": "river stone",
            "answers": ["no such thing", format!("1234{number}")],
        });
        format!("{line}\n")
    });
    let path = folder.join("mine.jsonl");
    fs::write(&path, lines.collect::<String>()).unwrap();
    path
}

#[test]
fn questions_of_a_file_are_asked_each_with_its_own_context_under_every_policy() {
    let engine = engine();
    let mut wording = Wording::plain();
    wording.documents.ask_given = Ask {
        question: "What is the pass key for {question}?".to_owned(),
        lead: " The pass key for {question} is".to_owned(),
    };
    let corpus = corpus(&engine, wording, Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(fixtures().join("text/zechariah.txt")).unwrap();
    let contexts: Vec<String> = [2000, 4000, 3000]
        .map(|length| text[..text.floor_char_boundary(length)].to_owned())
        .to_vec();
    let path = pass_keys(folder.path(), &contexts);
    let compared = |length: usize, tasks: &[&str]| {
        let options = CompareOptions {
            policies: ["streaming", "decode=streaming"]
                .map(|text| text.parse().unwrap())
                .to_vec(),
            tasks: tasks.iter().map(|task| task.parse().unwrap()).collect(),
            lengths: vec![length],
            samples: 1,
            depths: 1,
            seed: 5,
            budgets: vec![0.2],
            shares: false,
        };
        compare(&engine, &corpus, &options, &mut Journal::none(), &mut on)
    };
    let task = format!("file:{}", path.display());
    let table = compared(usize::MAX, &[&task]).unwrap();
    assert_eq!(table.files.len(), 1);
    let scores: Vec<(&str, &[f64])> = table.rows.iter().map(|row| (&*row.policy, &*row.scores)).collect();
    assert_eq!(scores[0], ("full", &[1.0, 1.0, 1.0][..]), "{table:?}");
    assert_eq!((scores[1].0, scores[1].1.len(), scores[2].1.len()), ("streaming", 3, 3));
    for row in &table.rows {
        assert!(row.task == task && (900..1500).contains(&row.context_tokens), "{row:?}");
        assert_eq!(row.fit.is_some(), row.policy != "full", "{row:?}");
    }
    // Tasks from files follow the generated tasks; the given lengths apply to the generated ones.
    let table = compared(1024, &[&task, "niah_single_2"]).unwrap();
    let tasks: Vec<&str> = table.rows.iter().map(|row| &*row.task).collect();
    assert_eq!(tasks[..3], ["niah_single_2"; 3]);
    assert_eq!(tasks[3..], [&*task; 3]);

    let mut long = contexts;
    long[1] = text.repeat(40);
    pass_keys(folder.path(), &long);
    let message = compared(1024, &[&task]).unwrap_err().to_string();
    assert!(
        message.contains("mine.jsonl: line 2 takes") && message.contains("the context holds"),
        "{message}"
    );
}

#[test]
fn a_budget_that_a_policy_cannot_keep_is_told_with_the_reason() {
    let engine = engine();
    let corpus = corpus(&engine, Wording::plain(), Vec::new());
    let options = CompareOptions {
        policies: ["streaming:sinks=512", "streaming"]
            .map(|text| text.parse().unwrap())
            .to_vec(),
        tasks: vec!["niah_single_2".parse().unwrap()],
        lengths: vec![1024],
        samples: 1,
        depths: 1,
        seed: 1,
        budgets: vec![0.2],
        shares: false,
    };
    let table = compare(&engine, &corpus, &options, &mut Journal::none(), &mut on).unwrap();
    let [full, sinks, streaming] = &table.rows[..] else {
        panic!("{table:?}");
    };
    assert_eq!((full.budget_kept, &full.fit), (None, &None));
    assert_eq!((sinks.budget_kept, streaming.budget_kept), (Some(false), Some(true)));
    let fit = sinks.fit.as_ref().unwrap();
    assert!(
        fit.parameter.starts_with("window=") && !fit.reaches && fit.density > 0.5,
        "{fit:?}"
    );
    let results = riffle_eval::Results::Comparison(table.clone());
    let text = results.tables()[0].to_text();
    for part in [
        "as run",
        "streaming:window=",
        "% ▲",
        "▲ streaming:sinks=512 at 1K tokens misses its budget of 20%: no value of window reads less than about",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert_eq!(text.matches('▲').count(), 2, "{text}");
}
