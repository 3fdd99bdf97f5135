//! Conversations in files.

use std::fs;

use riffle_attention::Format;
use riffle_chat::{ChatError, Conversation};

use crate::testing::{TEMPLATE, ask, chat_options, conversation, engine_with_template, fixture, options, plain_engine};

const FIRST: &str = "And it came to pass in those days, that the king went up to the city.";

#[test]
fn a_saved_conversation_goes_on_without_reading_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("talk.json");
    let (engine, _model) = engine_with_template("model", TEMPLATE, options());
    let mut before = conversation(&engine, 12);
    before
        .set_system(Some("Speak plainly.".to_owned()))
        .expect("instructions");
    ask(&mut before, FIRST);
    let bytes = before.save(&path).expect("saved");
    let pages = folder.path().join("talk.json.pages");
    assert_eq!(
        bytes,
        fs::metadata(&path).expect("a file").len() + fs::metadata(&pages).expect("a file").len()
    );
    #[cfg(unix)]
    for file in [&path, &pages] {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(file).expect("a file").permissions().mode() & 0o777, 0o600);
    }

    let mut after = conversation(&engine, 12);
    let loaded = after.load(&path).expect("a conversation");
    assert_eq!((loaded.turns, loaded.problem), (1, None));
    assert_eq!(loaded.again_tokens, 0);
    assert_eq!(after.system(), Some("Speak plainly."));
    let (answer, report) = ask(&mut before, "And then?");
    let (answer_after, report_after) = ask(&mut after, "And then?");
    assert_eq!(answer_after, answer);
    assert_eq!(report_after.reused_tokens, report.reused_tokens);

    // Under other options the text is restored, and the pages are not.
    let other = options().with_key_format(Format::Q8_0).with_value_format(Format::Q8_0);
    let engine = engine.with_options(other).expect("another format");
    let mut other = conversation(&engine, 12);
    let loaded = other.load(&path).expect("a conversation");
    assert!(loaded.problem.is_some_and(|problem| problem.contains("`kv_type`")));
    assert!(loaded.again_tokens > 10);
    let (_, report) = ask(&mut other, "And then?");
    assert_eq!(report.reused_tokens, 0);
}

#[test]
fn the_text_of_another_models_conversation_is_read_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("talk");
    let mut before = conversation(&plain_engine(), 4);
    ask(&mut before, FIRST);
    before.save(&path).expect("saved");
    let hybrid = riffle_engine::Engine::load(fixture("model-hybrid"), options()).expect("a model");
    let mut after = Conversation::new(hybrid, chat_options(4, 0.0)).expect("a conversation");
    let loaded = after.load(&path).expect("a conversation");
    assert_eq!(loaded.problem.as_deref(), Some("another model wrote it"));
    assert_eq!(after.turns()[0].message, FIRST);
    assert_eq!(ask(&mut after, "And then?").1.reused_tokens, 0);
}

#[test]
fn a_file_that_is_no_conversation_is_refused_and_the_current_one_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("talk");
    let mut conversation = conversation(&plain_engine(), 4);
    ask(&mut conversation, FIRST);
    assert!(matches!(conversation.load(&path), Err(ChatError::Read { .. })));
    conversation.save(&path).expect("saved");
    let text = fs::read_to_string(&path).expect("JSON");
    let damaged = text.replace("\"marks\":[{\"text\":0", "\"marks\":[{\"text\":7");
    for text in [
        "{}",
        "\u{1}",
        &text.replace("\"riffle_chat\":1", "\"riffle_chat\":9"),
        &damaged,
    ] {
        fs::write(&path, text).expect("a file");
        let error = conversation.load(&path).expect_err("no conversation");
        assert!(matches!(error, ChatError::NotAConversation { .. }), "{error}");
    }
    assert_eq!(conversation.turns().len(), 1);
    assert_eq!(ask(&mut conversation, "And then?").1.again_tokens, 0);
}

#[test]
fn whatever_a_damaged_file_holds_the_conversation_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("talk");
    let engine = plain_engine();
    let mut before = conversation(&engine, 4);
    ask(&mut before, FIRST);
    before.save(&path).expect("saved");
    let text = fs::read_to_string(&path).expect("JSON");
    // Changes every number in turn: lengths, marks, tokens.
    let numbers: Vec<(usize, &str)> = text.match_indices(|c: char| c.is_ascii_digit()).collect();
    for (at, _) in numbers.into_iter().step_by(3) {
        for digits in ["", "9", "99999999"] {
            let damaged = [&text[..at], digits, &text[at + 1..]].concat();
            fs::write(&path, damaged).expect("a file");
            let mut after = conversation(&engine, 2);
            if after.load(&path).is_ok() {
                ask(&mut after, "And then?");
                for _ in 0..2 {
                    after.undo().expect("a turn");
                }
            }
        }
    }
}
