//! Needles in a haystack: facts at even depths in a long text, with several kinds of questions.

use std::ops::Range;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::code::Module;
use super::corpus::Corpus;
use super::filler::{Fact, Filler, room};
use super::prompt::{Cost, Prompt, QuestionPlace, Reader, Watch};
use super::score::{exact_values, is_name};
use super::wording::{Ask, fill};
use crate::EvalError;
use crate::record::{AskPlace, NeedleKind, NeedleSample};

/// Values of one key, and keys of one question.
const SEVERAL: usize = 3;

/// Tokens of an answer with one value.
const ANSWER_TOKENS: usize = 24;

/// Documents of one kind, length and seed, with a question for each depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeedleTest {
    pub(crate) kind: NeedleKind,
    pub(crate) place: AskPlace,
    pub(crate) context_tokens: usize,
    /// Facts are at 1/(n+1) … n/(n+1) of the document.
    pub(crate) depths: usize,
    pub(crate) seed: u64,
}

/// One fact, or several with the same key.
struct Needle {
    key: String,
    values: Vec<String>,
    depth_index: usize,
    /// Token at which the first fact begins.
    start: usize,
    /// The source file that states the fact, in a package.
    module: Option<Module>,
}

/// A question in the document as text, and the text after it.
struct Passage {
    question: String,
    answer: String,
    behind: String,
}

struct Haystack {
    document: Vec<u32>,
    needles: Vec<Needle>,
    /// Ranges that no question may cut: the facts of a text, the files of a package.
    uncut: Vec<Range<usize>>,
}

impl NeedleKind {
    /// True if the kind supports the place. A question in the document and a second turn ask for one value, and a
    /// second turn needs another fact.
    pub fn can_be_asked(self, place: AskPlace) -> bool {
        match place {
            AskPlace::End | AskPlace::Late => true,
            AskPlace::Middle => matches!(self, Self::Single | Self::MultiKey | Self::CrossFile),
            AskPlace::SecondTurn => self == Self::MultiKey,
        }
    }
}

impl NeedleTest {
    /// Reads the documents and asks about every needle.
    pub(crate) fn run(
        &self,
        corpus: &Corpus,
        reader: &mut Reader,
        watch: &mut Watch<'_>,
    ) -> Result<(Vec<NeedleSample>, Cost), EvalError> {
        let mut random = self.random(1);
        let (mut samples, mut cost) = (Vec::new(), Cost::default());
        let share = 1.0 / self.depths as f64;
        for haystack in self.haystacks(corpus, watch)? {
            if self.place == AskPlace::Middle {
                let (found, spent) = self.in_middle(corpus, &haystack, reader, watch)?;
                samples.extend(found);
                cost.add(&spent);
                continue;
            }
            for number in 0..haystack.needles.len() {
                let done = samples.len() as f64;
                let watch = &mut |part: f64| watch((done + part) * share);
                let asked = self.asked(&haystack, number, &mut random);
                let prompt = self.prompt(corpus, &haystack, &asked, watch)?;
                let mode = match self.place {
                    AskPlace::Late => QuestionPlace::Late,
                    _ => QuestionPlace::WithDocument,
                };
                let reply = reader.reply(&prompt, mode, watch)?;
                cost.add(&reply.cost);
                let answered = match self.place {
                    AskPlace::SecondTurn => &reply.answers[1..],
                    _ => &reply.answers[..],
                };
                samples.push(self.sample(&haystack, &asked, answered, prompt.tokens()));
            }
        }
        // The deepest single needles come first, because they share most of the text.
        samples.sort_by_key(|sample| sample.depth_index);
        Ok((samples, cost))
    }

    fn random(&self, stream: u64) -> ChaCha8Rng {
        let place = (self.context_tokens as u64) << 16 | (self.kind as u64) << 8 | stream;
        ChaCha8Rng::seed_from_u64(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place)
    }

    /// The needles of one question: the needle at this depth, and further ones for multi-query.
    fn asked<'h>(&self, haystack: &'h Haystack, number: usize, random: &mut ChaCha8Rng) -> Vec<&'h Needle> {
        let others: Vec<&Needle> = (0..haystack.needles.len())
            .filter(|other| *other != number)
            .map(|other| &haystack.needles[other])
            .collect();
        let needle = &haystack.needles[number];
        let more = match (self.kind, self.place) {
            (NeedleKind::MultiQuery, _) => SEVERAL - 1,
            (_, AskPlace::SecondTurn) => 1,
            _ => 0,
        };
        let more = others.choose_multiple(random, more).copied();
        match self.place {
            // The first turn only distracts; the second question counts.
            AskPlace::SecondTurn => more.chain([needle]).collect(),
            _ => std::iter::once(needle).chain(more).collect(),
        }
    }

    fn prompt(
        &self,
        corpus: &Corpus,
        haystack: &Haystack,
        asked: &[&Needle],
        watch: &mut Watch<'_>,
    ) -> Result<Prompt, EvalError> {
        if let Some(module) = &asked[0].module {
            let question = corpus.encode(&module.use_until_constructor())?;
            let document = haystack.document.clone();
            return Ok(ending_with_its_line(corpus.prompt(
                document,
                vec![question],
                Vec::new(),
                ANSWER_TOKENS,
            )));
        }
        let wording = &corpus.wording.niah;
        let form = match self.kind {
            NeedleKind::MultiValue => &wording.values,
            _ => &wording.one,
        };
        let asks: Vec<Ask> = match (&wording.keys, self.kind) {
            (Some(form), NeedleKind::MultiQuery) => {
                let keys: Vec<&str> = asked.iter().map(|needle| needle.key.as_str()).collect();
                vec![filled(form, &keys.join(", "))]
            }
            _ => asked.iter().map(|needle| filled(form, &needle.key)).collect(),
        };
        let mut questions = vec![corpus.frame(&wording.before, &asks[0], watch)?.tail];
        for ask in &asks[1..] {
            questions.push(corpus.follow_up(ask, watch)?);
        }
        let values = match self.kind {
            NeedleKind::MultiValue => SEVERAL,
            NeedleKind::MultiQuery if asks.len() == 1 => SEVERAL,
            _ => 1,
        };
        let document = haystack.document.clone();
        Ok(ending_with_its_line(corpus.prompt(
            document,
            questions,
            Vec::new(),
            ANSWER_TOKENS * values,
        )))
    }

    fn sample(&self, haystack: &Haystack, asked: &[&Needle], answers: &[String], end: usize) -> NeedleSample {
        let asked = match self.place {
            AskPlace::SecondTurn => &asked[1..],
            _ => asked,
        };
        let expected: Vec<String> = asked.iter().flat_map(|needle| needle.values.clone()).collect();
        // If each key has its own question, only the last question's answer counts.
        let correct = if self.kind == NeedleKind::CrossFile {
            answers.iter().filter(|answer| is_name(answer, &expected[0])).count()
        } else if answers.len() == asked.len() {
            let pairs = answers.iter().zip(asked);
            pairs.map(|(answer, needle)| exact_values(answer, &needle.values)).sum()
        } else {
            exact_values(&answers.join("\n"), &expected)
        };
        let needle = asked[0];
        NeedleSample {
            kind: self.kind,
            place: self.place,
            context_tokens: self.context_tokens,
            depth_index: needle.depth_index,
            depth: needle.start as f64 / haystack.document.len() as f64,
            distance_tokens: end - needle.start,
            seed: self.seed,
            names: asked.iter().map(|needle| needle.key.clone()).collect(),
            expected,
            answered: answers.join("\n"),
            correct,
        }
    }

    /// One document; for single needles, one for each depth, deepest first.
    fn haystacks(&self, corpus: &Corpus, watch: &mut Watch<'_>) -> Result<Vec<Haystack>, EvalError> {
        let mut random = self.random(0);
        if self.kind == NeedleKind::CrossFile {
            return Ok(vec![self.package(corpus, &mut random)?]);
        }
        let keys = corpus.keys(&mut random, self.depths)?;
        let values = if self.kind == NeedleKind::MultiValue {
            SEVERAL
        } else {
            1
        };
        let needles: Vec<(usize, String, Vec<String>)> = keys
            .into_iter()
            .enumerate()
            .map(|(index, key)| {
                let values = (0..values).map(|_| corpus.number(&mut random)).collect();
                (index, key, values)
            })
            .collect();
        let start = random.random_range(0..corpus.hay.len());
        if self.kind != NeedleKind::Single {
            return Ok(vec![self.haystack(corpus, start, &needles, watch)?]);
        }
        let each = needles.iter().rev();
        each.map(|needle| self.haystack(corpus, start, std::slice::from_ref(needle), watch))
            .collect()
    }

    fn haystack(
        &self,
        corpus: &Corpus,
        start: usize,
        needles: &[(usize, String, Vec<String>)],
        watch: &mut Watch<'_>,
    ) -> Result<Haystack, EvalError> {
        let wording = &corpus.wording.niah;
        let mut facts = Vec::new();
        for (index, key, values) in needles {
            let depth = (index + 1) as f64 / (self.depths + 1) as f64;
            for (number, value) in values.iter().enumerate() {
                let fact = fill(&wording.fact, &[("key", key), ("value", value)]);
                let fact = fill(&fact, &[("noun", "number"), ("nouns", "numbers")]);
                facts.push(Fact {
                    // Further values are spread evenly from the first value to the end of the document.
                    depth: depth + (1.0 - depth) * number as f64 / values.len() as f64,
                    tokens: corpus.encode(&format!("\n{fact}\n"))?,
                });
            }
        }
        let before = fill(&wording.before, &[("noun", "number"), ("nouns", "numbers")]);
        let head = corpus.frame(&before, &filled(&wording.one, ""), watch)?.head;
        let taken = head.len() + facts.iter().map(|fact| fact.tokens.len()).sum::<usize>();
        let what = format!("a document with {} facts", facts.len());
        let filler = Filler::text(&corpus.hay, start, room(self.context_tokens, taken, &what)?);
        let (document, starts) = filler.assemble(&head, &facts);
        // The first value of each needle comes first.
        let firsts = (0..facts.len()).step_by(needles[0].2.len());
        let needles = needles.iter().zip(firsts).map(|((index, key, values), first)| Needle {
            key: key.clone(),
            values: values.clone(),
            depth_index: *index,
            start: starts[first],
            module: None,
        });
        let ends = starts.iter().zip(&facts).map(|(start, fact)| start + fact.tokens.len());
        Ok(Haystack {
            needles: needles.collect(),
            uncut: starts.iter().zip(ends).map(|(start, end)| *start..end).collect(),
            document,
        })
    }

    /// As many source files as fit in the context. The questions ask about files at even depths.
    fn package(&self, corpus: &Corpus, random: &mut ChaCha8Rng) -> Result<Haystack, EvalError> {
        /// Every file has more tokens than this, so one module per this many tokens suffices.
        const FEWEST_FILE_TOKENS: usize = 64;
        let most = self.depths + self.context_tokens / FEWEST_FILE_TOKENS;
        let mut modules = Module::draw(corpus, random, most)?.into_iter();
        let asked: Vec<Module> = modules.by_ref().take(self.depths).collect();
        let mut document = corpus.tokenizer()?.encode("", true)?;
        let encoded: Result<Vec<Vec<u32>>, EvalError> = asked.iter().map(|one| corpus.encode(&one.file())).collect();
        let encoded = encoded?;
        let taken = document.len() + encoded.iter().map(Vec::len).sum::<usize>();
        let what = format!("a package with {} files", asked.len());
        let others = Filler::lines(room(self.context_tokens, taken, &what)?, |_| {
            modules
                .next()
                .map_or(Ok(Vec::new()), |module| corpus.encode(&module.file()))
        })?;
        let cuts = others.cuts.as_deref().unwrap_or_default();
        let mut others = cuts.windows(2).map(|ends| &others.tokens[ends[0]..ends[1]]);
        let (other_files, mut needles, mut uncut) = (others.len(), Vec::new(), Vec::new());
        let mut push = |document: &mut Vec<u32>, file: &[u32]| {
            uncut.push(document.len()..document.len() + file.len());
            document.extend(file);
        };
        for (depth_index, (module, file)) in asked.into_iter().zip(&encoded).enumerate() {
            let place = (depth_index + 1) * (other_files + self.depths) / (self.depths + 1);
            let behind = other_files - place.saturating_sub(depth_index).min(other_files);
            while others.len() > behind
                && let Some(other) = others.next()
            {
                push(&mut document, other);
            }
            needles.push(Needle {
                key: module.name.clone(),
                values: vec![module.constructor.clone()],
                depth_index,
                start: document.len(),
                module: Some(module),
            });
            push(&mut document, file);
        }
        others.for_each(|other| push(&mut document, other));
        Ok(Haystack {
            document,
            needles,
            uncut,
        })
    }

    /// The text of a needle's question in the document.
    fn passage(corpus: &Corpus, needle: &Needle) -> Passage {
        match &needle.module {
            Some(module) => Passage {
                question: module.use_until_constructor(),
                answer: needle.values[0].clone(),
                behind: module.use_after_constructor(),
            },
            None => {
                let ask = filled(&corpus.wording.niah.one, &needle.key);
                Passage {
                    question: format!("\n{}{}", ask.question, ask.lead),
                    answer: format!(" {}", needle.values[0]),
                    behind: ".\n".to_owned(),
                }
            }
        }
    }

    /// Places questions and answers halfway between each needle and the document's end; the text continues after
    /// them. An answer counts if each of its tokens is the most likely one at its position.
    fn in_middle(
        &self,
        corpus: &Corpus,
        haystack: &Haystack,
        reader: &mut Reader,
        watch: &mut Watch<'_>,
    ) -> Result<(Vec<NeedleSample>, Cost), EvalError> {
        let document = &haystack.document;
        // For each needle: the question's position, the question, and the answer's tokens.
        let mut asked = Vec::new();
        for needle in &haystack.needles {
            let passage = Self::passage(corpus, needle);
            let question = corpus.encode(&passage.question)?;
            let whole = corpus.encode(&(passage.question + &passage.answer))?;
            // A token that ends the question and begins the answer belongs to the answer.
            let shared = question.iter().zip(&whole).take_while(|(a, b)| a == b).count();
            let behind = corpus.encode(&passage.behind)?;
            asked.push((
                usize::midpoint(needle.start, document.len()),
                whole,
                shared,
                behind,
                needle,
            ));
        }
        asked.sort_by_key(|(place, ..)| *place);
        let (mut tokens, mut taken) = (Vec::new(), 0);
        let mut answers: Vec<Range<usize>> = Vec::new();
        // Close questions follow each other; no question starts inside another needle or inside a file.
        for (place, whole, shared, behind, _) in &asked {
            let place = uncutting(*place, haystack).max(taken);
            tokens.extend(&document[taken..place]);
            taken = place;
            answers.push(tokens.len() + shared..tokens.len() + whole.len());
            tokens.extend(whole);
            tokens.extend(behind);
        }
        tokens.extend(&document[taken..]);
        let wanted: Vec<Range<usize>> = answers.iter().map(|answer| answer.start - 1..answer.end - 1).collect();
        let (likeliest, cost) = reader.likeliest(&tokens, &wanted, watch)?;
        let mut likeliest = likeliest.into_iter();
        let mut samples = Vec::new();
        for ((.., needle), answer) in asked.iter().zip(&answers) {
            let found: Vec<u32> = likeliest.by_ref().take(answer.len()).collect();
            let right = found == tokens[answer.clone()];
            let text = corpus.tokenizer()?.decode(&found)?;
            samples.push(NeedleSample {
                correct: usize::from(right),
                answered: text.trim().to_owned(),
                distance_tokens: answer.start - needle.start,
                ..self.sample(haystack, &[needle], &[], document.len().max(answer.start))
            });
        }
        Ok((samples, cost))
    }
}

/// `place`, or the first token after the fact or file at that position.
fn uncutting(place: usize, haystack: &Haystack) -> usize {
    let holds = |range: &&Range<usize>| range.contains(&place);
    haystack.uncut.iter().find(holds).map_or(place, |range| range.end)
}

/// The prompt. Its answer ends with its line if the wording names no other end.
fn ending_with_its_line(mut prompt: Prompt) -> Prompt {
    if prompt.stops.is_empty() {
        prompt.stops.push("\n".to_owned());
    }
    prompt
}

fn filled(ask: &Ask, keys: &str) -> Ask {
    ask.fill(&[("keys", keys), ("noun", "number"), ("nouns", "numbers")])
}
