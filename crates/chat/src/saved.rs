//! Saves conversations in files: the text as JSON, and its pages in a second file, so that no text is read again.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use riffle_engine::Session;
use serde::{Deserialize, Serialize};

use crate::branch::{Branch, Document, Turn};
use crate::conversation::Conversation;
use crate::error::ChatError;
use crate::transcript::Transcript;

/// Version of the file. It changes with the file's fields.
const VERSION: u32 = 1;

/// Maximum number of bytes of a file.
const LARGEST_FILE_BYTES: u64 = 1 << 30;

/// A conversation from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Number of turns in the conversation.
    pub turns: usize,
    /// Tokens with loaded pages.
    pub held_tokens: usize,
    /// Tokens that the next message must read again.
    pub again_tokens: usize,
    /// The reason why existing pages were not used.
    pub problem: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct File {
    riffle_chat: u32,
    /// Hash of the model's settings and weights.
    model: String,
    system: Option<String>,
    turns: Vec<Turn>,
    attached: Vec<Document>,
    transcript: Transcript,
}

impl Conversation {
    /// Writes the current branch to `path`, and its pages to `path` with the suffix `.pages`. Only the owner can read
    /// new files. Returns the bytes of both.
    ///
    /// # Errors
    /// [`ChatError::Write`], [`ChatError::Engine`]; existing files then stay complete.
    pub fn save(&self, path: &Path) -> Result<u64, ChatError> {
        let file = File {
            riffle_chat: VERSION,
            model: self.model()?,
            system: self.system.clone(),
            turns: self.branch.turns.clone(),
            attached: self.branch.attached.clone(),
            transcript: self.branch.transcript.clone(),
        };
        let pages = pages_path(path);
        if let Some(session) = &self.branch.session {
            session.sequence().save(&pages)?;
        }
        let failed = |source| ChatError::Write {
            path: path.to_owned(),
            source,
        };
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut written = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        let text = serde_json::to_vec(&file).map_err(|error| failed(error.into()))?;
        written.write_all(&text).map_err(failed)?;
        written.as_file().sync_all().map_err(failed)?;
        written.persist(path).map_err(|error| failed(error.error))?;
        let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        Ok(bytes(path) + bytes(&pages))
    }

    /// Replaces the current branch by the conversation in a file. The next message reads the text again if the file's
    /// pages belong to another model or other options.
    ///
    /// # Errors
    /// [`ChatError::Read`], [`ChatError::NotAConversation`]; [`ChatError::Engine`] if the file has instructions and
    /// the model takes none. The current conversation then stays.
    pub fn load(&mut self, path: &Path) -> Result<Loaded, ChatError> {
        let bytes = riffle_files::read(path, LARGEST_FILE_BYTES).map_err(|source| ChatError::Read {
            path: path.to_owned(),
            source,
        })?;
        let unusable = |problem: String| ChatError::NotAConversation {
            path: path.to_owned(),
            problem,
        };
        let file: File = serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string()))?;
        drop(bytes);
        if file.riffle_chat != VERSION {
            return Err(unusable(format!("its version is {}, not {VERSION}", file.riffle_chat)));
        }
        let is_same_model = self.model()? == file.model;
        let vocabulary = self.engine.model().config().vocab_size;
        if is_same_model && !file.transcript.is_sound(vocabulary) {
            return Err(unusable("its text and its tokens do not go together".to_owned()));
        }
        self.set_system(file.system)?;
        self.branch = Branch {
            turns: file.turns,
            attached: file.attached,
            ..Branch::named(std::mem::take(&mut self.branch.name))
        };
        let mut problem = None;
        if is_same_model {
            self.branch.transcript = file.transcript;
            problem = self.load_pages(&pages_path(path));
        } else {
            problem.get_or_insert("another model wrote it".to_owned());
        }
        let (held_tokens, all) = (self.branch.held_tokens(), self.branch.transcript.end().tokens);
        Ok(Loaded {
            turns: self.branch.turns.len(),
            held_tokens,
            // The last token of a stopped answer is not yet read.
            again_tokens: if held_tokens + 1 >= all { 0 } else { all - held_tokens },
            problem,
        })
    }

    /// Loads pages from a file. Returns the reason if they are unusable.
    fn load_pages(&mut self, path: &Path) -> Option<String> {
        if !path.exists() {
            return None;
        }
        // Restored pages have their own pool, and the plan has memory for only one pool.
        for branch in &mut self.others {
            branch.forget_pages();
        }
        match Session::restore(&self.engine, path) {
            Ok(session) => {
                self.branch.session = Some(session);
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }

    fn model(&self) -> Result<String, ChatError> {
        Ok(format!("{:032x}", self.engine.fingerprint()?))
    }
}

fn pages_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".pages");
    PathBuf::from(name)
}
