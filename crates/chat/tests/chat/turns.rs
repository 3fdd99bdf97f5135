//! A turn reads only its new tokens. Undo and branches keep the tokens that were read.

use std::ops::ControlFlow;

use riffle_chat::{ChatError, Conversation, Undone};
use riffle_engine::{RunEvent, Session, StopReason};

use crate::testing::{
    CHANGING_TEMPLATE, TEMPLATE, ask, chat_options, conversation, engine_with_template, go_on, last_answer, options,
    plain_engine,
};

const FIRST: &str = "And it came to pass in those days, that the king went up to the city.";
const SECOND: &str = "What was the name of the king?";

#[test]
fn a_turn_reads_its_message_alone_where_the_template_leaves_earlier_turns_as_they_were() {
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options());
    for engine in [engine, plain_engine()] {
        let mut conversation = conversation(&engine, 12);
        let (_, first) = ask(&mut conversation, FIRST);
        assert_eq!((first.reused_tokens, first.again_tokens), (0, 0));
        let (_, second) = ask(&mut conversation, SECOND);
        // The last token of a cut answer has not been read.
        assert_eq!(second.reused_tokens, first.prompt_tokens + first.generated_tokens - 1);
        assert_eq!(second.again_tokens, 0);
        assert_eq!(second.read_tokens, second.prompt_tokens - second.reused_tokens);
        assert!(second.read_tokens < 40, "{second:?}");
        let (_, third) = ask(&mut conversation, "And then?");
        assert_eq!(third.reused_tokens, second.prompt_tokens + second.generated_tokens - 1);
        assert_eq!(
            conversation.report().tokens,
            third.prompt_tokens + third.generated_tokens - 1
        );
    }
}

#[test]
fn an_answer_is_that_of_the_same_tokens_read_at_once() {
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options());
    let mut conversation = conversation(&engine, 12);
    let (first, _) = ask(&mut conversation, FIRST);
    let (second, _) = ask(&mut conversation, SECOND);
    let text = format!("[user] {FIRST}\n[assistant] {first}\n[user] {SECOND}\n[assistant] ");
    let tokens = engine.tokenizer().expect("one").encode(&text, false).expect("tokens");
    let mut session = Session::new(&engine).expect("a session");
    session
        .prefill(&tokens, &mut |_| ControlFlow::Continue(()))
        .expect("read");
    let generate = conversation.generate_options().clone();
    let whole = session
        .generate(&generate, &mut |_| ControlFlow::Continue(()))
        .expect("an answer");
    assert_eq!(second, whole.text);
}

#[test]
fn where_the_template_changes_earlier_turns_they_are_read_again_from_there() {
    let (engine, _folder) = engine_with_template("model", CHANGING_TEMPLATE, options());
    let mut conversation = conversation(&engine, 12);
    let (_, first) = ask(&mut conversation, FIRST);
    let (_, second) = ask(&mut conversation, SECOND);
    assert!(second.again_tokens > 0, "{second:?}");
    // The question before the changed answer stays; its last token may differ before a bracket.
    assert!(second.reused_tokens + 2 >= first.prompt_tokens, "{second:?}");
    assert!(second.reused_tokens <= first.prompt_tokens);
}

#[test]
fn undo_goes_back_before_the_turn_and_the_same_message_gets_the_same_answer() {
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options());
    let mut conversation = conversation(&engine, 12);
    ask(&mut conversation, FIRST);
    let (answer, report) = ask(&mut conversation, SECOND);
    let undone = conversation.undo().expect("a turn");
    let expected = Undone::Turn {
        message: SECOND.to_owned(),
        again_tokens: 0,
    };
    assert_eq!(undone, expected);
    assert_eq!(conversation.turns().len(), 1);
    let (again, report_again) = ask(&mut conversation, SECOND);
    assert_eq!(again, answer);
    assert_eq!(report_again.reused_tokens, report.reused_tokens);
    for _ in 0..2 {
        conversation.undo().expect("a turn");
    }
    assert!(matches!(conversation.undo(), Err(ChatError::Nothing(_))));
    assert_eq!(conversation.report().tokens, 0);
}

#[test]
fn a_retry_reads_nothing_and_draws_otherwise() {
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options());
    let mut conversation = Conversation::new(engine, chat_options(16, 1.5)).expect("a conversation");
    ask(&mut conversation, FIRST);
    let (answer, first) = ask(&mut conversation, SECOND);
    let report = conversation.retry(&mut go_on).expect("an answer");
    assert_eq!((report.read_tokens, report.prompt_tokens), (0, first.prompt_tokens));
    assert_ne!(last_answer(&conversation), answer);
    assert_eq!(conversation.turns().len(), 2);
    // The seed decides: the same seed gives the first answer again.
    conversation.undo().expect("a turn");
    assert_eq!(ask(&mut conversation, SECOND).0, answer);
}

#[test]
fn a_recurrent_model_goes_back_one_turn_at_once_and_says_what_it_reads_again_further_back() {
    let (engine, _folder) = engine_with_template("model-hybrid", TEMPLATE, options());
    let mut conversation = conversation(&engine, 8);
    for message in [FIRST, SECOND, "And then?"] {
        ask(&mut conversation, message);
    }
    let again = |conversation: &mut Conversation| match conversation.undo().expect("a turn") {
        Undone::Turn { again_tokens, .. } => again_tokens,
        Undone::Document { .. } => panic!("no document was attached"),
    };
    assert_eq!(again(&mut conversation), 0);
    let missing = again(&mut conversation);
    assert!(missing > 0);
    let (answer, report) = ask(&mut conversation, SECOND);
    assert_eq!(report.reused_tokens, 0);
    conversation.retry(&mut go_on).expect("an answer");
    assert_eq!(last_answer(&conversation), answer, "the most likely token again");
}

#[test]
fn branches_share_what_was_read_and_go_different_ways() {
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options());
    let mut conversation = conversation(&engine, 8);
    ask(&mut conversation, FIRST);
    let before = conversation.report().tokens;
    assert_eq!(conversation.fork(None).expect("a branch"), "2");
    assert!(conversation.report().shared_bytes > 0);
    let (_, report) = ask(&mut conversation, SECOND);
    assert_eq!(report.reused_tokens, before);
    assert_eq!(conversation.turns().len(), 2);
    conversation.switch("1").expect("the first branch");
    assert_eq!(conversation.turns().len(), 1);
    let (_, report) = ask(&mut conversation, "And then?");
    assert_eq!(report.reused_tokens, before);

    assert_eq!(conversation.fork(Some("third")).expect("a branch"), "third");
    assert!(matches!(conversation.fork(Some("2")), Err(ChatError::BranchExists(_))));
    assert!(matches!(conversation.switch("no"), Err(ChatError::NoBranch { .. })));
    assert!(matches!(
        conversation.drop_branch("third"),
        Err(ChatError::CurrentBranch(_))
    ));
    conversation.fork(None).expect("a branch");
    assert!(matches!(conversation.fork(None), Err(ChatError::TooManyBranches(4))));
    conversation.drop_branch("2").expect("a branch");
    let names: Vec<String> = conversation
        .report()
        .branches
        .into_iter()
        .map(|branch| branch.name)
        .collect();
    assert_eq!(names, ["1", "3", "third"]);
    // A cleared branch reads again, in the same pool of pages.
    conversation.clear();
    assert_eq!(ask(&mut conversation, FIRST).1.reused_tokens, 0);
}

#[test]
fn an_answer_that_is_stopped_keeps_what_was_said() {
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options());
    let mut conversation = conversation(&engine, 64);
    let mut seen = String::new();
    let report = conversation.ask(FIRST, &mut |event| {
        if let RunEvent::Text(text) = event {
            seen += text;
        }
        match seen.len() {
            ..10 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    let report = report.expect("an answer");
    assert_eq!(report.stop, StopReason::Interrupted);
    assert_eq!(last_answer(&conversation), seen);
    let (_, second) = ask(&mut conversation, SECOND);
    assert_eq!(second.again_tokens, 0);
    assert!(second.reused_tokens > report.prompt_tokens, "{second:?}");
}

#[test]
fn a_message_whose_reading_is_stopped_can_be_read_further() {
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options());
    let mut conversation = conversation(&engine, 8);
    let stopped = conversation.ask(FIRST, &mut |_| ControlFlow::Break(()));
    assert!(stopped.expect_err("it was stopped").is_interrupted());
    assert!(conversation.turns().is_empty());
    conversation.retry(&mut go_on).expect("an answer");
    assert_eq!(conversation.turns()[0].message, FIRST);
}
