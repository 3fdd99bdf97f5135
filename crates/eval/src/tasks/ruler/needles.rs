//! Values hidden in a long text: needles, and a chain of variables.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::RulerTask::{
    self, NiahMultikey1, NiahMultikey2, NiahMultikey3, NiahMultiquery, NiahMultivalue, NiahSingle1, NiahSingle3,
};
use super::letters;
use crate::EvalError;
use crate::tasks::corpus::Corpus;
use crate::tasks::filler::{Fact, Filler, room};
use crate::tasks::prompt::{Prompt, Watch};
use crate::tasks::wording::{Ask, ChainAnswer, fill};

/// RULER's filler sentences.
const NOISE: &str = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";

/// Links of a chain after its first variable.
const HOPS: usize = 4;

/// Number of keys, values and questions in tasks with several.
const SEVERAL: usize = 4;

/// Keys with their values, and the sentences that state them.
struct Hidden<'a> {
    corpus: &'a Corpus,
    /// True if the values are UUIDs, false for numbers.
    has_uuids: bool,
    keys: Vec<String>,
    /// The index of a key, and its value.
    values: Vec<(usize, String)>,
    facts: Vec<Fact>,
}

/// One or several values of one or several keys.
pub(super) fn needles(
    task: RulerTask,
    corpus: &Corpus,
    context_tokens: usize,
    random: &mut ChaCha8Rng,
    watch: &mut Watch<'_>,
) -> Result<Prompt, EvalError> {
    let hidden = Hidden::new(task, corpus, random)?;
    let asks = hidden.asks(task);
    let frame = corpus.frame(&fill(&corpus.wording.niah.before, &hidden.nouns()), &asks[0], watch)?;
    let taken = frame.head.len() + frame.tail.len() + fact_tokens(&hidden.facts);
    let filler = hidden.filler(task, room(context_tokens, taken, task.name())?, random)?;
    let (document, _) = filler.assemble(&frame.head, &hidden.facts);
    let mut questions = vec![frame.tail];
    for ask in &asks[1..] {
        questions.push(corpus.follow_up(ask, watch)?);
    }
    let asked = if task == NiahMultiquery { hidden.keys.len() } else { 1 };
    let expected = hidden
        .values
        .into_iter()
        .filter(|(key, _)| *key < asked)
        .map(|(_, value)| value);
    Ok(corpus.prompt(document, questions, expected.collect(), 128))
}

impl<'a> Hidden<'a> {
    fn new(task: RulerTask, corpus: &'a Corpus, random: &mut ChaCha8Rng) -> Result<Self, EvalError> {
        let (keys, values) = match task {
            NiahMultikey1 | NiahMultiquery => (SEVERAL, 1),
            NiahMultivalue => (1, SEVERAL),
            _ => (1, 1),
        };
        let mut hidden = Self {
            corpus,
            has_uuids: matches!(task, NiahSingle3 | NiahMultikey3),
            keys: match task {
                NiahMultikey3 => (0..keys).map(|_| uuid(random)).collect(),
                _ => corpus.keys(random, keys)?,
            },
            values: Vec::new(),
            facts: Vec::new(),
        };
        for (number, key) in hidden.keys.iter().enumerate() {
            for _ in 0..values {
                let value = if hidden.has_uuids {
                    uuid(random)
                } else {
                    corpus.number(random)
                };
                let depth = random.random_range(0.0..1.0);
                hidden.facts.push(Fact {
                    depth,
                    tokens: hidden.sentence(key, &value)?,
                });
                hidden.values.push((number, value));
            }
        }
        Ok(hidden)
    }

    /// Nouns for the values, singular and plural.
    fn nouns(&self) -> [(&'static str, &'static str); 2] {
        if self.has_uuids {
            [("noun", "uuid"), ("nouns", "uuids")]
        } else {
            [("noun", "number"), ("nouns", "numbers")]
        }
    }

    /// The tokens of a line that states a key's value.
    fn sentence(&self, key: &str, value: &str) -> Result<Vec<u32>, EvalError> {
        let line = fill(&self.corpus.wording.niah.fact, &[("key", key), ("value", value)]);
        self.corpus.encode(&format!("\n{}\n", fill(&line, &self.nouns())))
    }

    /// The questions, one after another.
    fn asks(&self, task: RulerTask) -> Vec<Ask> {
        let wording = &self.corpus.wording.niah;
        let filled = |ask: &Ask, keys: &str| ask.fill(&[("keys", keys)]).fill(&self.nouns());
        match (&wording.keys, task) {
            (Some(ask), NiahMultiquery) => vec![filled(ask, &listed(&self.keys))],
            (None, NiahMultiquery) => self.keys.iter().map(|key| filled(&wording.one, key)).collect(),
            (_, NiahMultivalue) => vec![filled(&wording.values, &self.keys[0])],
            _ => vec![filled(&wording.one, &self.keys[0])],
        }
    }

    /// Makes the filler for the rest of the document.
    fn filler(&self, task: RulerTask, room: usize, random: &mut ChaCha8Rng) -> Result<Filler, EvalError> {
        let corpus = self.corpus;
        Ok(match task {
            NiahSingle1 => {
                let line = corpus.encode(NOISE)?;
                Filler::lines(room, |_| Ok(line.clone()))?
            }
            NiahMultikey2 => {
                let others = corpus.keys(random, 2 * (room / 16 + 2))?;
                Filler::lines(room, |number| match others.get(number) {
                    Some(key) if *key != self.keys[0] => self.sentence(key, &corpus.number(random)),
                    Some(_) => self.sentence("another key", &corpus.number(random)),
                    None => Ok(Vec::new()),
                })?
            }
            NiahMultikey3 => Filler::lines(room, |_| self.sentence(&uuid(random), &uuid(random)))?,
            _ => Filler::text(&corpus.hay, random.random_range(0..corpus.hay.len()), room),
        })
    }
}

/// Five variables; each has the value of the previous one.
pub(super) fn chain(
    corpus: &Corpus,
    context_tokens: usize,
    random: &mut ChaCha8Rng,
    watch: &mut Watch<'_>,
) -> Result<Prompt, EvalError> {
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
    let frame = corpus.frame(&wording.before, &ask, watch)?;
    let taken = frame.head.len() + frame.tail.len() + fact_tokens(&facts);
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

fn fact_tokens(facts: &[Fact]) -> usize {
    facts.iter().map(|fact| fact.tokens.len()).sum()
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

/// A random UUID, version 4.
fn uuid(random: &mut ChaCha8Rng) -> String {
    let bits = random.random::<u128>() & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
