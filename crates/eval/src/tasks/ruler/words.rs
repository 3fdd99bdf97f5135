//! Word counts: the most common words of a list, and of a coded text.

use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::letters;
use crate::EvalError;
use crate::tasks::corpus::Corpus;
use crate::tasks::filler::room;
use crate::tasks::prompt::{Prompt, Watch};

/// Number of common words, and how often common and other words occur in the list.
const COMMON: usize = 10;
const COMMON_TIMES: usize = 30;
const OTHER_TIMES: usize = 3;

/// A numbered list in which ten words occur thirty times and all others three times.
pub(super) fn common(
    corpus: &Corpus,
    context_tokens: usize,
    random: &mut ChaCha8Rng,
    watch: &mut Watch<'_>,
) -> Result<Prompt, EvalError> {
    let wording = &corpus.wording.common_words;
    let count = COMMON.to_string();
    let frame = corpus.frame(&wording.before, &wording.ask.fill(&[("count", &count)]), watch)?;
    let room = room(context_tokens, frame.head.len() + frame.tail.len(), "cwe")?;
    let most = room / 12 + COMMON;
    let words = corpus.distinct_words(random, most);
    let (common, others) = words.split_at(COMMON);
    // In short contexts the common words occur less often, but always more often than the others.
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

/// Coded words with counts proportional to rank⁻² (a zeta distribution); the first rank is dots.
pub(super) fn coded(
    corpus: &Corpus,
    context_tokens: usize,
    random: &mut ChaCha8Rng,
    watch: &mut Watch<'_>,
) -> Result<Prompt, EvalError> {
    const ALPHA: i32 = 2;
    const ZETA_OF_2: f64 = std::f64::consts::PI * std::f64::consts::PI / 6.0;
    let wording = &corpus.wording.coded_words;
    let frame = corpus.frame(&wording.before, &wording.ask, watch)?;
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
