//! The vector of a text: the pooled hidden states, and the layers after them.

mod dense;
mod sentence_transformers;

use std::collections::BTreeMap;

use crate::{ConversationText, Tokenizer};
pub use dense::{Dense, DenseActivation};
pub(crate) use sentence_transformers::EmbeddingFiles;

/// The hidden states that form a text's vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// The first token's state.
    First,
    /// The last token's state.
    Last,
    /// The mean over all tokens.
    Mean,
}

/// A model's way to make one vector of a text, from its files: `modules.json` of sentence-transformers and the files
/// that it names, or `pooling_type` of a GGUF file. Without either, the last token is pooled, as in decoders trained
/// for embeddings.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TextEmbedding {
    /// The pooled hidden states, after the final norm.
    pub pooling: Pooling,
    /// True if the files state the pooling, as files of embedding models do.
    pub is_stated: bool,
    /// Layers after the pooled state, first to last.
    pub dense: Vec<Dense>,
    /// True if vectors have the length 1.
    pub is_normalised: bool,
    /// True if a text gets an end token that the tokenizer does not add, because the files do not specify the end of
    /// texts.
    pub ends_texts: bool,
    /// Texts in front of the input, by name, such as `query`.
    pub prompts: BTreeMap<String, String>,
    /// The name of the prompt in [`prompts`](Self::prompts) for inputs that name none.
    pub default_prompt: Option<String>,
    /// Maximum number of tokens of a text, if fewer than the model's positions.
    pub most_tokens: Option<usize>,
    /// The reason why the files allow no vectors, in one line; `None` if they do.
    pub refusal: Option<String>,
}

impl Default for TextEmbedding {
    fn default() -> Self {
        Self {
            pooling: Pooling::Last,
            is_stated: false,
            dense: Vec::new(),
            is_normalised: true,
            ends_texts: true,
            prompts: BTreeMap::new(),
            default_prompt: None,
            most_tokens: None,
            refusal: None,
        }
    }
}

impl TextEmbedding {
    /// The pooling of a GGUF file's `pooling_type`, with llama.cpp's numbers; `None` without this key. A model that
    /// reads in both directions (`is_bidirectional`) pools the mean without it, and ranks by its first token.
    pub(crate) fn of_gguf(pooling_type: Option<i128>, is_bidirectional: bool) -> Self {
        let pooling = match pooling_type {
            None if is_bidirectional => Ok(Pooling::Mean),
            Some(4) if is_bidirectional => Ok(Pooling::First),
            None | Some(3 | 4) => Ok(Pooling::Last),
            Some(1) => Ok(Pooling::Mean),
            Some(2) => Ok(Pooling::First),
            Some(other) => Err(format!("its pooling_type is {other}, and 1 to 4 are supported")),
        };
        Self {
            pooling: *pooling.as_ref().unwrap_or(&Pooling::Last),
            is_stated: matches!(pooling_type, Some(1..=3)),
            refusal: pooling.err(),
            ..Self::default()
        }
    }

    /// Number of elements of a vector, for hidden states of `hidden_size`.
    pub fn width(&self, hidden_size: usize) -> usize {
        self.dense.last().map_or(hidden_size, Dense::outputs)
    }

    /// The text in front of a question: the prompt `query`, else the default prompt, else none.
    pub fn query_prompt(&self) -> &str {
        self.first_prompt(&["query"])
    }

    /// The text in front of a passage: the prompt `document`, `passage` or `corpus`, else the default prompt, else
    /// none. These are the names of sentence-transformers.
    pub fn document_prompt(&self) -> &str {
        self.first_prompt(&["document", "passage", "corpus"])
    }

    fn first_prompt(&self, names: &[&str]) -> &str {
        let names = names.iter().copied().chain(self.default_prompt.as_deref());
        let mut prompts = names.filter_map(|name| self.prompts.get(name));
        prompts.next().map_or("", String::as_str)
    }

    /// The tokens of a text after a prompt. `encode` gives the tokens of their content, with the special tokens that
    /// begin and end a text.
    ///
    /// # Errors
    /// The errors of `encode`.
    pub fn tokens<E>(
        &self,
        (prompt, text): (&str, &str),
        tokenizer: &Tokenizer,
        encode: impl FnOnce(&ConversationText) -> Result<Vec<u32>, E>,
    ) -> Result<Vec<u32>, E> {
        let mut content = ConversationText::default();
        content.push_content(prompt);
        content.push_content(text);
        let mut tokens = encode(&content)?;
        self.end_text(&mut tokens, tokenizer);
        Ok(tokens)
    }

    /// Appends the end token of a text, if neither the files nor the tokenizer specify the end of texts.
    fn end_text(&self, tokens: &mut Vec<u32>, tokenizer: &Tokenizer) {
        let is_ended = tokens.last().is_some_and(|token| tokenizer.is_special(*token));
        if self.ends_texts && self.pooling == Pooling::Last && !is_ended {
            tokens.extend(tokenizer.eos());
        }
    }

    /// The vector of a text with hidden states `states`, `[tokens, hidden_size]` with at least one token.
    pub fn vector(&self, states: &[f32], hidden_size: usize) -> Vec<f32> {
        let mut vector = match self.pooling {
            Pooling::First => states[..hidden_size].to_vec(),
            Pooling::Last => states[states.len() - hidden_size..].to_vec(),
            Pooling::Mean => mean(states, hidden_size),
        };
        for dense in &self.dense {
            vector = dense.apply(&vector);
        }
        if self.is_normalised {
            normalise(&mut vector);
        }
        vector
    }

    /// Bytes of the layers after the pooled state.
    pub(crate) fn bytes(&self) -> u64 {
        self.dense.iter().map(Dense::bytes).sum()
    }
}

/// Shortens the tokens of a text to at most `most`. A special token at the end stays.
pub fn cut_text(tokens: &mut Vec<u32>, most: usize, tokenizer: &Tokenizer) {
    if tokens.len() <= most {
        return;
    }
    let end = tokens.last().copied().filter(|token| tokenizer.is_special(*token));
    tokens.truncate(most);
    if let (Some(end), Some(last)) = (end, tokens.last_mut()) {
        *last = end;
    }
}

/// Divides a vector by its Euclidean length. A zero vector stays.
pub fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector
            .iter_mut()
            .for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

/// The mean of rows of `width` values, summed in double precision.
fn mean(rows: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; width];
    for row in rows.chunks_exact(width) {
        sums.iter_mut()
            .zip(row)
            .for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let count = (rows.len() / width).max(1) as f64;
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_pooled_as_the_files_say() {
        let states = [3.0, 4.0, 0.0, 2.0, 3.0, 0.0];
        let vector = |pooling, is_normalised| {
            let embedding = TextEmbedding {
                pooling,
                is_normalised,
                ..TextEmbedding::default()
            };
            embedding.vector(&states, 2)
        };
        assert_eq!(vector(Pooling::First, false), [3.0, 4.0]);
        assert_eq!(vector(Pooling::First, true), [0.6, 0.8]);
        assert_eq!(vector(Pooling::Last, false), [3.0, 0.0]);
        assert_eq!(vector(Pooling::Mean, false), [2.0, 2.0]);
        let mut zeros = [0.0; 3];
        normalise(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }

    #[test]
    fn questions_and_passages_have_the_prompts_that_the_files_name() {
        let prompted = |names: &[&str], default: Option<&str>| {
            let prompts = names.iter().map(|name| ((*name).to_owned(), format!("{name}: ")));
            let embedding = TextEmbedding {
                prompts: prompts.collect(),
                default_prompt: default.map(str::to_owned),
                ..TextEmbedding::default()
            };
            [embedding.query_prompt(), embedding.document_prompt()].map(str::to_owned)
        };
        assert_eq!(prompted(&["query", "document"], None), ["query: ", "document: "]);
        assert_eq!(prompted(&["query", "passage"], Some("query")), ["query: ", "passage: "]);
        assert_eq!(prompted(&["query"], Some("query")), ["query: ", "query: "]);
        assert_eq!(prompted(&[], None), ["", ""]);
    }

    #[test]
    fn an_unknown_pooling_of_a_file_is_a_refusal_and_no_guess() {
        assert_eq!(TextEmbedding::of_gguf(Some(1), false).pooling, Pooling::Mean);
        assert!(TextEmbedding::of_gguf(None, false).refusal.is_none());
        let is_stated = [None, Some(1), Some(3), Some(4)].map(|number| TextEmbedding::of_gguf(number, false).is_stated);
        assert_eq!(is_stated, [false, true, true, false], "4 is a reranker's");
        assert!(
            TextEmbedding::of_gguf(Some(0), false)
                .refusal
                .unwrap()
                .contains("pooling_type is 0")
        );
    }
}
