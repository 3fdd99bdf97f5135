//! Documents before a message.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_chat::{ChatOptions, Conversation, Document, Undone};
use riffle_engine::{Engine, KeepOptions};

use crate::testing::{
    TEMPLATE, ask, chat_options, conversation, engine_with_template, fixture, go_on, options, plain_engine,
};

fn document() -> Document {
    let book = fs::read_to_string(fixture("text/prophets.txt")).expect("the book");
    let lines = |from: usize| book.lines().skip(from).take(40).collect::<Vec<_>>().join("\n");
    Document {
        name: "book.txt".to_owned(),
        text: format!(
            "{}\nThe pass key for river stone is 40718.\n{}\n",
            lines(300),
            lines(900)
        ),
    }
}

#[test]
fn a_document_is_read_once_and_asked_about() {
    let engine = plain_engine();
    let mut conversation = conversation(&engine, 8);
    let read = conversation.attach(document(), &mut go_on).expect("read").read_tokens;
    assert!(read > 1000, "{read}");
    let question = "What is the pass key for river stone? The pass key for river stone is";
    let (answer, report) = ask(&mut conversation, question);
    assert!(answer.trim_start().starts_with("40718"), "{answer}");
    assert_eq!(report.reused_tokens, read);
    assert!(report.read_tokens < 40, "{report:?}");
    assert!(conversation.attached().is_empty());

    // After undo, the document waits for the next message, and its pages still exist.
    let undone = conversation.undo().expect("a turn");
    assert!(matches!(undone, Undone::Turn { again_tokens: 0, .. }));
    assert_eq!(conversation.attached().len(), 1);
    assert!(ask(&mut conversation, question).1.reused_tokens >= read);
    conversation.undo().expect("a turn");
    let name = "book.txt".to_owned();
    assert_eq!(conversation.undo().expect("a document"), Undone::Document { name });
}

#[test]
fn a_template_is_told_the_names_of_documents() {
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options());
    let mut conversation = conversation(&engine, 8);
    let read = conversation.attach(document(), &mut go_on).expect("read").read_tokens;
    let more = Document {
        name: "more.txt".to_owned(),
        text: "And the king answered and said unto them, Go ye.".to_owned(),
    };
    let read_more = conversation.attach(more, &mut go_on).expect("read").read_tokens;
    assert!(read_more < 80, "{read_more}");
    let (_, report) = ask(&mut conversation, "Who answered?");
    assert!(report.reused_tokens + 3 > read + read_more, "{report:?}");
    assert_eq!(conversation.turns()[0].documents.len(), 2);
    let (_, second) = ask(&mut conversation, "And then?");
    assert_eq!(second.again_tokens, 0);
    assert!(second.read_tokens < 40, "{second:?}");
}

#[test]
fn a_document_that_another_conversation_read_comes_from_disk_and_changes_no_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let keep = KeepOptions {
        folder: folder.path().join("a/b"),
        budget_bytes: 1 << 30,
        is_needed: true,
    };
    for model in ["model", "model-hybrid"] {
        let (with_template, _folder) = engine_with_template(model, TEMPLATE, options());
        let without = Engine::load(fixture(model), options()).expect("a model");
        for engine in [with_template, without] {
            let talk = |keep: Option<&KeepOptions>| {
                let options = ChatOptions {
                    keep: keep.cloned(),
                    ..chat_options(8, 0.0)
                };
                let mut conversation = Conversation::new(Arc::clone(&engine), options).expect("a conversation");
                let attached = conversation.attach(document(), &mut go_on).expect("read");
                let answers = ["Who answered?", "And then?"].map(|message| ask(&mut conversation, message).0);
                assert_eq!(conversation.not_kept(), None);
                assert!(conversation.take_notices().is_empty());
                (attached, answers)
            };
            let (alone, first, second) = (talk(None), talk(Some(&keep)), talk(Some(&keep)));
            assert_eq!((alone.0.found_tokens, first.0.found_tokens), (0, 0), "{model}");
            let (found, read) = (second.0.found_tokens, first.0.read_tokens);
            // Recurrent layers continue from whole pages.
            assert!(
                found + 512 > read && found + second.0.read_tokens == read,
                "{model}: {found} of {read}"
            );
            assert!((&alone.1, &alone.1) == (&first.1, &second.1), "{model}");
        }
    }
}

#[test]
fn a_folder_of_kept_text_that_is_needed_and_cannot_be_used_is_refused() {
    let keep = |is_needed| KeepOptions {
        folder: concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml/x").into(),
        budget_bytes: 1 << 30,
        is_needed,
    };
    let open = |is_needed| {
        let options = ChatOptions {
            keep: Some(keep(is_needed)),
            ..chat_options(4, 0.0)
        };
        Conversation::new(plain_engine(), options)
    };
    assert!(open(true).is_err());
    let mut conversation = open(false).expect("a conversation");
    assert!(conversation.not_kept().is_some());
    conversation.attach(document(), &mut go_on).expect("read");
    ask(&mut conversation, "Who answered?");
}

#[test]
fn a_document_whose_reading_is_stopped_is_read_with_the_message() {
    let engine = plain_engine();
    let mut conversation = conversation(&engine, 4);
    let stopped = conversation.attach(document(), &mut |_| ControlFlow::Break(()));
    assert!(stopped.expect_err("it was stopped").is_interrupted());
    assert_eq!(conversation.attached().len(), 1);
    let (_, report) = ask(&mut conversation, "Who?");
    assert!(report.prompt_tokens > 1000, "{report:?}");
}
