//! Scores documents for a query.

use std::ops::ControlFlow;

use crate::{ConversationText, ModelConfig, ModelError, TextTokens, Tokenizer};

/// Default task of a Qwen3 reranker.
const QWEN3_TASK: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// The prompt of Qwen3-Reranker, from its authors.
const QWEN3_PROMPT: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n\
<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// The placeholders of a prompt.
const INSTRUCTION: &str = "{instruction}";
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

/// The way from the last token's state to a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScoreRule {
    /// The share of the first token in the softmax over two tokens' logits: "yes" against "no".
    Tokens(u32, u32),
    /// The logistic function of the one output of the model's score head
    /// ([`Decoder::score_head`](crate::Decoder::score_head)).
    Logistic,
    /// The share of the first output of the score head in the softmax of all outputs.
    FirstOfSoftmax,
}

/// A model's input for a query and a document, and the way from its answer to a score from 0 to 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reranking {
    /// The prompt, or `None` for a model that reads the two texts behind each other.
    prompt: Option<String>,
    rule: ScoreRule,
}

/// A query and a document as a model reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RankingText {
    /// A prompt with both.
    Prompt(ConversationText),
    /// The query and the document, which the tokenizer joins.
    Pair([String; 2]),
}

impl RankingText {
    /// Bytes of the text.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Prompt(text) => text.text().len(),
            Self::Pair(texts) => texts.iter().map(String::len).sum(),
        }
    }

    /// The tokens of the text, with the special tokens that the model expects around it. `poll` is as in
    /// [`Tokenizer::encode_conversation_until`].
    ///
    /// # Errors
    /// As [`Tokenizer::encode_conversation_until`] and [`Tokenizer::encode_pair_until`].
    pub fn encode_until(
        &self,
        tokenizer: &Tokenizer,
        poll: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<TextTokens, ModelError> {
        match self {
            Self::Prompt(text) => tokenizer
                .encode_conversation_until(text, false, poll)
                .map(TextTokens::from),
            Self::Pair([query, document]) => tokenizer.encode_pair_until([query, document], poll),
        }
    }
}

impl Reranking {
    /// The reranking of a model: by its score head of `outputs` rows, or by the words "yes" and "no" of a Qwen3 model
    /// without one. `prompt` is the files' own. An encoder with a score head reads the two texts behind each other.
    ///
    /// The error is the reason why the model is no reranker, in one line.
    pub(crate) fn of_model(
        config: &ModelConfig,
        outputs: Option<usize>,
        tokenizer: Option<&Tokenizer>,
        prompt: Option<String>,
    ) -> Result<Self, String> {
        let tokenizer = tokenizer.ok_or("it has no tokenizer")?;
        if let (true, Some(outputs)) = (config.is_bidirectional, outputs) {
            return Self::of_encoder(outputs, tokenizer);
        }
        let is_qwen3 = config.architecture.starts_with("Qwen3") && tokenizer.token_id("<|im_start|>").is_some();
        let prompt = prompt.or_else(|| is_qwen3.then(|| QWEN3_PROMPT.to_owned()));
        let prompt = prompt.ok_or("its files do not say how a query and a document stand in its prompt")?;
        if !prompt.contains(QUERY) || !prompt.contains(DOCUMENT) {
            return Err("its prompt for reranking has no place for a query and a document".to_owned());
        }
        let rule = match outputs {
            Some(1) => ScoreRule::Logistic,
            Some(2) => ScoreRule::FirstOfSoftmax,
            Some(outputs) => {
                return Err(format!(
                    "its score head has {outputs} outputs, and 1 or 2 are supported"
                ));
            }
            None if !config.predicts_tokens => return Err("it has no head for words or scores".to_owned()),
            None => match (tokenizer.token_id("yes"), tokenizer.token_id("no")) {
                (Some(yes), Some(no)) => ScoreRule::Tokens(yes, no),
                _ => return Err("it has no tokens \"yes\" and \"no\"".to_owned()),
            },
        };
        Ok(Self {
            prompt: Some(prompt),
            rule,
        })
    }

    fn of_encoder(outputs: usize, tokenizer: &Tokenizer) -> Result<Self, String> {
        if outputs != 1 {
            return Err(format!("its score head has {outputs} outputs, and 1 is supported"));
        }
        if !tokenizer.joins_texts() {
            return Err("its tokenizer does not say how a query and a document are joined".to_owned());
        }
        Ok(Self {
            prompt: None,
            rule: ScoreRule::Logistic,
        })
    }

    /// The way from the last token's state to a score.
    pub fn rule(&self) -> ScoreRule {
        self.rule
    }

    /// True if the prompt has a place for an instruction.
    pub fn takes_instruction(&self) -> bool {
        self.prompt.as_ref().is_some_and(|prompt| prompt.contains(INSTRUCTION))
    }

    /// The model's input for a document. Control tokens that query and document spell stay text.
    pub fn text(&self, instruction: Option<&str>, query: &str, document: &str) -> RankingText {
        let Some(prompt) = &self.prompt else {
            return RankingText::Pair([query.to_owned(), document.to_owned()]);
        };
        let places = [
            (INSTRUCTION, instruction.unwrap_or(QWEN3_TASK)),
            (QUERY, query),
            (DOCUMENT, document),
        ];
        let mut text = ConversationText::default();
        let mut rest = prompt.as_str();
        let next = |rest: &str| {
            let found = places
                .iter()
                .filter_map(|(place, content)| Some((rest.find(place)?, *place, *content)));
            found.min_by_key(|(at, ..)| *at)
        };
        while let Some((at, place, content)) = next(rest) {
            text.push_marks(&rest[..at]);
            text.push_content(content);
            rest = &rest[at + place.len()..];
        }
        text.push_marks(rest);
        RankingText::Prompt(text)
    }
}

impl ScoreRule {
    /// The score from the logits of the two tokens, or from the outputs of the head.
    pub fn score(self, outputs: &[f32]) -> f32 {
        let logistic = |value: f64| (1.0 / (1.0 + (-value).exp())) as f32;
        match (self, outputs) {
            (Self::Logistic, [output, ..]) => logistic(f64::from(*output)),
            (Self::Tokens(..) | Self::FirstOfSoftmax, [first, second, ..]) => {
                logistic(f64::from(*first) - f64::from(*second))
            }
            _ => f32::NAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_of_a_prompt_stay_text() {
        let reranking = Reranking {
            prompt: Some(QWEN3_PROMPT.to_owned()),
            rule: ScoreRule::Tokens(0, 1),
        };
        let RankingText::Prompt(text) = reranking.text(None, "what is {document}?", "it ends<|im_end|>") else {
            panic!("a prompt is expected");
        };
        assert!(text.text().contains("<Instruct>: Given a web search query"));
        assert!(
            text.text()
                .contains("<Query>: what is {document}?\n<Document>: it ends<|im_end|><|im_end|>\n")
        );
        assert_eq!(text.literals().len(), 3);
    }

    #[test]
    fn scores_are_shares() {
        assert_eq!(ScoreRule::Logistic.score(&[0.0]), 0.5);
        let score = ScoreRule::Tokens(3, 4).score(&[2.0, 1.0]);
        assert!((score - 0.731_058_6).abs() < 1e-6, "{score}");
        assert_eq!(ScoreRule::FirstOfSoftmax.score(&[500.0, -500.0]), 1.0);
    }
}
