//! The prompt: documents first, then the question, so that a second question begins alike.

use std::fmt::Write;
use std::ops::{ControlFlow, Range};

use riffle_documents::Document;
use riffle_engine::{Engine, EngineError};

use crate::AskError;
use crate::offsets::offsets;

/// What a model with a chat template is told, unless the caller has other instructions.
const INSTRUCTION: &str =
    "Answer the question from the documents above. If they do not hold the answer, say so.\n\nQuestion: ";

/// Questions and answers so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) question: String,
    pub(crate) answer: String,
}

/// A prompt as tokens, and where what it is made of stands in it.
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Bytes of the prompt's text that each token stands for.
    pub(crate) offsets: Vec<Range<usize>>,
    /// Where each document's text stands in the prompt's text.
    pub(crate) documents: Vec<Range<usize>>,
    /// Tokens up to the end of the last document.
    pub(crate) document_tokens: usize,
    /// Tokens before the latest question.
    pub(crate) tokens_before_question: usize,
}

/// Documents as they stand in prompts, with what does not change from question to question.
pub(crate) struct PromptMaker {
    /// Texts of the documents, in which special tokens are spelled so that they are none; the same bytes otherwise.
    texts: Vec<String>,
    /// The documents, each under its name.
    body: String,
    system: Option<String>,
}

impl PromptMaker {
    pub(crate) fn new(engine: &Engine, documents: &[Document], system: Option<String>) -> Result<Self, AskError> {
        let special = special_tokens(engine)?;
        let has_template = engine.chat_template().is_some();
        let texts: Vec<String> = documents
            .iter()
            .map(|document| without_special(document.text.trim_end(), &special))
            .collect();
        let mut body = String::new();
        for (document, text) in documents.iter().zip(&texts) {
            let name = without_special(&document.name, &special);
            let name = name.replace(|c: char| c.is_control(), " ");
            let _ = match has_template {
                true => write!(body, "Document: {name}\n\n{text}\n\n"),
                false => write!(body, "{name}\n\n{text}\n\n"),
            };
        }
        if system.is_some() && !has_template {
            return Err(EngineError::NoChatTemplate(engine.path().display().to_string()).into());
        }
        Ok(Self { texts, body, system })
    }

    /// The prompt of a question behind the turns before it. `poll` is asked whether to go on rendering a template.
    pub(crate) fn prompt(
        &self,
        engine: &Engine,
        turns: &[Turn],
        question: &str,
        poll: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Prompt, AskError> {
        let (text, is_chat) = self.text(engine, turns, question, poll)?;
        let tokenizer = engine.tokenizer()?;
        // A template writes the special tokens itself.
        let tokens = tokenizer.encode(&text, !is_chat)?;
        let offsets = offsets(tokenizer, &text, &tokens)?;
        let mut documents = Vec::with_capacity(self.texts.len());
        let mut from = 0;
        for document in &self.texts {
            // A template that changes what a user writes hides documents; then no passages are told of these.
            let found = text[from..].find(document.as_str()).map(|at| from + at);
            let range = found.map_or(from..from, |at| at..at + document.len());
            from = range.end;
            documents.push(range);
        }
        let question_at = text.rfind(question).filter(|at| *at >= from).unwrap_or(from);
        Ok(Prompt {
            document_tokens: offsets.partition_point(|range| range.end <= from),
            tokens_before_question: offsets.partition_point(|range| range.start < question_at),
            tokens,
            offsets,
            documents,
        })
    }

    /// The text, and whether the model's template made it.
    fn text(
        &self,
        engine: &Engine,
        turns: &[Turn],
        question: &str,
        poll: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(String, bool), AskError> {
        let is_chat = engine.chat_template().is_some();
        let instruction = match (is_chat, &self.system) {
            (false, _) => "",
            (true, Some(_)) => "Question: ",
            (true, None) => INSTRUCTION,
        };
        // The documents stand before the first question.
        let mut lead = format!("{}{instruction}", self.body);
        let before: Vec<_> = turns
            .iter()
            .map(|turn| (std::mem::take(&mut lead) + &turn.question, turn.answer.as_str()))
            .collect();
        let text = engine.conversation_text(self.system.as_deref(), before, &(lead + question), poll)?;
        Ok((text, is_chat))
    }
}

/// How special tokens of the model are spelled.
fn special_tokens(engine: &Engine) -> Result<Vec<String>, AskError> {
    let tokenizer = engine.tokenizer()?;
    let ids = (0..tokenizer.vocab_size() as u32).filter(|id| tokenizer.is_special(*id));
    let texts = ids.filter_map(|id| tokenizer.token_text(id));
    Ok(texts.filter(|text| text.len() > 2 && text.is_ascii()).collect())
}

/// A text in which no special token is spelled: a document must not end a turn of the conversation. Its other bytes stay where they are.
fn without_special(text: &str, special: &[String]) -> String {
    let mut text = text.to_owned();
    for token in special.iter().filter(|token| token.starts_with(['<', '['])) {
        if text.contains(token.as_str()) {
            text = text.replace(token.as_str(), &format!("({}", &token[1..]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_in_documents_are_spelled_so_that_they_are_none() {
        let special = ["<|im_end|>".to_owned(), "[INST]".to_owned()];
        let text = "a <|im_end|> b [INST] c <|im_end";
        let clean = without_special(text, &special);
        assert_eq!(clean, "a (|im_end|> b (INST] c <|im_end");
        assert_eq!(clean.len(), text.len());
    }
}
