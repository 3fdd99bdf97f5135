//! Documents that are read whole.

use std::fs;
use std::ops::ControlFlow;

use riffle_ask::{AskOptions, Conversation, KeepOptions};
use riffle_engine::EngineOptions;
use riffle_testing::fixture;

use crate::{NAMES, book, fact, generate, question};

#[test]
fn the_passage_of_an_answer_ranks_first_in_most_cases() {
    let (mut answered, mut first) = (0, 0);
    for number in 0..NAMES.len() {
        let mut conversation = Conversation::open(fixture("model"), vec![book()], AskOptions::default()).unwrap();
        let answer = conversation
            .ask(&question(number), &generate(), &mut |_| ControlFlow::Continue(()))
            .unwrap();
        let text = &conversation.documents()[0].text;
        let at = text.find(&fact(number)).unwrap();
        let holds = |range: &std::ops::Range<usize>| range.start <= at && at < range.end;
        answered += usize::from(answer.text.contains(&(10_307 + 11_113 * number).to_string()));
        first += usize::from(answer.passages.first().is_some_and(|passage| holds(&passage.range)));
        for passage in &answer.passages {
            assert!(text.get(passage.range.clone()).is_some());
        }
    }
    assert!(
        answered >= 6 && first >= 6,
        "{answered} answers, {first} passages of {}",
        NAMES.len()
    );
}

#[test]
fn what_was_kept_changes_no_answer_and_no_passage() {
    let folder = tempfile::tempdir().unwrap();
    let keep = |budget_bytes| KeepOptions {
        folder: folder.path().join("a/b"),
        budget_bytes,
        is_needed: true,
    };
    for model in ["model", "model-hybrid"] {
        let ask = |keep: Option<KeepOptions>| {
            let options = AskOptions {
                keep,
                ..AskOptions::default()
            };
            let mut conversation = Conversation::open(fixture(model), vec![book()], options).unwrap();
            conversation
                .ask(&question(2), &generate(), &mut |_| ControlFlow::Continue(()))
                .unwrap()
        };
        let (none, first, second) = (ask(None), ask(Some(keep(1 << 30))), ask(Some(keep(1 << 30))));
        assert_eq!((none.found_tokens, first.found_tokens), (0, 0));
        assert!(second.found_tokens > 1024, "{model}: {}", second.found_tokens);
        for other in [&first, &second] {
            assert_eq!((&none.text, &none.passages), (&other.text, &other.passages), "{model}");
        }
    }
    #[cfg(unix)]
    {
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(folder.path().join("a/b")).unwrap().permissions());
        assert_eq!(mode & 0o077, 0, "others may not look into it");
    }
}

#[test]
fn memory_chooses_the_format() {
    let open = |memory: u64| {
        let options = AskOptions {
            engine: EngineOptions::default()
                .with_memory_budget_bytes(Some(memory))
                .with_batch_tokens(256)
                .with_chunk_tokens(256),
            ..AskOptions::default()
        };
        Conversation::open(fixture("model"), vec![book()], options).map(|conversation| conversation.choice().clone())
    };
    // The largest memory, to a few KiB, for which f16 no longer fits.
    let (mut less, mut more) = (16u64 << 20, 1u64 << 30);
    assert_eq!(open(more).unwrap().kv_format, "f16");
    while more - less > 4096 {
        let middle = (less + more) / 2;
        match open(middle) {
            Ok(choice) if choice.kv_format == "f16" => more = middle,
            _ => less = middle,
        }
    }
    let choice = open(less).unwrap();
    assert_eq!(choice.kv_format, "q8_0");
    assert!(choice.to_string().contains("f16 does not"), "{choice}");
    assert!(open(1 << 20).is_err());
}
