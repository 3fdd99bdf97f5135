//! Stores texts of conversations on disk: a document is read once, by any program.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use riffle_kv::{KvError, PrefixCache};

use super::beginning::prefix_cuts;
use super::disk::{fill_prefix, store_prefix};
use super::measured::DEFAULT_PREFIX_CACHE_BYTES;
use crate::{EngineError, EngineOptions, PrefillProgress, Session};

/// A folder that stores pages of documents by content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepOptions {
    /// The folder, which is created if necessary.
    pub folder: PathBuf,
    /// Maximum number of bytes of pages in the folder; the least recently used pages are removed first.
    pub budget_bytes: u64,
    /// True if an unusable folder is an error; otherwise nothing is stored.
    pub is_needed: bool,
}

impl KeepOptions {
    /// The folder shared by this user's programs, [`document_cache_folder`]; `None` if there is no such place.
    pub fn of_user() -> Option<Self> {
        document_cache_folder().map(|folder| Self {
            folder,
            budget_bytes: DEFAULT_PREFIX_CACHE_BYTES,
            is_needed: false,
        })
    }

    /// Opens the folder; if nothing is stored, the second value is the reason.
    ///
    /// # Errors
    /// [`KvError`] for a required folder that is unusable.
    pub fn open(&self) -> Result<(Option<PrefixCache>, Option<String>), KvError> {
        make_private(&self.folder);
        match PrefixCache::open(&self.folder, self.budget_bytes) {
            Ok(cache) => Ok((Some(cache), None)),
            Err(error) if self.is_needed => Err(error),
            Err(error) => Ok((None, Some(error.to_string()))),
        }
    }
}

/// Creates the folder for this user only, if necessary, because its pages reveal the documents. A failure shows when
/// the cache opens the folder.
fn make_private(folder: &Path) {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    let _ = riffle_system::files::private_folder(&mut builder).create(folder);
}

/// Folder of this user's document cache: `riffle/documents` in `$XDG_CACHE_HOME` or the platform's cache folder.
/// `None` if there is no such place.
pub fn document_cache_folder() -> Option<PathBuf> {
    Some(riffle_system::folders::caches()?.join("riffle").join("documents"))
}

/// A conversation's access to stored text. After a failure the folder is no longer used, and a notice says so; the
/// conversation continues without it.
#[derive(Default)]
pub struct KeptText {
    cache: Option<PrefixCache>,
    problem: Option<String>,
    notices: Vec<String>,
}

impl KeptText {
    /// Opens the folder of `options`; without options nothing is stored.
    ///
    /// # Errors
    /// [`KvError`] for a required folder that is unusable.
    pub fn open(options: Option<&KeepOptions>) -> Result<Self, KvError> {
        let (cache, problem) = match options {
            Some(options) => options.open()?,
            None => (None, None),
        };
        Ok(Self {
            cache,
            problem,
            notices: Vec::new(),
        })
    }

    /// True if text is stored under these options: their policies can use pages from another process, and no window
    /// moves.
    pub fn serves(&self, options: &EngineOptions) -> bool {
        let sequence = &options.sequence;
        self.cache.is_some()
            && sequence.prefill.follows_from_keys()
            && sequence.decode.follows_from_keys()
            && sequence.window.is_none()
            && options.model.token_selection.is_none()
    }

    /// The reason nothing is stored, if storing was requested but is impossible.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Notices for the user since the last call, one line each.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Fills an empty session with the folder's pages of `tokens`. Returns the number of tokens.
    ///
    /// # Errors
    /// As [`fill_prefix`], except those of the folder.
    pub fn find(&mut self, session: &mut Session, tokens: &[u32]) -> Result<usize, EngineError> {
        let Some(cache) = self
            .cache
            .as_ref()
            .filter(|_| self.serves(session.sequence().engine().options()) && session.tokens().is_empty())
        else {
            return Ok(0);
        };
        let filled = fill_prefix(session.sequence_mut(), cache, tokens);
        self.notices.extend(cache.take_notice());
        match filled {
            Ok(_) => Ok(session.tokens().len()),
            Err(EngineError::Kv(error)) => {
                self.give_up(error.to_string());
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the prompt tokens that the session lacks, and stores them. `tokens` begins with the session's tokens.
    ///
    /// # Errors
    /// As [`Session::prefill`]. Tokens read before the failure are stored.
    pub fn read(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        observe: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let first = session.tokens().len();
        let serves = self.serves(session.sequence().engine().options());
        let cuts = if serves {
            prefix_cuts(session.sequence(), tokens.len())
        } else {
            Vec::new()
        };
        let cuts = cuts.into_iter().filter(|cut| *cut < tokens.len());
        for cut in cuts.chain([tokens.len()]) {
            let start = session.tokens().len();
            if cut <= start {
                continue;
            }
            let read = session.prefill(&tokens[start..cut], &mut |progress| {
                observe(PrefillProgress {
                    tokens_done: (start - first) as f64 + progress.tokens_done,
                    tokens: tokens.len() - first,
                    ..progress
                })
            });
            if serves {
                self.store(session);
            }
            read?;
        }
        Ok(())
    }

    /// The bytes that [`keep_named`](Self::keep_named) stored under `name`, in this or another process.
    pub fn named(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        let cache = self.cache.as_ref()?;
        let found = cache.named_note(name);
        self.notices.extend(cache.take_notice());
        found.unwrap_or_else(|error| {
            self.give_up(error.to_string());
            None
        })
    }

    /// Stores bytes under `name` in the folder. They count in its budget.
    pub fn keep_named(&mut self, name: &[u8], bytes: &[u8]) {
        if let Some(cache) = &self.cache
            && let Err(error) = cache.store_named_note(name, bytes)
        {
            self.give_up(error.to_string());
        }
    }

    fn store(&mut self, session: &Session) {
        if let Some(cache) = &self.cache
            && let Err(error) = store_prefix(session.sequence(), cache)
        {
            self.give_up(error.to_string());
        }
    }

    fn give_up(&mut self, problem: String) {
        self.cache = None;
        self.notices.push(format!("what was read could not be kept: {problem}"));
        self.problem = Some(problem);
    }
}
