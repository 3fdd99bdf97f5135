//! The words for a ranking, without endings and without common words.

use bm25::Tokenizer;
use rust_stemmers::{Algorithm, Stemmer};
use unicode_segmentation::UnicodeSegmentation;
use whichlang::Lang;

/// Number of samples to detect a text's language, and the bytes of each. Several samples outvote tables and code.
const SAMPLES: usize = 15;
const SAMPLE_BYTES: usize = 800;

/// Extracts the words of texts in one language.
///
/// Chinese and Japanese characters have no spaces between words, so they count in pairs.
pub(crate) struct Words {
    stemmer: Option<Stemmer>,
    stop_words: &'static [&'static str],
}

impl Words {
    /// Words of a text's language.
    pub(crate) fn of_language(text: &str) -> Self {
        let language = language(text);
        let (algorithm, code) = match language {
            Lang::Ara => (Some(Algorithm::Arabic), "ar"),
            Lang::Deu => (Some(Algorithm::German), "de"),
            Lang::Eng => (Some(Algorithm::English), "en"),
            Lang::Fra => (Some(Algorithm::French), "fr"),
            Lang::Ita => (Some(Algorithm::Italian), "it"),
            Lang::Nld => (Some(Algorithm::Dutch), "nl"),
            Lang::Por => (Some(Algorithm::Portuguese), "pt"),
            Lang::Rus => (Some(Algorithm::Russian), "ru"),
            Lang::Spa => (Some(Algorithm::Spanish), "es"),
            Lang::Swe => (Some(Algorithm::Swedish), "sv"),
            Lang::Tur => (Some(Algorithm::Turkish), "tr"),
            Lang::Cmn | Lang::Hin | Lang::Jpn | Lang::Kor | Lang::Vie => (None, ""),
        };
        Self {
            stemmer: algorithm.map(Stemmer::create),
            stop_words: stop_words::lookup(code).unwrap_or_default(),
        }
    }

    fn stem(&self, word: &str) -> String {
        match &self.stemmer {
            Some(stemmer) => stemmer.stem(word).into_owned(),
            None => word.to_owned(),
        }
    }
}

impl Tokenizer for Words {
    fn tokenize(&self, text: &str) -> Vec<String> {
        let lower = text.to_lowercase();
        let mut words = Vec::new();
        let mut before: Option<&str> = None;
        for word in lower.unicode_words() {
            if word.chars().all(is_ideograph) {
                // The first character of a row counts alone until it has a neighbour.
                if let Some(first) = before {
                    words.push(format!("{first}{word}"));
                }
                words.push(word.to_owned());
                before = Some(word);
                continue;
            }
            before = None;
            if !self.stop_words.contains(&word) {
                words.push(self.stem(word));
            }
        }
        words
    }
}

/// The language of most samples of a text; among equals, the first.
fn language(text: &str) -> Lang {
    let step = (text.len() / SAMPLES).max(SAMPLE_BYTES);
    let samples = (0..text.len().max(1)).step_by(step).map(|start| {
        let bounds = [start, start + SAMPLE_BYTES].map(|bound| text.floor_char_boundary(bound));
        whichlang::detect_language(&text[bounds[0]..bounds[1]])
    });
    let found: Vec<Lang> = samples.collect();
    let count = |language: &Lang| found.iter().filter(|other| *other == language).count();
    let best = found.iter().map(count).max().unwrap_or(0);
    found
        .iter()
        .copied()
        .find(|language| count(language) == best)
        .unwrap_or(Lang::Eng)
}

/// True for characters of scripts without spaces: Chinese and Japanese characters, and Japanese syllables.
fn is_ideograph(sign: char) -> bool {
    matches!(sign, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{323af}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_and_common_words_do_not_count() {
        let text = "The maintainers of the packages have uploaded them to the archive, and they were tested there.";
        let words = Words::of_language(text);
        assert_eq!(
            words.tokenize("Who uploaded the package 4.2?"),
            ["upload", "packag", "4.2"]
        );
    }

    #[test]
    fn words_are_those_of_the_language() {
        let text = "Die Häuser der Stadt wurden im letzten Jahr verkauft, und niemand weiß, wer sie nun besitzt.";
        let words = Words::of_language(text);
        assert_eq!(words.tokenize("kauften die Häuser"), words.tokenize("kaufte Häusern"));
    }

    #[test]
    fn signs_without_spaces_are_taken_in_pairs() {
        let words = Words::of_language("这本书说明了系统管理员怎样安装和维护软件包。");
        assert_eq!(words.tokenize("软件包"), ["软", "软件", "件", "件包", "包"]);
    }

    #[test]
    fn a_text_of_any_length_has_a_language() {
        for text in ["", "é", &"字".repeat(3000)] {
            Words::of_language(text);
        }
    }
}
