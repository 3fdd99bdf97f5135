//! Documents that are longer than the context.

use std::fs;
use std::ops::ControlFlow;

use riffle_ask::{Amount, Answer, AskError, AskEvent, AskOptions, Conversation, FoundBy, Given, Part, Scope};
use riffle_documents::{Document, DocumentPlace, PlaceKind};
use riffle_engine::EngineOptions;
use riffle_testing::fixture;

use crate::{NAMES, document, fact, generate, question};

/// Tokens of the context: a fifth of the book.
const CONTEXT: usize = 1536;

/// A part of the shipped book with the facts far apart, a page every 20 lines.
fn long_book() -> Document {
    let book = fs::read_to_string(fixture("text/zechariah.txt")).unwrap();
    let mut lines: Vec<String> = book.lines().take(240).map(str::to_owned).collect();
    for number in 0..NAMES.len() {
        lines.insert(20 + 28 * number, fact(number));
    }
    let mut book = document("book.txt", String::new());
    for (number, page) in lines.chunks(20).enumerate() {
        let start = book.text.len();
        book.text += &(page.join("\n") + "\n");
        book.places.push(DocumentPlace {
            range: start..book.text.len(),
            kind: PlaceKind::Page(number + 1),
        });
    }
    book
}

fn options(amount: Amount) -> AskOptions {
    AskOptions {
        engine: EngineOptions::default().with_context_tokens(Some(CONTEXT)),
        given: Given {
            context: true,
            ..Given::default()
        },
        amount,
        answer_tokens: 16,
        ..AskOptions::default()
    }
}

fn open(options: AskOptions) -> Conversation {
    Conversation::open(fixture("model"), vec![long_book()], options).unwrap()
}

fn ask(conversation: &mut Conversation, number: usize) -> Answer {
    let answer = conversation.ask(&question(number), &generate(), &mut |_| ControlFlow::Continue(()));
    answer.unwrap()
}

fn holds(parts: &[Part], text: &str, fact: &str) -> bool {
    parts.iter().any(|part| text[part.range()].contains(fact))
}

#[test]
fn a_question_is_answered_from_the_parts_that_share_its_words() {
    let mut answered = 0;
    for number in 0..NAMES.len() {
        let mut conversation = open(options(Amount::Fitting));
        let text = conversation.documents()[0].text.clone();
        let read_tokens = conversation.choice().parts_tokens.unwrap();
        assert!(conversation.choice().document_tokens > 3 * CONTEXT);
        let answer = ask(&mut conversation, number);
        assert!(answer.prompt_tokens <= CONTEXT && answer.prompt_tokens <= read_tokens + 128);
        assert!(holds(&answer.parts, &text, &fact(number)), "{number}");
        assert!(answer.parts.is_sorted() && answer.parts[0].start == 0);
        answered += usize::from(answer.text.contains(&(10_307 + 11_113 * number).to_string()));
        if let Some(passage) = answer.passages.first() {
            assert!(passage.place.starts_with("page"), "{}", passage.place);
        }
    }
    assert!(answered >= 6, "{answered} of {}", NAMES.len());
}

#[test]
fn later_questions_keep_what_was_read_until_the_context_is_full() {
    let mut conversation = open(options(Amount::Fitting));
    let text = conversation.documents()[0].text.clone();
    let (mut kept, mut exchanged) = (0, 0);
    for number in (0..NAMES.len()).chain(0..NAMES.len()) {
        let held_tokens = conversation.engine().plan().context_tokens;
        let answer = ask(&mut conversation, number);
        assert!(answer.prompt_tokens <= held_tokens);
        if answer.reused_tokens > 0 {
            kept += usize::from(number > 0);
        }
        exchanged += usize::from(answer.parts.first().is_some_and(|part| part.start == 0));
        let seen_now = holds(&answer.parts, &text, &fact(number));
        assert!(seen_now || answer.reused_tokens > 0, "{number}");
    }
    assert!(kept > 0, "no question went on from what was read");
    assert!((2..16).contains(&exchanged), "{exchanged} beginnings");
}

#[test]
fn what_is_read_is_told_before_it_is_read() {
    let mut conversation = open(options(Amount::Fitting));
    let mut told = Vec::new();
    let answer = conversation
        .ask(&question(3), &generate(), &mut |event| {
            match event {
                AskEvent::Begins(begins) => {
                    assert!(begins.found_by == Some(FoundBy::Words) && told.is_empty());
                    assert!(begins.text_tokens > begins.tokens);
                    told = begins.parts.to_vec();
                }
                AskEvent::Reading(_) => assert!(!told.is_empty()),
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(told, answer.parts);
}

#[test]
fn pages_and_parts_are_read_where_they_are_asked_for() {
    let pages = |first: &str, last: &str| AskOptions {
        scopes: vec![Scope::Pages(first.to_owned(), last.to_owned())],
        amount: Amount::Whole,
        ..options(Amount::Whole)
    };
    let mut conversation = open(pages("2", "2"));
    let answer = ask(&mut conversation, 1);
    let second = &conversation.documents()[0].places[1].range;
    assert_eq!(answer.parts.len(), 1);
    assert_eq!(
        (answer.parts[0].start, answer.parts[0].end + 1),
        (second.start, second.end)
    );
    let refused = Conversation::open(fixture("model"), vec![long_book()], pages("2", "99"))
        .err()
        .unwrap();
    assert!(matches!(refused, AskError::Place(_)), "{refused}");
}

#[test]
fn all_of_a_text_that_does_not_fit_is_refused_where_somebody_asked_for_all() {
    let refused = Conversation::open(fixture("model"), vec![long_book()], options(Amount::Whole))
        .err()
        .unwrap();
    assert!(matches!(refused, AskError::TooLong { is_given: true, .. }), "{refused}");
}
