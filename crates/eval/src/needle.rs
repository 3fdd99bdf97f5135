//! Needles in a haystack: facts at even depths in a long text, each asked for at the end.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use rand::Rng;
use rand::SeedableRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;
use riffle_engine::{Engine, GenerateOptions, Session};
use riffle_model::Tokenizer;
use serde::Serialize;

use crate::EvalError;

/// One needle test: a document with a needle at each depth, all of one form, so that every other needle distracts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedleOptions {
    /// Tokens of the document, needles included.
    pub context_tokens: usize,
    /// How many needles stand in it, at depths 1/(n+1) … n/(n+1).
    pub depths: usize,
    /// Seed of names, values and the place in the text where the haystack starts.
    pub seed: u64,
}

/// The answer for one needle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeedleAnswer {
    /// Tokens of the document.
    pub context_tokens: usize,
    /// Where the needle stands: 0 is the start of the document, 1 its end.
    pub depth: f64,
    /// Tokens between the needle's first token and the end of the document.
    pub distance_tokens: usize,
    /// Whose key was asked for.
    pub name: String,
    /// The key in the document.
    pub expected: String,
    /// What the model wrote.
    pub answered: String,
    /// Whether the two are equal, character by character.
    pub correct: bool,
}

/// A document and the needles in it.
struct Haystack {
    tokens: Vec<u32>,
    needles: Vec<Needle>,
}

struct Needle {
    name: String,
    value: String,
    position: usize,
}

/// Reads one document and asks for each of its needles. The document is read once: each question is forgotten
/// before the next.
///
/// # Errors
/// [`EvalError::Option`] when the needles do not fit the document or the text is too short to cut a haystack from.
pub fn needle(engine: &Arc<Engine>, text: &str, options: &NeedleOptions) -> Result<Vec<NeedleAnswer>, EvalError> {
    let tokenizer = engine.tokenizer()?;
    let haystack = build(tokenizer, text, options)?;
    let mut session = Session::new(engine)?;
    session.prefill(&haystack.tokens, &mut |_| ControlFlow::Continue(()))?;
    let length = haystack.tokens.len();
    haystack
        .needles
        .into_iter()
        .map(|needle| {
            session.truncate(length)?;
            let question = format!(
                "\nWhat is the pass key for {name}? The pass key for {name} is",
                name = needle.name
            );
            session.prefill(&tokenizer.encode(&question, false)?, &mut |_| ControlFlow::Continue(()))?;
            let generate = GenerateOptions {
                max_tokens: 12,
                stops: vec![".".to_owned(), "\n".to_owned()],
                ..GenerateOptions::default()
            };
            let generation = session.generate(&generate, &mut |_| ControlFlow::Continue(()))?;
            let answered = generation.text.trim().to_owned();
            Ok(NeedleAnswer {
                context_tokens: length,
                depth: needle.position as f64 / length as f64,
                distance_tokens: length - needle.position,
                correct: answered == needle.value,
                name: needle.name,
                expected: needle.value,
                answered,
            })
        })
        .collect()
}

fn build(tokenizer: &Tokenizer, text: &str, options: &NeedleOptions) -> Result<Haystack, EvalError> {
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    let words = plain_words(tokenizer, text)?;
    let hay = tokenizer.encode(text, false)?;
    if words.len() < 32 || hay.len() < 1024 {
        return Err(EvalError::Option(format!(
            "the text has {} tokens and {} plain words: a haystack needs at least 1024 and 32",
            hay.len(),
            words.len()
        )));
    }
    let mut names = BTreeSet::new();
    while names.len() < options.depths {
        let pair: Vec<&String> = words.choose_multiple(&mut random, 2).collect();
        names.insert(format!("{} {}", pair[0], pair[1]));
    }
    let mut names: Vec<String> = names.into_iter().collect();
    names.shuffle(&mut random);
    let mut statements = Vec::with_capacity(names.len());
    for name in names {
        let value: String = (0..5).map(|_| char::from(random.random_range(b'0'..=b'9'))).collect();
        let statement = format!("\nThe pass key for {name} is {value}.\n");
        statements.push((name, value, tokenizer.encode(&statement, false)?));
    }

    let mut tokens = tokenizer.encode("", true)?;
    let needle_tokens: usize = statements.iter().map(|(_, _, statement)| statement.len()).sum();
    let Some(hay_tokens) = options
        .context_tokens
        .checked_sub(tokens.len() + needle_tokens)
        .filter(|&n| n > 0)
    else {
        return Err(EvalError::Option(format!(
            "{} needles take {needle_tokens} tokens and do not fit a context of {}: use a longer context or fewer depths",
            options.depths, options.context_tokens
        )));
    };
    let start = random.random_range(0..hay.len());
    let mut straw = hay.iter().cycle().skip(start).copied();
    let mut needles = Vec::with_capacity(statements.len());
    let count = statements.len();
    let mut taken = 0;
    for (index, (name, value, statement)) in statements.into_iter().enumerate() {
        let until = hay_tokens * (index + 1) / (count + 1);
        tokens.extend(straw.by_ref().take(until - taken));
        taken = until;
        needles.push(Needle {
            name,
            value,
            position: tokens.len(),
        });
        tokens.extend(statement);
    }
    tokens.extend(straw.take(hay_tokens - taken));
    Ok(Haystack { tokens, needles })
}

/// Lower-case words of the text, four letters or more, that the tokenizer writes as one token, sorted.
fn plain_words(tokenizer: &Tokenizer, text: &str) -> Result<Vec<String>, EvalError> {
    let words: BTreeSet<&str> = text
        .split_whitespace()
        .filter(|word| word.len() >= 4 && word.bytes().all(|b| b.is_ascii_lowercase()))
        .collect();
    let mut plain = Vec::new();
    for word in words {
        if tokenizer.encode(&format!(" {word}"), false)?.len() == 1 {
            plain.push(word.to_owned());
        }
    }
    Ok(plain)
}
