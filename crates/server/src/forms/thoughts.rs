//! Forms of answers that begin with a thought.
//!
//! The prompts of some models end inside a thought. The thought is free and has a limited length; after its end mark
//! the form constrains the answer.

use std::fmt;
use std::sync::Arc;

use riffle_engine::{AnswerForm, Engine, TokenConstraint};

/// White space after the end mark, as models write it.
const BEHIND: &str = "\n\n";

/// A form after a thought.
pub(crate) struct BehindThought(Arc<Parts>);

/// The common parts of all answers of a form after a thought.
struct Parts {
    form: Arc<dyn AnswerForm>,
    engine: Arc<Engine>,
    /// The mark that ends a thought.
    mark: &'static str,
    /// Tokens of the end mark.
    end: Vec<u32>,
    /// Bits of all tokens except those that end a text.
    free: Vec<u32>,
    most_tokens: usize,
}

/// An answer of such a form.
struct Answer {
    form: Arc<Parts>,
    stage: Stage,
    /// Bits of the only allowed token, while the end mark is written.
    forced: Vec<u32>,
}

enum Stage {
    /// The current thought: its tokens, and its last bytes that may belong to the end mark.
    Thought {
        tokens: usize,
        tail: Vec<u8>,
    },
    /// The thought is too long: its end mark is written, from this token on.
    End(usize),
    Form(Box<dyn TokenConstraint>),
}

impl BehindThought {
    /// A `form` after a thought of at most `most_tokens` tokens, without its end `mark`.
    ///
    /// # Errors
    /// The reason why the model cannot write the end mark, as a sentence.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        form: Arc<dyn AnswerForm>,
        mark: &'static str,
        most_tokens: usize,
    ) -> Result<Self, String> {
        let tokenizer = engine.tokenizer().map_err(|error| error.to_string())?;
        let encode = |text: &str| tokenizer.encode(text, false).map_err(|error| error.to_string());
        let vocab_size = engine.model().config().vocab_size;
        let mut free = vec![u32::MAX; vocab_size.div_ceil(32)];
        for end in &engine.generation_defaults().eos {
            if let Some(word) = free.get_mut(*end as usize / 32) {
                *word &= !(1 << (end % 32));
            }
        }
        let mut end = encode(mark)?;
        // Tokenizers that put a space before a text would also write it after the mark.
        let behind = encode(&format!("{mark}{BEHIND}"))?;
        if behind.starts_with(&end) {
            end = behind;
        }
        Ok(Self(Arc::new(Parts {
            form,
            engine: Arc::clone(engine),
            mark,
            end,
            free,
            most_tokens,
        })))
    }
}

impl Parts {
    fn bytes_of(&self, token: u32) -> Vec<u8> {
        let tokenizer = self.engine.tokenizer().ok();
        tokenizer
            .and_then(|tokenizer| tokenizer.token_bytes(token).ok())
            .unwrap_or_default()
    }
}

impl fmt::Debug for BehindThought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BehindThought")
    }
}

impl AnswerForm for BehindThought {
    fn begin(&self) -> Result<Box<dyn TokenConstraint>, String> {
        let stage = match self.0.most_tokens {
            0 => Stage::End(0),
            _ => Stage::Thought {
                tokens: 0,
                tail: Vec::new(),
            },
        };
        Ok(Box::new(Answer {
            form: Arc::clone(&self.0),
            stage,
            forced: Vec::new(),
        }))
    }
}

impl TokenConstraint for Answer {
    fn allowed(&mut self) -> Result<&[u32], String> {
        match &mut self.stage {
            Stage::Thought { .. } => Ok(&self.form.free),
            Stage::End(place) => {
                let token = self.form.end[*place];
                self.forced.clear();
                self.forced.resize(self.form.free.len(), 0);
                self.forced[token as usize / 32] = 1 << (token % 32);
                Ok(&self.forced)
            }
            Stage::Form(answer) => answer.allowed(),
        }
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        match &mut self.stage {
            Stage::Thought { tokens, tail } => {
                *tokens += 1;
                tail.extend_from_slice(&self.form.bytes_of(token));
                let mark = self.form.mark;
                if tail.windows(mark.len()).any(|window| window == mark.as_bytes()) {
                    self.stage = Stage::Form(self.form.form.begin()?);
                    return Ok(false);
                }
                let kept = tail.len().min(mark.len() - 1);
                tail.drain(..tail.len() - kept);
                if *tokens == self.form.most_tokens {
                    self.stage = Stage::End(0);
                }
                Ok(false)
            }
            Stage::End(place) => {
                *place += 1;
                if *place == self.form.end.len() {
                    self.stage = Stage::Form(self.form.form.begin()?);
                }
                Ok(false)
            }
            Stage::Form(answer) => answer.accept(token),
        }
    }

    fn fork(&mut self) -> Option<Box<dyn TokenConstraint>> {
        let stage = match &mut self.stage {
            Stage::Thought { tokens, tail } => Stage::Thought {
                tokens: *tokens,
                tail: tail.clone(),
            },
            Stage::End(place) => Stage::End(*place),
            Stage::Form(answer) => Stage::Form(answer.fork()?),
        };
        Some(Box::new(Self {
            form: Arc::clone(&self.form),
            stage,
            forced: Vec::new(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{engine, fits_form};
    use super::super::{Form, Forms};
    use super::*;

    const END: &str = "</think>";

    fn form(most_tokens: usize) -> (Arc<Engine>, BehindThought) {
        let engine = engine();
        let forms = Forms::new(&engine, crate::Limits::default()).unwrap();
        let form = forms.prepare_now(Form::Pattern("[0-9]{3}".to_owned()), "form").unwrap();
        let form = BehindThought::new(&engine, form, END, most_tokens).unwrap();
        (engine, form)
    }

    #[test]
    fn a_thought_is_free_and_the_text_behind_it_has_the_form() {
        let (engine, form) = form(1000);
        for text in ["hm</think>123", "</think>123", "a < b </thin </think>123"] {
            assert!(fits_form(&engine, &form, text), "{text}");
        }
        for text in ["hm</think>12", "hm</think>1234", "hm</think>abc", "hm"] {
            assert!(!fits_form(&engine, &form, text), "{text}");
        }
    }

    #[test]
    fn a_thought_that_is_too_long_is_ended() {
        let (engine, form) = form(2);
        let tokenizer = engine.tokenizer().unwrap();
        let mut answer = form.begin().unwrap();
        let thought = tokenizer.encode("In the beginning", false).unwrap();
        for token in &thought[..2] {
            assert!(!answer.accept(*token).unwrap());
        }
        let mut written = Vec::new();
        for _ in 0..form.0.end.len() {
            let allowed = answer.allowed().unwrap();
            let token =
                (0..allowed.len() as u32 * 32).find(|token| allowed[*token as usize / 32] >> (token % 32) & 1 == 1);
            written.push(token.unwrap());
            assert!(!answer.accept(token.unwrap()).unwrap());
        }
        assert_eq!(tokenizer.decode(&written).unwrap().trim(), END);
        let five = tokenizer.encode("5", false).unwrap()[0];
        assert!(answer.allowed().unwrap()[five as usize / 32] >> (five % 32) & 1 == 1);
    }
}
