//! Parts that an embedding model finds. The model is random, so its vectors decide what is near.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use riffle_ask::{Amount, Answer, AskError, AskEvent, AskOptions, Conversation, FoundBy, Given, KeepOptions};
use riffle_documents::Document;
use riffle_engine::{Encoding, Engine, EngineOptions, embed};
use riffle_model::cut_text;
use riffle_testing::fixture;

use crate::{document, generate};

const EMBEDDINGS: &str = "vectors/embedding/qwen3";

/// A question with which most parts of the documents share no word.
const QUESTION: &str = "Which harbour?";

/// Paragraphs that are a part each. Two of them share a word with the question.
fn paragraphs() -> Vec<String> {
    let book = fs::read_to_string(fixture("text/zechariah.txt")).unwrap();
    let words: Vec<&str> = book.split_whitespace().collect();
    let paragraph = |(number, words): (usize, &[&str])| {
        let ship = if [3, 9].contains(&number) { " A harbour." } else { "" };
        format!("{}{ship}\n\n", words.join(" "))
    };
    let paragraphs: Vec<String> = words.chunks(200).take(24).enumerate().map(paragraph).collect();
    assert!(paragraphs.iter().all(|text| (900..1600).contains(&text.len())));
    paragraphs
}

fn options(folder: Option<&Path>) -> AskOptions {
    AskOptions {
        engine: EngineOptions::default().with_context_tokens(Some(2048)),
        given: Given {
            context: true,
            ..Given::default()
        },
        amount: Amount::Parts,
        answer_tokens: 16,
        embeddings: Some(fixture(EMBEDDINGS)),
        keep: folder.map(|folder| KeepOptions {
            folder: folder.to_owned(),
            budget_bytes: 1 << 30,
            is_needed: true,
        }),
        ..AskOptions::default()
    }
}

fn documents() -> Vec<Document> {
    let paragraphs = paragraphs();
    vec![
        document("a.txt", paragraphs[..12].concat()),
        document("b.txt", paragraphs[12..].concat()),
    ]
}

/// An answer, and the number of parts that the embedding model read for it.
fn ask(conversation: &mut Conversation, question: &str) -> (Answer, usize) {
    let mut embedded = 0;
    let answer = conversation.ask(question, &generate(), &mut |event| {
        if let AskEvent::Embedding { done, parts } = event {
            assert!(done <= parts);
            embedded = parts;
        }
        ControlFlow::Continue(())
    });
    (answer.unwrap(), embedded)
}

fn texts(conversation: &Conversation, answer: &Answer) -> Vec<String> {
    let text = |part: &riffle_ask::Part| conversation.documents()[part.document].text[part.range()].to_owned();
    answer.parts.iter().map(text).collect()
}

/// The paragraph nearest to the question, by vectors computed beside `riffle-ask`.
fn nearest() -> String {
    let engine = Engine::load(
        fixture(EMBEDDINGS),
        EngineOptions::default().with_context_tokens(Some(64)),
    );
    let engine: Arc<Engine> = engine.unwrap();
    let tokenizer = engine.tokenizer().unwrap();
    let encode = |text: &str| {
        let mut tokens = tokenizer.encode(text, true).unwrap();
        cut_text(&mut tokens, Encoding::most_tokens(&engine), tokenizer);
        tokens
    };
    let prompts = &engine.embedding().unwrap().prompts;
    let paragraphs = paragraphs();
    let mut tokens: Vec<Vec<u32>> = paragraphs
        .iter()
        .map(|text| encode(&format!("{}{text}", prompts["document"])))
        .collect();
    tokens.push(encode(&format!("{}{QUESTION}", prompts["query"])));
    let mut vectors = embed(&engine, tokens).unwrap();
    let question = vectors.pop().unwrap();
    let near = |vector: &Vec<f32>| {
        vector
            .iter()
            .zip(&question)
            .map(|(one, other)| one * other)
            .sum::<f32>()
    };
    let scores: Vec<f32> = vectors.iter().map(near).collect();
    let best = (0..scores.len()).max_by(|one, other| scores[*one].total_cmp(&scores[*other]));
    paragraphs[best.unwrap()].clone()
}

#[test]
fn a_part_without_a_word_of_the_question_is_read_if_it_is_nearest_in_meaning() {
    let nearest = nearest();
    assert!(!nearest.contains("harbour"));
    let words = AskOptions {
        embeddings: None,
        ..options(None)
    };
    let mut by_words = Conversation::open(fixture("model"), documents(), words).unwrap();
    let (answer, embedded) = ask(&mut by_words, QUESTION);
    assert_eq!((answer.found_by, embedded), (Some(FoundBy::Words), 0));
    let read = texts(&by_words, &answer);
    assert!(read.iter().any(|text| text.contains("harbour")) && !read.contains(&nearest));

    let mut by_both = Conversation::open(fixture("model"), documents(), options(None)).unwrap();
    let (answer, embedded) = ask(&mut by_both, QUESTION);
    assert_eq!((answer.found_by, embedded), (Some(FoundBy::WordsAndMeaning), 24));
    let read = texts(&by_both, &answer);
    assert!(read.iter().any(|text| text.contains("harbour")) && read.contains(&nearest));
    assert!(answer.parts.is_sorted());
}

#[test]
fn later_questions_embed_no_part_again_unless_a_document_or_its_file_changed() {
    let folder = tempfile::tempdir().unwrap();
    let open = |documents| Conversation::open(fixture("model"), documents, options(Some(folder.path()))).unwrap();
    let mut first = open(documents());
    let (answer, embedded) = ask(&mut first, QUESTION);
    assert_eq!(embedded, 24);
    assert_eq!(ask(&mut first, "And which city?").1, 0);
    let (again, embedded) = ask(&mut open(documents()), QUESTION);
    assert_eq!((&again.parts, embedded), (&answer.parts, 0));
    // One of the two documents changes.
    let mut changed = documents();
    changed[1] = document("b.txt", paragraphs()[14..].concat());
    assert_eq!(ask(&mut open(changed), QUESTION).1, 10);
    // Vectors whose files were damaged are made again.
    for path in fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_some_and(|ending| ending == "block") {
            let mut bytes = fs::read(&path).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    }
    let (again, embedded) = ask(&mut open(documents()), QUESTION);
    assert_eq!((&again.parts, embedded), (&answer.parts, 24));
    assert_eq!(ask(&mut open(documents()), QUESTION).1, 0);
}

#[test]
fn an_interrupted_embedding_ends_the_question_and_the_next_one_goes_on() {
    let mut conversation = Conversation::open(fixture("model"), documents(), options(None)).unwrap();
    let stopped = conversation.ask(QUESTION, &generate(), &mut |event| match event {
        AskEvent::Embedding { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(
        stopped,
        Err(AskError::Engine(riffle_engine::EngineError::Interrupted { .. }))
    ));
    assert_eq!(ask(&mut conversation, QUESTION).1, 24);
}

#[test]
fn a_model_that_cannot_be_used_is_refused_in_one_line() {
    let open = |embeddings: &str, memory: Option<u64>| {
        let mut options = options(None);
        options.engine = options.engine.with_memory_budget_bytes(memory);
        options.embeddings = (!embeddings.is_empty()).then(|| fixture(embeddings));
        Conversation::open(fixture("model"), documents(), options).err()
    };
    let refused = open("model", None).unwrap().to_string();
    assert!(
        refused.ends_with(
            "model is no embedding model, since its files state no pooling: name one with `embeddings`, such as \
             EmbeddingGemma or Qwen3-Embedding"
        ),
        "{refused}"
    );
    let refused = open("vectors/embedding/reranker", None).unwrap().to_string();
    assert!(refused.contains("reranker is no embedding model"), "{refused}");
    let refused = open("nothing", None).unwrap().to_string();
    assert!(refused.contains("nothing") && !refused.contains('\n'), "{refused}");
    // The least memory, to a few KiB, in which the language model alone answers.
    let (mut less, mut more) = (1u64 << 20, 1u64 << 30);
    while more - less > 4096 {
        let middle = u64::midpoint(less, more);
        match open("", Some(middle)) {
            None => more = middle,
            Some(_) => less = middle,
        }
    }
    let refused = open(EMBEDDINGS, Some(more)).unwrap();
    assert!(matches!(refused, AskError::NoRoom { .. }), "{refused}");
    assert!(refused.to_string().contains("leave out `embeddings`"), "{refused}");
    assert!(open(EMBEDDINGS, Some(more + (64 << 20))).is_none());
}

#[test]
fn a_text_that_is_read_whole_needs_no_embedding_model() {
    let options = AskOptions {
        amount: Amount::Fitting,
        embeddings: Some(fixture("nothing")),
        ..options(None)
    };
    let short = vec![document("a.txt", paragraphs()[0].clone())];
    let mut conversation = Conversation::open(fixture("model"), short, options).unwrap();
    let (answer, embedded) = ask(&mut conversation, QUESTION);
    assert_eq!((answer.found_by, embedded), (None, 0));
}
