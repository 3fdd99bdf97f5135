//! Texts that stand before a message.

use std::fs;
use std::ops::ControlFlow;

use riffle_chat::{Document, Undone};

use crate::testing::{TEMPLATE, ask, conversation, engine_with_template, fixture, go_on, options, plain_engine};

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
    let read = conversation.attach(document(), &mut go_on).expect("read");
    assert!(read > 1000, "{read}");
    let question = "What is the pass key for river stone? The pass key for river stone is";
    let (answer, report) = ask(&mut conversation, question);
    assert!(answer.trim_start().starts_with("40718"), "{answer}");
    assert_eq!(report.reused_tokens, read);
    assert!(report.read_tokens < 40, "{report:?}");
    assert!(conversation.attached().is_empty());

    // Taken back, the document waits for the next message, and its pages are still there.
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
    let read = conversation.attach(document(), &mut go_on).expect("read");
    let more = Document {
        name: "more.txt".to_owned(),
        text: "And the king answered and said unto them, Go ye.".to_owned(),
    };
    let read_more = conversation.attach(more, &mut go_on).expect("read");
    assert!(read_more < 80, "{read_more}");
    let (_, report) = ask(&mut conversation, "Who answered?");
    assert!(report.reused_tokens + 3 > read + read_more, "{report:?}");
    assert_eq!(conversation.turns()[0].documents.len(), 2);
    let (_, second) = ask(&mut conversation, "And then?");
    assert_eq!(second.again_tokens, 0);
    assert!(second.read_tokens < 40, "{second:?}");
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
