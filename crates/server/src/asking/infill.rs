//! Texts with a gap for the model to fill (infill).

use riffle_engine::{Engine, EngineError};
use riffle_model::{ConversationText, InfillTokens, Tokenizer};

use super::Wishes;
use super::continuation::Prompt;
use crate::app::App;
use crate::failure::Failure;
use crate::tokenising::{Client, Wanted, encode_now};

/// The name of the repository of a request with further files, the same as llama.cpp's.
const REPOSITORY: &str = "myproject\n";

/// The name of the file with the gap.
const FILE: &str = "filename\n";

/// Separates further files for models without a token for files, the same as llama.cpp's.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// A text with a gap.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Gap {
    /// The text before the gap.
    pub(crate) prefix: String,
    /// The text after the gap.
    pub(crate) suffix: String,
    /// Names and texts of further files.
    pub(crate) files: Vec<(String, String)>,
}

/// Tokens of a prompt, assembled part by part.
struct Parts<'a> {
    engine: &'a Engine,
    client: &'a Client,
    tokens: Vec<u32>,
}

impl Gap {
    /// The prompt of a gap between two texts. The field `suffix` has the suffix.
    ///
    /// # Errors
    /// A model that was not trained to fill in the middle.
    pub(crate) fn between(app: &App, prefix: String, suffix: String) -> Result<Prompt, Failure> {
        infill_tokens(&app.engine).map_err(|failure| Failure {
            param: Some("suffix".to_owned()),
            message: format!("suffix: {}", failure.message),
            ..failure
        })?;
        Ok(Prompt::Gap(Box::new(Self {
            prefix,
            suffix,
            files: Vec::new(),
        })))
    }

    /// The prompts of gaps between each of `prompts` and the suffix.
    pub(crate) fn before(app: &App, prompts: Vec<Prompt>, suffix: &str) -> Result<Vec<Prompt>, Failure> {
        let prompts = prompts.into_iter().map(|prompt| match prompt {
            Prompt::Text(prefix) => Self::between(app, prefix, suffix.to_owned()),
            Prompt::Tokens(_) | Prompt::Gap(_) => Err(Failure::field(
                "suffix",
                "it stands behind a text: send the prompt as a text",
            )),
        });
        prompts.collect()
    }

    /// The tokens of the prompt: the further files, the texts before and after the gap, and the mark at which the model
    /// begins to write. Marks in the texts stay text.
    pub(crate) fn tokens(&self, engine: &Engine, client: &Client) -> Result<Vec<u32>, Failure> {
        let marks = infill_tokens(engine)?;
        let tokenizer = engine.tokenizer().map_err(|error| Failure::from_engine(&error))?;
        let mut parts = Parts {
            engine,
            client,
            tokens: beginning(tokenizer)?,
        };
        parts.push_files(&marks, &self.files)?;
        match marks.middle {
            Some(middle) => {
                parts.push(marks.prefix, &self.prefix)?;
                parts.push(marks.suffix, &self.suffix)?;
                parts.tokens.push(middle);
            }
            // The model continues the text before the gap.
            None => {
                parts.push(marks.suffix, &self.suffix)?;
                parts.push(marks.prefix, &self.prefix)?;
            }
        }
        Ok(parts.tokens)
    }
}

impl Parts<'_> {
    fn push(&mut self, mark: u32, text: &str) -> Result<(), Failure> {
        self.tokens.push(mark);
        self.push_text(text)
    }

    fn push_text(&mut self, text: &str) -> Result<(), Failure> {
        let mut content = ConversationText::default();
        content.push_content(text);
        let tokens = encode_now(self.engine, &content, false, Wanted::Prompt, self.client)?;
        self.tokens.extend(tokens);
        Ok(())
    }

    /// The further files, in the order of arXiv:2409.12186.
    fn push_files(&mut self, marks: &InfillTokens, files: &[(String, String)]) -> Result<(), Failure> {
        if files.is_empty() {
            return Ok(());
        }
        if let Some(repository) = marks.repository {
            self.push(repository, REPOSITORY)?;
        }
        for (name, text) in files {
            match marks.file {
                Some(mark) => self.push(mark, &format!("{name}\n"))?,
                None => self.push_text(SNIPPET)?,
            }
            self.push_text(text)?;
        }
        match marks.file {
            Some(mark) => self.push(mark, FILE),
            None => Ok(()),
        }
    }
}

impl Wishes {
    /// Ends an answer at the beginning of the next file.
    pub(crate) fn end_behind_gap(&mut self, app: &App) {
        let ends = app.engine.infill_tokens().into_iter().flat_map(InfillTokens::ends);
        self.generate.stop_tokens.extend(ends);
    }
}

/// The model's tokens for infill.
pub(crate) fn infill_tokens(engine: &Engine) -> Result<InfillTokens, Failure> {
    engine.infill_tokens().copied().ok_or_else(|| {
        Failure::bad("this model was not trained to fill in the middle: use a model that was, such as Qwen2.5-Coder")
            .with_code("unsupported_by_model")
    })
}

/// The tokenizer's first tokens of a text.
fn beginning(tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    let around = tokenizer.encode("", true);
    let around = around.map_err(|error| Failure::from_engine(&EngineError::from(error)))?;
    let bos = tokenizer.bos().filter(|bos| around.first() == Some(bos));
    Ok(bos.into_iter().collect())
}
