//! The thirteen tasks of RULER, made from any text. Hsieh et al. 2024, arXiv:2404.06654.
//!
//! They are RULER's tasks and scores with these differences: keys are two plain words of the text; there is no worked
//! example before `vt` and `cwe`; words of `cwe` come from the text, joined where it has too few; `qa` asks for facts
//! stated in one (`qa_1`) or two (`qa_2`) of many paragraphs of the text, each of which states another fact of the same
//! form, unless the user gives questions with documents.

use std::fmt;
use std::str::FromStr;

use rand::Rng;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::corpus::Corpus;
use super::filler::{Fact, Filler, room};
use super::given::GivenQuestion;
use super::prompt::Prompt;
use super::score::{match_all, match_any};
use super::wording::{Ask, ChainAnswer, fill};
use crate::EvalError;

/// A task of RULER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RulerTask {
    /// One number in repeated sentences.
    NiahSingle1,
    /// One number in text.
    NiahSingle2,
    /// One UUID in text.
    NiahSingle3,
    /// One number of four keys in text.
    NiahMultikey1,
    /// One number among nothing but numbers.
    NiahMultikey2,
    /// One UUID of a UUID among nothing but UUIDs.
    NiahMultikey3,
    /// Four numbers of one key.
    NiahMultivalue,
    /// The numbers of four keys.
    NiahMultiquery,
    /// A chain of five variables.
    Vt,
    /// The ten most common words of a list.
    Cwe,
    /// The three most common words of a coded text.
    Fwe,
    /// A fact of one of many documents.
    Qa1,
    /// A fact that takes two documents.
    Qa2,
}

use RulerTask::{
    Cwe, Fwe, NiahMultikey1, NiahMultikey2, NiahMultikey3, NiahMultiquery, NiahMultivalue, NiahSingle1, NiahSingle2,
    NiahSingle3, Qa1, Qa2, Vt,
};

/// RULER's filler sentences.
const NOISE: &str = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";

/// Links of a chain after its first variable.
const HOPS: usize = 4;

/// Keys, values and questions of the tasks that have several.
const SEVERAL: usize = 4;

/// Common words, how often each stands in the list, and how often the others.
const COMMON: usize = 10;
const COMMON_TIMES: usize = 30;
const OTHER_TIMES: usize = 3;

impl RulerTask {
    /// All thirteen, in RULER's order.
    pub const ALL: [Self; 13] = [
        NiahSingle1,
        NiahSingle2,
        NiahSingle3,
        NiahMultikey1,
        NiahMultikey2,
        NiahMultikey3,
        NiahMultivalue,
        NiahMultiquery,
        Vt,
        Cwe,
        Fwe,
        Qa1,
        Qa2,
    ];

    /// RULER's name.
    pub fn name(self) -> &'static str {
        match self {
            NiahSingle1 => "niah_single_1",
            NiahSingle2 => "niah_single_2",
            NiahSingle3 => "niah_single_3",
            NiahMultikey1 => "niah_multikey_1",
            NiahMultikey2 => "niah_multikey_2",
            NiahMultikey3 => "niah_multikey_3",
            NiahMultivalue => "niah_multivalue",
            NiahMultiquery => "niah_multiquery",
            Vt => "vt",
            Cwe => "cwe",
            Fwe => "fwe",
            Qa1 => "qa_1",
            Qa2 => "qa_2",
        }
    }

    /// The score of an answer, from 0 to 1.
    pub(crate) fn score(self, answer: &str, expected: &[String]) -> f64 {
        match self {
            Qa1 | Qa2 => match_any(answer, expected),
            _ => match_all(answer, expected),
        }
    }

    /// A prompt of at most `context_tokens` tokens, fixed by the seed.
    pub(crate) fn prompt(self, corpus: &Corpus, context_tokens: usize, seed: u64) -> Result<Prompt, EvalError> {
        let place = (context_tokens as u64) << 8 | self as u64;
        let mut random = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place);
        let random = &mut random;
        match self {
            Vt => chain(corpus, context_tokens, random),
            Cwe => common_words(corpus, context_tokens, random),
            Fwe => coded_words(corpus, context_tokens, random),
            Qa1 | Qa2 if corpus.given.is_empty() => stated(corpus, context_tokens, self == Qa2, random),
            Qa1 | Qa2 => given(corpus, context_tokens, self == Qa2, seed, random),
            _ => self.needles(corpus, context_tokens, random),
        }
    }

    fn needles(self, corpus: &Corpus, context_tokens: usize, random: &mut ChaCha8Rng) -> Result<Prompt, EvalError> {
        let uuids = matches!(self, NiahSingle3 | NiahMultikey3);
        let (noun, nouns) = if uuids {
            ("uuid", "uuids")
        } else {
            ("number", "numbers")
        };
        let named = [("noun", noun), ("nouns", nouns)];
        let wording = &corpus.wording.niah;
        let value = |random: &mut ChaCha8Rng| if uuids { uuid(random) } else { corpus.number(random) };
        let (keys, values) = match self {
            NiahMultikey1 | NiahMultiquery => (SEVERAL, 1),
            NiahMultivalue => (1, SEVERAL),
            _ => (1, 1),
        };
        let keys: Vec<String> = match self {
            NiahMultikey3 => (0..keys).map(|_| uuid(random)).collect(),
            _ => corpus.keys(random, keys)?,
        };
        let sentence = |key: &str, value: &str| {
            let line = fill(&wording.fact, &[("key", key), ("value", value)]);
            corpus.encode(&format!("\n{}\n", fill(&line, &named)))
        };
        let mut facts = Vec::new();
        let mut stated: Vec<(usize, String)> = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            for _ in 0..values {
                let value = value(random);
                let depth = random.random_range(0.0..1.0);
                facts.push(Fact {
                    depth,
                    tokens: sentence(key, &value)?,
                });
                stated.push((number, value));
            }
        }
        let asked = if self == NiahMultiquery { keys.len() } else { 1 };
        let filled = |ask: &Ask, keys: &str| ask.fill(&[("keys", keys)]).fill(&named);
        let asks: Vec<Ask> = match (&wording.keys, self) {
            (Some(ask), NiahMultiquery) => vec![filled(ask, &listed(&keys))],
            (None, NiahMultiquery) => keys.iter().map(|key| filled(&wording.one, key)).collect(),
            (_, NiahMultivalue) => vec![filled(&wording.values, &keys[0])],
            _ => vec![filled(&wording.one, &keys[0])],
        };
        let expected = stated
            .into_iter()
            .filter(|(key, _)| *key < asked)
            .map(|(_, value)| value);
        let frame = corpus.frame(&fill(&wording.before, &named), &asks[0])?;
        let taken = frame.head.len() + frame.tail.len() + facts.iter().map(|fact| fact.tokens.len()).sum::<usize>();
        let room = room(context_tokens, taken, self.name())?;
        let filler = match self {
            NiahSingle1 => {
                let line = corpus.encode(NOISE)?;
                Filler::lines(room, |_| Ok(line.clone()))?
            }
            NiahMultikey2 => {
                let others = corpus.keys(random, 2 * (room / 16 + 2))?;
                Filler::lines(room, |number| match others.get(number) {
                    Some(key) if *key != keys[0] => sentence(key, &corpus.number(random)),
                    Some(_) => sentence("another key", &corpus.number(random)),
                    None => Ok(Vec::new()),
                })?
            }
            NiahMultikey3 => Filler::lines(room, |_| sentence(&uuid(random), &uuid(random)))?,
            _ => Filler::text(&corpus.hay, random.random_range(0..corpus.hay.len()), room),
        };
        let (document, _) = filler.assemble(&frame.head, &facts);
        let mut questions = vec![frame.tail];
        for ask in &asks[1..] {
            questions.push(corpus.follow_up(ask)?);
        }
        Ok(corpus.prompt(document, questions, expected.collect(), 128))
    }
}

/// Five variables, each of which has the value of the one before.
fn chain(corpus: &Corpus, context_tokens: usize, random: &mut ChaCha8Rng) -> Result<Prompt, EvalError> {
    let wording = &corpus.wording.variables;
    let names: Vec<String> = if wording.upper_case {
        (0..=HOPS).map(|_| letters(random, 5).to_uppercase()).collect()
    } else {
        corpus.keys(random, HOPS + 1)?
    };
    let value = corpus.number(random);
    let mut depths: Vec<f64> = (0..=HOPS).map(|_| random.random_range(0.0..1.0)).collect();
    depths.sort_by(f64::total_cmp);
    let mut facts = Vec::new();
    for (number, (name, depth)) in names.iter().zip(depths).enumerate() {
        let line = match number.checked_sub(1) {
            None => fill(&wording.value, &[("name", name), ("value", &value)]),
            Some(before) => fill(&wording.link, &[("name", name), ("source", &names[before])]),
        };
        let tokens = corpus.encode(&format!("\n{line}\n"))?;
        facts.push(Fact { depth, tokens });
    }
    let count = names.len().to_string();
    let ask = wording
        .ask
        .fill(&[("value", &value), ("last", &names[HOPS]), ("count", &count)]);
    let frame = corpus.frame(&wording.before, &ask)?;
    let taken = frame.head.len() + frame.tail.len() + facts.iter().map(|fact| fact.tokens.len()).sum::<usize>();
    let line = corpus.encode(NOISE)?;
    let filler = Filler::lines(room(context_tokens, taken, "vt")?, |_| Ok(line.clone()))?;
    let (document, _) = filler.assemble(&frame.head, &facts);
    let expected = match wording.asks_for {
        ChainAnswer::AllNames => names,
        ChainAnswer::LastLink => names[..HOPS].iter().cloned().chain([value]).collect(),
    };
    // RULER allows 30 tokens for names of five letters; names of two words take more.
    let max_tokens = if wording.upper_case { 30 } else { 64 };
    Ok(corpus.prompt(document, vec![frame.tail], expected, max_tokens))
}

/// A numbered list in which ten words stand thirty times and all others three times.
fn common_words(corpus: &Corpus, context_tokens: usize, random: &mut ChaCha8Rng) -> Result<Prompt, EvalError> {
    let wording = &corpus.wording.common_words;
    let count = COMMON.to_string();
    let frame = corpus.frame(&wording.before, &wording.ask.fill(&[("count", &count)]))?;
    let room = room(context_tokens, frame.head.len() + frame.tail.len(), "cwe")?;
    let most = room / 12 + COMMON;
    let words = corpus.distinct_words(random, most);
    let (common, others) = words.split_at(COMMON);
    // In short contexts the common words stand less often, but always more often than the others.
    let list = |other_words: usize, common_times: usize, random: &mut ChaCha8Rng| {
        let mut list: Vec<&String> = common
            .iter()
            .flat_map(|word| std::iter::repeat_n(word, common_times))
            .collect();
        list.extend(
            others[..other_words]
                .iter()
                .flat_map(|word| std::iter::repeat_n(word, OTHER_TIMES)),
        );
        list.shuffle(random);
        let numbered = list.iter().enumerate().map(|(i, word)| format!("{}. {word}", i + 1));
        corpus.encode(&numbered.collect::<Vec<_>>().join(" "))
    };
    let mut common_times = COMMON_TIMES;
    let mut tokens = list(0, common_times, random)?;
    while tokens.len() > room * 3 / 4 && common_times > OTHER_TIMES + 1 {
        common_times -= 1;
        tokens = list(0, common_times, random)?;
    }
    let mut other_words = others.len();
    loop {
        tokens = list(other_words, common_times, random)?;
        if tokens.len() <= room {
            break;
        }
        if other_words == 0 {
            return Err(EvalError::Option(format!(
                "cwe does not fit a context of {context_tokens}: use longer --lengths"
            )));
        }
        let fitting = (other_words as f64 * room as f64 / tokens.len() as f64 * 0.995) as usize;
        other_words = fitting.min(other_words - 1);
    }
    let mut document = frame.head;
    document.extend(tokens);
    Ok(corpus.prompt(document, vec![frame.tail], common.to_vec(), 120))
}

/// Coded words whose counts fall off as rank⁻² (a zeta distribution); the first rank is dots.
fn coded_words(corpus: &Corpus, context_tokens: usize, random: &mut ChaCha8Rng) -> Result<Prompt, EvalError> {
    const ALPHA: i32 = 2;
    const ZETA_OF_2: f64 = std::f64::consts::PI * std::f64::consts::PI / 6.0;
    let wording = &corpus.wording.coded_words;
    let frame = corpus.frame(&wording.before, &wording.ask)?;
    let room = room(context_tokens, frame.head.len() + frame.tail.len(), "fwe")?;
    let mut vocabulary = vec!["....".to_owned()];
    vocabulary.extend((0..context_tokens / 50 + 8).map(|_| letters(random, 6)));
    let mut total = room / 2;
    let document = loop {
        let counts = (1..=vocabulary.len()).map(|rank| total as f64 / ((rank as f64).powi(ALPHA) * ZETA_OF_2));
        let mut words: Vec<&str> = vocabulary
            .iter()
            .zip(counts)
            .flat_map(|(word, count)| std::iter::repeat_n(word.as_str(), count as usize))
            .collect();
        words.shuffle(random);
        let tokens = corpus.encode(&words.join(" "))?;
        if tokens.len() <= room {
            let mut document = frame.head;
            document.extend(tokens);
            break document;
        }
        total = (total as f64 * room as f64 / tokens.len() as f64 * 0.99) as usize;
    };
    if total < 64 {
        return Err(EvalError::Option(format!(
            "fwe does not fit a context of {context_tokens}: use longer --lengths"
        )));
    }
    Ok(corpus.prompt(document, vec![frame.tail], vocabulary[1..4].to_vec(), 50))
}

/// Paragraphs of the text, each with a fact of one form; the answer takes one of them, or two.
fn stated(
    corpus: &Corpus,
    context_tokens: usize,
    two_hops: bool,
    random: &mut ChaCha8Rng,
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
    // Fact 0 is asked for. Of two hops every fact has its keeper, in another paragraph.
    let (ask, key) = match two_hops {
        true => (&wording.ask_two_hops, &keys[paragraphs]),
        false => (&wording.ask, &keys[0]),
    };
    let frame = corpus.frame(&wording.before, &ask.fill(&[("key", key)]))?;
    let room = room(context_tokens, frame.head.len() + frame.tail.len(), "qa")?;
    let texts = (0..paragraphs).flat_map(|number| match two_hops {
        true => vec![fact(number), keeper(number)],
        false => vec![fact(number)],
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

/// A question the user gave: its documents among those of other questions and paragraphs of the text.
fn given(
    corpus: &Corpus,
    context_tokens: usize,
    two_documents: bool,
    seed: u64,
    random: &mut ChaCha8Rng,
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
    let frame = corpus.frame(&wording.before, &ask)?;
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

/// The needed documents and as many others as `room` tokens hold, in any order, numbered.
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

/// `a`, `a and b`, `a, b, and c`.
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [one, two] => format!("{one} and {two}"),
        [all @ .., last] => format!("{}, and {last}", all.join(", ")),
    }
}

fn letters(random: &mut ChaCha8Rng, count: usize) -> String {
    (0..count)
        .map(|_| char::from(random.random_range(b'a'..=b'z')))
        .collect()
}

/// A random UUID, version 4.
fn uuid(random: &mut ChaCha8Rng) -> String {
    let bits = random.random::<u128>() & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

impl fmt::Display for RulerTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl RulerTask {
    /// The names of all tasks, as a list for people.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl FromStr for RulerTask {
    type Err = EvalError;

    fn from_str(text: &str) -> Result<Self, EvalError> {
        Self::ALL
            .into_iter()
            .find(|task| task.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| EvalError::Option(format!("unknown task {text:?}; known: {}", Self::names())))
    }
}
