//! Words as they are counted: without endings, and without those that every text has.

use bm25::Tokenizer;
use rust_stemmers::{Algorithm, Stemmer};
use unicode_segmentation::UnicodeSegmentation;
use whichlang::Lang;

/// Bytes of a text by which its language is told.
const SAMPLE_BYTES: usize = 4000;

/// Takes the words of texts in one language.
///
/// Signs of Chinese and Japanese, which stand without spaces, are taken in pairs.
pub(crate) struct Words {
    stemmer: Option<Stemmer>,
    stop_words: &'static [&'static str],
}

impl Words {
    /// Words of the language that a text is written in.
    pub(crate) fn of_language(text: &str) -> Self {
        // The middle says more than a title page.
        let from = text.len().saturating_sub(SAMPLE_BYTES) / 2;
        let mut bounds = [from, (from + SAMPLE_BYTES).min(text.len())];
        for bound in &mut bounds {
            *bound = text.floor_char_boundary(*bound);
        }
        let language = whichlang::detect_language(&text[bounds[0]..bounds[1]]);
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
                // The first of a row stands for itself until it has a neighbour.
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

/// A sign of a script that is written without spaces: those for words of Chinese and Japanese, and the Japanese syllables.
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
