//! Tokens for filling in the middle of a text.

use crate::Tokenizer;

/// Tokens around the parts of a text with a gap (arXiv:2207.14255).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InfillTokens {
    /// Mark before the text in front of the gap.
    pub prefix: u32,
    /// Mark before the text after the gap.
    pub suffix: u32,
    /// Mark after both texts, where the model begins to write. Without this mark the text after the gap comes first,
    /// and the model continues the text before the gap.
    pub middle: Option<u32>,
    /// Mark before the name of a repository.
    pub repository: Option<u32>,
    /// Mark before the name of each file of a repository.
    pub file: Option<u32>,
    /// Pads sequences in training. An answer that reaches it has ended.
    pub padding: Option<u32>,
}

/// Spellings of the tokens in some models.
struct Texts {
    prefix: &'static str,
    suffix: &'static str,
    /// Empty if the model has none.
    middle: &'static str,
    repository: &'static str,
    file: &'static str,
    padding: &'static str,
}

/// A row for each spelling. A model uses the first row whose prefix, suffix and middle are all in its vocabulary.
const SPELLINGS: &[Texts] = &[
    // Qwen.
    Texts {
        prefix: "<|fim_prefix|>",
        suffix: "<|fim_suffix|>",
        middle: "<|fim_middle|>",
        repository: "<|repo_name|>",
        file: "<|file_sep|>",
        padding: "<|fim_pad|>",
    },
    // CodeGemma.
    Texts {
        prefix: "<|fim_prefix|>",
        suffix: "<|fim_suffix|>",
        middle: "<|fim_middle|>",
        repository: "",
        file: "<|file_separator|>",
        padding: "",
    },
    // StarCoder 2.
    Texts {
        prefix: "<fim_prefix>",
        suffix: "<fim_suffix>",
        middle: "<fim_middle>",
        repository: "<repo_name>",
        file: "<file_sep>",
        padding: "<fim_pad>",
    },
    // StarCoder, Granite.
    Texts {
        prefix: "<fim_prefix>",
        suffix: "<fim_suffix>",
        middle: "<fim_middle>",
        repository: "<reponame>",
        file: "",
        padding: "<fim_pad>",
    },
    // SantaCoder.
    Texts {
        prefix: "<fim-prefix>",
        suffix: "<fim-suffix>",
        middle: "<fim-middle>",
        repository: "<fim-repo>",
        file: "",
        padding: "<fim-pad>",
    },
    // In DeepSeek Coder `hole` stands between the two texts, and `end` after both.
    Texts {
        prefix: "<｜fim▁begin｜>",
        suffix: "<｜fim▁hole｜>",
        middle: "<｜fim▁end｜>",
        repository: "",
        file: "",
        padding: "",
    },
    // Code Llama.
    Texts {
        prefix: "▁<PRE>",
        suffix: "▁<SUF>",
        middle: "▁<MID>",
        repository: "",
        file: "",
        padding: "",
    },
    Texts {
        prefix: "<PRE>",
        suffix: "<SUF>",
        middle: "<MID>",
        repository: "<REPO>",
        file: "",
        padding: "<PAD>",
    },
    // GLM.
    Texts {
        prefix: "<|code_prefix|>",
        suffix: "<|code_suffix|>",
        middle: "<|code_middle|>",
        repository: "",
        file: "",
        padding: "",
    },
    // Falcon-H1-Tiny-Coder.
    Texts {
        prefix: "<|prefix|>",
        suffix: "<|suffix|>",
        middle: "<|middle|>",
        repository: "",
        file: "",
        padding: "",
    },
    // Codestral.
    Texts {
        prefix: "[PREFIX]",
        suffix: "[SUFFIX]",
        middle: "",
        repository: "",
        file: "",
        padding: "",
    },
];

impl InfillTokens {
    /// The tokens of a vocabulary, found by their texts; `None` for a model without them.
    pub fn of_vocabulary(tokenizer: &Tokenizer) -> Option<InfillTokens> {
        let found = SPELLINGS.iter().filter_map(|texts| texts.tokens(tokenizer));
        // Rows of one spelling differ in their further tokens. The row with most of them in the vocabulary fits best.
        found.rev().max_by_key(InfillTokens::beside)
    }

    /// Number of further tokens in the spelling.
    fn beside(&self) -> usize {
        [self.middle, self.repository, self.file, self.padding]
            .iter()
            .flatten()
            .count()
    }

    /// Tokens that end an answer: the start of the next file, or padding.
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        [self.repository, self.file, self.padding].into_iter().flatten()
    }
}

impl Texts {
    fn tokens(&self, tokenizer: &Tokenizer) -> Option<InfillTokens> {
        let find = |text: &str| (!text.is_empty()).then(|| tokenizer.token_id(text)).flatten();
        let middle = find(self.middle);
        if middle.is_none() && !self.middle.is_empty() {
            return None;
        }
        Some(InfillTokens {
            prefix: find(self.prefix)?,
            suffix: find(self.suffix)?,
            middle,
            repository: find(self.repository),
            file: find(self.file),
            padding: find(self.padding),
        })
    }
}
