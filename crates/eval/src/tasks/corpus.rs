//! Sources of prompts: a text, its words, a wording, and the model's tokenizer and template.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use riffle_engine::Engine;
use riffle_model::{ChatMessage, Tokenizer};
use serde_json::{Value, json};
use twox_hash::XxHash3_64;

use super::given::GivenQuestion;
use super::prompt::Watch;
use super::ruler::RulerTask;
use super::wording::{Ask, Wording};
use crate::EvalError;

/// Placeholder for the text in a chat template.
const MARK: &str = "<<here>>";

/// Minimum tokens and words for prompts.
const LEAST_TOKENS: usize = 1024;
const LEAST_WORDS: usize = 32;

/// The source of all tasks. A seed and a corpus determine a prompt.
pub struct Corpus {
    engine: Arc<Engine>,
    /// Phrases of the tasks.
    pub(crate) wording: Wording,
    /// Tokens of the text.
    pub(crate) hay: Vec<u32>,
    /// Lines of the text that are long enough for a document.
    pub(crate) lines: Vec<String>,
    /// Plain words, of one token each if the text has enough of them.
    pub(crate) words: Vec<String>,
    /// Questions of the user.
    pub(crate) given: Vec<GivenQuestion>,
}

/// A short name of a text's tokens (FNV-1a, 64 bits).
pub fn digest(tokens: &[u32]) -> String {
    let hash = tokens.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, token| {
        (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{} tokens, {hash:016x}", tokens.len())
}

/// The tokens before and after a text.
pub(crate) struct Frame {
    pub(crate) head: Vec<u32>,
    pub(crate) tail: Vec<u32>,
}

impl Corpus {
    /// Splits a text for a model. `given` are the user's questions for the `qa` tasks; without them, the tasks ask
    /// for generated facts.
    ///
    /// # Errors
    /// [`EvalError::Option`] for a text that is too short.
    pub fn new(
        engine: &Arc<Engine>,
        text: &str,
        wording: Wording,
        given: Vec<GivenQuestion>,
    ) -> Result<Self, EvalError> {
        let tokenizer = engine.tokenizer()?;
        let hay = tokenizer.encode(text, false)?;
        let all: BTreeSet<&str> = text
            .split_whitespace()
            .filter(|word| word.len() >= 4 && word.bytes().all(|byte| byte.is_ascii_lowercase()))
            .collect();
        let mut words = Vec::new();
        for word in &all {
            if tokenizer.encode(&format!(" {word}"), false)?.len() == 1 {
                words.push((*word).to_owned());
            }
        }
        if words.len() < LEAST_WORDS {
            words = all.into_iter().map(str::to_owned).collect();
        }
        if words.len() < LEAST_WORDS || hay.len() < LEAST_TOKENS {
            return Err(EvalError::Option(format!(
                "the text has {} tokens and {} plain words: tasks need at least {LEAST_TOKENS} and {LEAST_WORDS}; give a longer one",
                hay.len(),
                words.len()
            )));
        }
        let lines = text.lines().map(str::trim).filter(|line| line.len() >= 40);
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        Ok(Self {
            engine: Arc::clone(engine),
            wording,
            hay,
            lines: if lines.is_empty() { vec![text.to_owned()] } else { lines },
            words,
            given,
        })
    }

    /// Every property that decides a prompt, for a [`Journal`](crate::Journal).
    pub fn about(&self) -> Value {
        let questions = json!(self.given).to_string();
        json!({
            "wording": self.wording,
            "text": digest(&self.hay),
            "questions": format!("{}, {:016x}", self.given.len(), XxHash3_64::oneshot(questions.as_bytes())),
        })
    }

    /// The name of the wording.
    pub fn wording(&self) -> &str {
        &self.wording.name
    }

    /// The prompt of a RULER task as text, and its expected answer.
    ///
    /// # Errors
    /// [`EvalError::Option`] for a task that does not fit in the length.
    pub fn ruler_prompt(
        &self,
        task: RulerTask,
        context_tokens: usize,
        seed: u64,
    ) -> Result<(String, Vec<String>), EvalError> {
        let prompt = task.prompt(self, context_tokens, seed, &mut |_| ControlFlow::Continue(()))?;
        let tokens = [&*prompt.document, &*prompt.questions[0]].concat();
        Ok((self.tokenizer()?.decode(&tokens)?, prompt.expected))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, EvalError> {
        Ok(self.engine.tokenizer()?)
    }

    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, EvalError> {
        Ok(self.tokenizer()?.encode(text, false)?)
    }

    /// Tokens before and after a document with a question. `watch` may stop the model's chat template.
    pub(crate) fn frame(&self, before: &str, ask: &Ask, watch: &mut Watch<'_>) -> Result<Frame, EvalError> {
        let Some(template) = self.engine.chat_template().filter(|_| self.wording.chat) else {
            let mut head = self.tokenizer()?.encode("", true)?;
            head.extend(self.encode(before)?);
            let tail = self.encode(&format!("\n{}{}", ask.question, ask.lead))?;
            return Ok(Frame { head, tail });
        };
        let message = ChatMessage::new("user", format!("{before}{MARK}\n{}", ask.question));
        let text = template.render_messages_until(&[message], true, &mut || watch(0.0))?;
        let text = text.into_text() + ask.lead.trim_start();
        let (head, tail) = self.split_at_mark(&text)?;
        // The template writes the special tokens itself.
        Ok(Frame {
            head: self.encode(head)?,
            tail: self.encode(tail)?,
        })
    }

    /// A question that follows an answer. `watch` may stop the model's chat template.
    pub(crate) fn follow_up(&self, ask: &Ask, watch: &mut Watch<'_>) -> Result<Vec<u32>, EvalError> {
        let Some(template) = self.engine.chat_template().filter(|_| self.wording.chat) else {
            return self.encode(&format!("\n{}{}", ask.question, ask.lead));
        };
        let messages = [
            ChatMessage::new("user", "A question."),
            ChatMessage::new("assistant", MARK),
            ChatMessage::new("user", ask.question.clone()),
        ];
        let text = template.render_messages_until(&messages, true, &mut || watch(0.0))?;
        let text = text.into_text() + ask.lead.trim_start();
        let (_, tail) = self.split_at_mark(&text)?;
        self.encode(tail)
    }

    fn split_at_mark<'t>(&self, text: &'t str) -> Result<(&'t str, &'t str), EvalError> {
        text.split_once(MARK).ok_or_else(|| {
            EvalError::Option(
                "the model's chat template does not repeat what it is given: use --wording plain, or a wording file with \"chat\": false"
                    .to_owned(),
            )
        })
    }

    /// Different keys of two plain words.
    pub(crate) fn keys(&self, random: &mut ChaCha8Rng, count: usize) -> Result<Vec<String>, EvalError> {
        let pairs = self.word_pairs(random, count)?;
        Ok(pairs.iter().map(|pair| pair.join(&self.wording.key_joiner)).collect())
    }

    /// Different pairs of plain words.
    pub(crate) fn word_pairs(&self, random: &mut ChaCha8Rng, count: usize) -> Result<Vec<[String; 2]>, EvalError> {
        let possible = self.words.len() * (self.words.len() - 1);
        if count * 2 > possible {
            return Err(EvalError::Option(format!(
                "{count} keys are needed and the text's plain words make {possible}: give a longer text or use a shorter context"
            )));
        }
        let (mut seen, mut pairs) = (BTreeSet::new(), Vec::with_capacity(count));
        while pairs.len() < count {
            let pair: Vec<&String> = self.words.choose_multiple(random, 2).collect();
            let pair = [pair[0].clone(), pair[1].clone()];
            if seen.insert(pair.clone()) {
                pairs.push(pair);
            }
        }
        Ok(pairs)
    }

    /// Distinct words. If the text has too few, pairs of words are joined.
    pub(crate) fn distinct_words(&self, random: &mut ChaCha8Rng, count: usize) -> Vec<String> {
        if count <= self.words.len() {
            return self.words.choose_multiple(random, count).cloned().collect();
        }
        let (mut seen, mut words) = (BTreeSet::new(), Vec::with_capacity(count));
        while words.len() < count {
            let parts = self
                .words
                .choose_multiple(random, 2 + seen.len() / (self.words.len() * self.words.len() / 4));
            let word = parts.map(String::as_str).collect::<Vec<_>>().concat();
            if seen.insert(word.clone()) {
                words.push(word);
            }
        }
        words
    }

    /// A number of the wording's digits.
    pub(crate) fn number(&self, random: &mut ChaCha8Rng) -> String {
        let first = char::from(random.random_range(b'1'..=b'9'));
        let rest = (1..self.wording.digits.max(1)).map(|_| char::from(random.random_range(b'0'..=b'9')));
        std::iter::once(first).chain(rest).collect()
    }
}
