//! Questions that need one of many documents, or two.

use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::EvalError;
use crate::tasks::corpus::Corpus;
use crate::tasks::filler::room;
use crate::tasks::given::GivenQuestion;
use crate::tasks::prompt::{Prompt, Watch};
use crate::tasks::wording::fill;

/// Paragraphs of the text, each with a fact of one form. The answer needs one of them, or two.
pub(super) fn stated(
    corpus: &Corpus,
    context_tokens: usize,
    two_hops: bool,
    random: &mut ChaCha8Rng,
    watch: &mut Watch<'_>,
) -> Result<Prompt, EvalError> {
    let wording = &corpus.wording.documents;
    let paragraphs = context_tokens / 32 + 4;
    let keys = corpus.keys(random, 2 * paragraphs)?;
    let values: Vec<String> = (0..paragraphs).map(|_| corpus.number(random)).collect();
    let fact = |number: usize| {
        let form = if two_hops { &wording.first_hop } else { &wording.fact };
        fill(form, &[("key", &keys[number]), ("value", &values[number])])
    };
    let keeper = |number: usize| {
        let named = [("key", &*keys[paragraphs + number]), ("source", &keys[number])];
        fill(&wording.second_hop, &named)
    };
    // The question asks for fact 0. With two hops every fact has its keeper in another paragraph.
    let (ask, key) = if two_hops {
        (&wording.ask_two_hops, &keys[paragraphs])
    } else {
        (&wording.ask, &keys[0])
    };
    let frame = corpus.frame(&wording.before, &ask.fill(&[("key", key)]), watch)?;
    let room = room(context_tokens, frame.head.len() + frame.tail.len(), "qa")?;
    let texts = (0..paragraphs).flat_map(|number| {
        if two_hops {
            vec![fact(number), keeper(number)]
        } else {
            vec![fact(number)]
        }
    });
    let texts: Vec<String> = texts
        .map(|fact| {
            let line = &corpus.lines[random.random_range(0..corpus.lines.len())];
            format!("{line}\n{fact}")
        })
        .collect();
    let (needed, others) = texts.split_at(if two_hops { 2 } else { 1 });
    let document = documents(corpus, &frame.head, needed, others, room, random)?;
    Ok(corpus.prompt(document, vec![frame.tail], vec![values[0].clone()], 32))
}

/// A question of the user: its documents, mixed with documents of other questions and paragraphs of the text.
pub(super) fn given(
    corpus: &Corpus,
    context_tokens: usize,
    two_documents: bool,
    seed: u64,
    random: &mut ChaCha8Rng,
    watch: &mut Watch<'_>,
) -> Result<Prompt, EvalError> {
    let wording = &corpus.wording.documents;
    let fitting: Vec<&GivenQuestion> = corpus
        .given
        .iter()
        .filter(|question| (question.documents.len() > 1) == two_documents)
        .collect();
    let Some(asked) = fitting.get(seed as usize % fitting.len().max(1)) else {
        let (task, count) = if two_documents {
            ("qa_2", "two documents")
        } else {
            ("qa_1", "one document")
        };
        return Err(EvalError::Option(format!(
            "--questions has no question with {count} or more, which {task} needs: add some, or leave {task} out of --tasks"
        )));
    };
    let ask = wording.ask_given.fill(&[("question", &asked.question)]);
    let frame = corpus.frame(&wording.before, &ask, watch)?;
    let room = room(context_tokens, frame.head.len() + frame.tail.len(), "qa")?;
    let mut others: Vec<String> = corpus
        .given
        .iter()
        .flat_map(|question| &question.documents)
        .filter(|document| !asked.documents.contains(document))
        .cloned()
        .collect();
    others.shuffle(random);
    let mut lines = corpus.lines.clone();
    lines.shuffle(random);
    others.extend(lines);
    let document = documents(corpus, &frame.head, &asked.documents, &others, room, random)?;
    Ok(corpus.prompt(document, vec![frame.tail], asked.answers.clone(), 32))
}

/// The needed documents and as many others as fit in `room` tokens, in random order, numbered.
fn documents(
    corpus: &Corpus,
    head: &[u32],
    needed: &[String],
    others: &[String],
    room: usize,
    random: &mut ChaCha8Rng,
) -> Result<Vec<u32>, EvalError> {
    let form = |number: usize, text: &str| {
        let number = number.to_string();
        fill(
            &corpus.wording.documents.document,
            &[("number", &number), ("text", text)],
        ) + "\n\n"
    };
    let mut chosen: Vec<&String> = needed.iter().collect();
    let (mut taken, mut at) = (0, 0);
    for text in &chosen {
        taken += corpus.encode(&form(9999, text))?.len();
    }
    while let Some(other) = others.get(at) {
        taken += corpus.encode(&form(9999, other))?.len();
        if taken > room {
            break;
        }
        chosen.push(other);
        at += 1;
    }
    chosen.shuffle(random);
    let mut tokens = head.to_vec();
    for (number, text) in chosen.iter().enumerate() {
        tokens.extend(corpus.encode(&form(number + 1, text))?);
    }
    if tokens.len() > head.len() + room {
        return Err(EvalError::Option(
            "the documents of a question do not fit the context: use longer --lengths".to_owned(),
        ));
    }
    Ok(tokens)
}
