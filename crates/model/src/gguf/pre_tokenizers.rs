//! Pre-tokenizers by their names in GGUF files: they split texts into words before bytes are merged.
//!
//! The patterns come from the tokenizer.json of the models with each name, or else from llama.cpp.

use super::word_patterns::*;
use crate::tokenizer::{Behavior, Cut, Decoding, Normalization, Pattern, SPACE_PIECE, is_punctuation};

/// A pre-tokenizer.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    /// The splitting steps, in order. Each splits the pieces of the one before.
    cuts: &'static [Step],
    /// Composes characters first (NFC).
    composes: bool,
    /// True if words that are tokens stay whole, independent of the merges.
    pub(super) ignores_merges: bool,
    pub(super) bos: Bos,
    pub(super) spelling: Spelling,
}

/// Which texts begin with BOS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bos {
    /// Begins texts of files that request the token.
    Asked,
    /// Begins texts of all files, unless a file refuses the token.
    Usual,
    /// Begins all texts, because some files of the model wrongly disable the token.
    Always,
}

/// The spelling of a text in a vocabulary's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Bytes as printable characters.
    Bytes,
    /// Characters unchanged, `▁` for spaces, tokens `<0xXX>` for bytes of characters without a token.
    Pieces,
    /// Words unchanged; text between them is dropped.
    Words,
}

/// A splitting step. Its matches, and the text between them, become pieces.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Matches(&'static str),
    Digits,
    NumberRuns,
    Punctuation,
    PunctuationRuns,
    /// Numbers, split into groups of three characters from their ends. The flag tells whether a shorter first group
    /// is a match.
    GroupsOfThree(&'static str, bool),
    /// Maps bytes to characters. It is added as the last step if missing.
    Bytes,
}

use Step::{Digits, GroupsOfThree, Matches, NumberRuns, Punctuation, PunctuationRuns};

const fn known(names: &'static [&'static str], cuts: &'static [Step]) -> PreTokenizer {
    PreTokenizer {
        names,
        cuts,
        composes: false,
        ignores_merges: false,
        bos: Bos::Asked,
        spelling: Spelling::Bytes,
    }
}

impl PreTokenizer {
    const fn composing(mut self) -> PreTokenizer {
        self.composes = true;
        self
    }

    const fn ignoring_merges(mut self) -> PreTokenizer {
        self.ignores_merges = true;
        self
    }

    const fn adding_bos(mut self, bos: Bos) -> PreTokenizer {
        self.bos = bos;
        self
    }

    const fn spelling(mut self, spelling: Spelling) -> PreTokenizer {
        self.spelling = spelling;
        self
    }
}

static KNOWN: &[PreTokenizer] = &[
    known(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
        ],
        &[Matches(GPT2)],
    ),
    // Relatives of GPT-NeoX.
    known(&["mpt", "olmo", "modern-bert"], &[Matches(GPT2)]).composing(),
    known(
        &[
            "smollm",
            "starcoder",
            "refact",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[Digits, Matches(GPT2)],
    ),
    known(&["command-r"], &[Digits, Matches(GPT2)]).composing(),
    known(
        &["tiny_aya", "cohere2moe"],
        &[
            GroupsOfThree(DIGITS_AT_END_OF_WORD, true),
            Matches(BY_CASE_WITH_ENDINGS),
        ],
    )
    .composing(),
    known(
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[Matches(DIGITS_BY_3)],
    )
    .ignoring_merges()
    .adding_bos(Bos::Usual),
    known(&["glm4", "glm5"], &[Matches(DIGITS_BY_3)]).ignoring_merges(),
    known(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[Matches(DIGITS_BY_3)]),
    known(&["minicpm5"], &[Matches(r"\p{N}{1,3}"), Matches(ALL_DIGITS)]).ignoring_merges(),
    known(&["jais-2"], &[Matches(SPACES_BY_POWERS)]),
    known(
        &["qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2"],
        &[Matches(DIGITS_BY_1)],
    )
    .composing(),
    known(
        &[
            "stablelm2",
            "kormo",
            "hunyuan",
            "solar-open",
            "grok-2",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
        ],
        &[Matches(DIGITS_BY_1)],
    ),
    known(&["laguna"], &[Matches(r"[^\n]+|[\n]+"), Matches(DIGITS_BY_1)]),
    known(&["ufakzeka"], &[Matches(WITHOUT_ENDINGS)]),
    known(&["seed-coder"], &[Matches(SIGNS_WITHOUT_BREAKS)]),
    known(&["exaone-moe"], &[Matches(JOINED_WORDS)]),
    known(&["qwen35"], &[Matches(WITH_MARKS)]).composing(),
    known(&["tekken"], &[Matches(BY_CASE)])
        .ignoring_merges()
        .adding_bos(Bos::Usual),
    known(
        &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        &[Matches(BY_CASE_WITH_ENDINGS)],
    ),
    known(&["granite-embed-multi-97m"], &[Matches(BY_CASE_WITH_ENDINGS)]).ignoring_merges(),
    known(
        &["youtu"],
        &[Matches(EAST_ASIAN_RUNS), Matches(BY_CASE_WITH_ENDINGS_AND_1_DIGIT)],
    )
    .ignoring_merges(),
    known(&["kimi-k2"], &[Matches(BY_CASE_WITHOUT_HAN)]),
    known(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[
            Matches(r"\p{N}{1,3}"),
            Matches(CHINESE_AND_JAPANESE),
            Matches(SIGNS_BEFORE_LETTERS),
        ],
    ),
    known(
        &["spark2_5"],
        &[
            Matches(r"\p{N}{1,3}"),
            Matches(CHINESE_AND_JAPANESE),
            Matches(SIGNS_AND_SINGLE_BREAKS),
            Digits,
        ],
    ),
    known(
        &["afmoe"],
        &[
            GroupsOfThree(r"\p{N}+", true),
            Matches(ASIAN_SCRIPTS),
            Matches(SIGNS_BEFORE_LETTERS),
        ],
    ),
    known(&["superbpe"], &[Matches(r"\p{N}+"), GroupsOfThree(r"\d+", false)]),
    known(
        &["deepseek-coder"],
        &[
            Matches(r"[\r\n]"),
            Matches(r"\s?\p{L}+"),
            Matches(r"\s?\p{P}+"),
            Matches(CHINESE_AND_KOREAN),
            Digits,
        ],
    ),
    known(
        &["deepseek-llm"],
        &[
            Matches(r"[\r\n]"),
            Matches(CASED_LETTERS),
            Matches(ASCII_AND_WIDE_SIGNS),
            Matches(r"\s+$"),
            Matches(CHINESE_AND_KOREAN),
            Digits,
        ],
    ),
    // Numbers are matched in the characters that represent bytes: `²` is one of them.
    known(
        &["falcon"],
        &[
            PunctuationRuns,
            Matches(GPT2),
            Step::Bytes,
            NumberRuns,
            Matches("[0-9][0-9][0-9]"),
        ],
    ),
    known(&["bloom", "poro-chat", "gpt3-finnish"], &[Matches(BETWEEN_STOPS)]),
    known(&["viking"], &[Matches(BETWEEN_STOPS), Digits]),
    known(
        &["chameleon"],
        &[
            Matches("<sentinel:[0-9]+>"),
            Matches("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
            Matches(r"([\t\n]|    |  )"),
            Digits,
            Punctuation,
            Matches(GPT2),
        ],
    )
    .adding_bos(Bos::Usual),
    known(&["gemma4", "granite-embed-multi-311m"], &[])
        .adding_bos(Bos::Always)
        .spelling(Spelling::Pieces),
    known(&["sarvam-moe"], &[]).spelling(Spelling::Pieces),
    known(&["whitespace"], &[]).spelling(Spelling::Words),
    // Files older than the name's key, split as in llama.cpp.
    known(
        &["default", ""],
        &[
            Matches(r"[\p{P}\$\+<=>\^~\|]+"),
            Matches(GPT2_WITHOUT_SPACES),
            Matches(r"\p{N}+"),
            Matches("[0-9][0-9][0-9]"),
        ],
    ),
];

/// The first name of each pre-tokenizer that spells bytes as characters.
pub(super) fn known_names() -> impl Iterator<Item = &'static str> {
    let of_bytes = KNOWN.iter().filter(|known| known.spelling == Spelling::Bytes);
    of_bytes.filter_map(|known| known.names.first().copied())
}

impl PreTokenizer {
    /// The pre-tokenizer with this name.
    pub(super) fn named(name: &str) -> Option<&'static PreTokenizer> {
        KNOWN.iter().find(|known| known.names.contains(&name))
    }

    /// The changes of a text before it is split.
    pub(super) fn normalizations(&self) -> Vec<Normalization> {
        let composed = self.composes.then_some(Normalization::Composed);
        let spaced = Normalization::Replace(Pattern::Text(" ".to_owned()), SPACE_PIECE.to_owned());
        let spaced = (self.spelling == Spelling::Pieces).then_some(spaced);
        composed.into_iter().chain(spaced).collect()
    }

    /// The splitting steps, in order, with bytes as characters if tokens spell these.
    pub(super) fn cuts(&self) -> Result<Vec<Cut>, String> {
        let mut cuts = self.cuts.iter().map(Step::cut).collect::<Result<Vec<Cut>, String>>()?;
        match self.spelling {
            Spelling::Bytes if self.cuts.contains(&Step::Bytes) => {}
            Spelling::Bytes => cuts.push(Cut::Bytes),
            Spelling::Pieces => {}
            Spelling::Words => cuts.push(Cut::split(Pattern::Character(char::is_whitespace), Behavior::Removed)),
        }
        Ok(cuts)
    }

    /// The steps from tokens back to a text.
    pub(super) fn decodings(&self) -> Vec<Decoding> {
        match self.spelling {
            Spelling::Bytes => vec![Decoding::Bytes],
            Spelling::Pieces => Decoding::for_pieces(),
            Spelling::Words => vec![Decoding::Fuse],
        }
    }
}

impl Step {
    fn cut(&self) -> Result<Cut, String> {
        Ok(match self {
            Matches(pattern) => Cut::isolated(Pattern::expression(pattern)?),
            Digits => Cut::isolated(Pattern::Character(char::is_numeric)),
            NumberRuns => Cut::split(Pattern::Character(char::is_numeric), Behavior::Contiguous),
            Punctuation => Cut::isolated(Pattern::Character(is_punctuation)),
            PunctuationRuns => Cut::split(Pattern::Character(is_punctuation), Behavior::Contiguous),
            GroupsOfThree(numbers, with_shorter) => Cut::isolated(Pattern::groups_of_three(numbers, *with_shorter)?),
            Step::Bytes => Cut::Bytes,
        })
    }
}
