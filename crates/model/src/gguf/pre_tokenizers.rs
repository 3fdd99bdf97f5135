//! How texts are cut into words before bytes are merged, by the names GGUF files use.
//!
//! The patterns are those of the tokenizer.json of the models a name stands for.

use crate::tokenizer::{Cut, GPT2_WORDS, Normalization, Pattern};

/// A way of cutting.
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    cuts: Cuts,
    /// Composes characters first (NFC).
    composes: bool,
    /// Takes words that are tokens whole, whatever the merges say.
    pub(super) ignores_merges: bool,
    /// Texts begin with BOS where the file does not say.
    pub(super) adds_bos: bool,
}

enum Cuts {
    /// The cuts of GPT-2.
    Words,
    /// Each digit by itself, then the cuts of GPT-2.
    DigitsThenWords,
    /// Each pattern in turn cuts what the one before left; matches and what lies between them are words.
    Patterns(&'static [&'static str]),
}

const fn known(names: &'static [&'static str], cuts: Cuts) -> PreTokenizer {
    PreTokenizer {
        names,
        cuts,
        composes: false,
        ignores_merges: false,
        adds_bos: false,
    }
}

const WORDS_OF_3_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const WORDS_OF_1_DIGIT: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const WORDS_WITH_MARKS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const WORDS_BY_CASE: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const WORDS_BY_CASE_WITH_ENDINGS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-2's words, but spaces before a word stay with what lies between matches.
const OLDER_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

static KNOWN: &[PreTokenizer] = &[
    known(&["gpt-2", "phi-2", "olmo", "mpt", "jina-es", "jina-de"], Cuts::Words),
    known(
        &["smollm", "starcoder", "refact", "command-r", "codeshell"],
        Cuts::DigitsThenWords,
    ),
    PreTokenizer {
        ignores_merges: true,
        adds_bos: true,
        ..known(
            &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
            Cuts::Patterns(&[WORDS_OF_3_DIGITS]),
        )
    },
    known(&["dbrx", "smaug-bpe"], Cuts::Patterns(&[WORDS_OF_3_DIGITS])),
    PreTokenizer {
        composes: true,
        ..known(
            &["qwen2", "deepseek-r1-qwen", "megrez"],
            Cuts::Patterns(&[WORDS_OF_1_DIGIT]),
        )
    },
    PreTokenizer {
        composes: true,
        ..known(&["qwen35"], Cuts::Patterns(&[WORDS_WITH_MARKS]))
    },
    PreTokenizer {
        ignores_merges: true,
        adds_bos: true,
        ..known(&["tekken"], Cuts::Patterns(&[WORDS_BY_CASE]))
    },
    known(&["gpt-4o", "llama4"], Cuts::Patterns(&[WORDS_BY_CASE_WITH_ENDINGS])),
    known(
        &["deepseek-v3"],
        Cuts::Patterns(&[
            r"\p{N}{1,3}",
            r"[一-龥぀-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ]),
    ),
    known(
        &["deepseek-coder"],
        Cuts::Patterns(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"]),
    ),
    // Files from before the name was stored, cut as llama.cpp cuts them.
    known(
        &["default", ""],
        Cuts::Patterns(&[r"[\p{P}\$\+<=>\^~\|]+", OLDER_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"]),
    ),
];

impl PreTokenizer {
    /// The way of cutting of that name, or why there is none.
    pub(super) fn named(name: &str) -> Result<&'static PreTokenizer, String> {
        let found = KNOWN.iter().find(|known| known.names.contains(&name));
        found.ok_or_else(|| {
            let names: Vec<&str> = KNOWN.iter().map(|known| known.names[0]).collect();
            let names = names.join(", ");
            format!("pre-tokenizer {name:?} is not supported; supported are {names} and their relatives")
        })
    }

    /// The changes of a text before it is cut.
    pub(super) fn normalizations(&self) -> Vec<Normalization> {
        if self.composes {
            vec![Normalization::Composed]
        } else {
            Vec::new()
        }
    }

    /// The cuts, in their order, and bytes as characters behind them.
    pub(super) fn cuts(&self) -> Result<Vec<Cut>, String> {
        let digits = Cut::isolated(Pattern::Character(char::is_numeric));
        let isolated = |pattern: &str| Pattern::expression(pattern).map(Cut::isolated);
        let mut cuts = match &self.cuts {
            Cuts::Words => vec![isolated(GPT2_WORDS)?],
            Cuts::DigitsThenWords => vec![digits, isolated(GPT2_WORDS)?],
            Cuts::Patterns(patterns) => patterns
                .iter()
                .map(|pattern| isolated(pattern))
                .collect::<Result<_, _>>()?,
        };
        cuts.push(Cut::Bytes);
        Ok(cuts)
    }
}
