//! The thirteen tasks of RULER for any text. Hsieh et al. 2024, arXiv:2404.06654.
//!
//! Tasks and scores are RULER's with these differences. Keys are two plain words of the text. `vt` and `cwe` have no
//! worked example. The words of `cwe` are from the text, joined if it has too few. Without the user's own questions,
//! `qa` asks for facts in one (`qa_1`) or two (`qa_2`) of many paragraphs; each paragraph states another fact of the
//! same form.

mod needles;
mod questions;
mod words;

use std::fmt;
use std::str::FromStr;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::corpus::Corpus;
use super::prompt::{Cost, Prompt, QuestionPlace, Reader, Watch};
use super::score::{match_all, match_any};
use crate::EvalError;
use crate::record::RulerSample;

/// A task of RULER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RulerTask {
    /// One number in repeated sentences.
    NiahSingle1,
    /// One number in text.
    NiahSingle2,
    /// One UUID in text.
    NiahSingle3,
    /// One number in text with four keys.
    NiahMultikey1,
    /// One number in a context of only numbers.
    NiahMultikey2,
    /// The UUID of a UUID key in a context of only UUIDs.
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
    /// A fact in one of many documents.
    Qa1,
    /// A fact that needs two documents.
    Qa2,
}

use RulerTask::{
    Cwe, Fwe, NiahMultikey1, NiahMultikey2, NiahMultikey3, NiahMultiquery, NiahMultivalue, NiahSingle1, NiahSingle2,
    NiahSingle3, Qa1, Qa2, Vt,
};

/// One prompt of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RulerTest {
    pub(crate) task: RulerTask,
    pub(crate) context_tokens: usize,
    pub(crate) seed: u64,
    pub(crate) asked: QuestionPlace,
}

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

    /// A prompt of at most `context_tokens` tokens, fixed by the seed. `watch` may stop the model's chat template.
    pub(crate) fn prompt(
        self,
        corpus: &Corpus,
        context_tokens: usize,
        seed: u64,
        watch: &mut Watch<'_>,
    ) -> Result<Prompt, EvalError> {
        let place = (context_tokens as u64) << 8 | self as u64;
        let mut random = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place);
        let random = &mut random;
        match self {
            Vt => needles::chain(corpus, context_tokens, random, watch),
            Cwe => words::common(corpus, context_tokens, random, watch),
            Fwe => words::coded(corpus, context_tokens, random, watch),
            Qa1 | Qa2 if corpus.given.is_empty() => {
                questions::stated(corpus, context_tokens, self == Qa2, random, watch)
            }
            Qa1 | Qa2 => questions::given(corpus, context_tokens, self == Qa2, seed, random, watch),
            _ => needles::needles(self, corpus, context_tokens, random, watch),
        }
    }
}

impl RulerTest {
    /// Reads the prompt and scores the answer.
    pub(crate) fn run(
        &self,
        corpus: &Corpus,
        reader: &mut Reader,
        watch: &mut Watch<'_>,
    ) -> Result<(RulerSample, Cost), EvalError> {
        let prompt = self.task.prompt(corpus, self.context_tokens, self.seed, watch)?;
        let reply = reader.reply(&prompt, self.asked, watch)?;
        let answered = reply.answers.join("\n");
        let sample = RulerSample {
            task: self.task.name().to_owned(),
            context_tokens: self.context_tokens,
            prompt_tokens: prompt.tokens(),
            seed: self.seed,
            score: self.task.score(&answered, &prompt.expected),
            expected: prompt.expected,
            answered,
        };
        Ok((sample, reply.cost))
    }
}

fn letters(random: &mut ChaCha8Rng, count: usize) -> String {
    (0..count)
        .map(|_| char::from(random.random_range(b'a'..=b'z')))
        .collect()
}

impl fmt::Display for RulerTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl RulerTask {
    /// The names of all tasks, as a list for messages.
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
