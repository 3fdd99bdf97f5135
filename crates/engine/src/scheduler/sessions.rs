//! Session files: loaded beside other work, held under their file, and continued by requests that name them.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use riffle_kv::PagePool;

use crate::scheduler::{Request, Scheduler, Waiting};
use crate::sequence::common_prefix;
use crate::sharing::{can_share, fork_beginning, goes_back_to, share_prefix};
use crate::{Engine, EngineError, Sequence, SequenceOptions};

/// A session file to be read into a scheduler's pool, on any thread.
pub struct Restoring {
    engine: Arc<Engine>,
    pool: PagePool,
    path: PathBuf,
    room: Room,
}

/// A sequence of a scheduler's pool in the hands of its caller. Its room stays reserved until it is dropped or
/// returned.
#[derive(Debug)]
pub struct LoanedSequence {
    pub(super) sequence: Sequence,
    /// The session file with the same content; `None` if there is none.
    pub(super) file: Option<FileState>,
    room: Room,
}

/// Room that a scheduler has promised outside its lists; dropping it releases the room.
#[derive(Debug)]
pub(super) struct Room {
    promised: Promised,
    amount: Amount,
}

/// All room that a scheduler has promised outside its lists.
#[derive(Debug, Clone, Default)]
pub(super) struct Promised(Arc<Mutex<Amount>>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) sequences: usize,
    /// Bytes of pages that are reserved but not allocated yet.
    pub(super) bytes: u64,
}

/// State of a session file when its sequence was read from or written to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileState {
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Amount {
    /// Room for one sequence whose pages are already allocated.
    pub(super) const PLACE: Self = Self { sequences: 1, bytes: 0 };
}

impl Restoring {
    /// Reads the file.
    ///
    /// # Errors
    /// As [`Sequence::restore`].
    pub fn run(mut self) -> Result<LoanedSequence, EngineError> {
        // If another writer replaces the file from here on, it is another session.
        let file = FileState::find(&self.path);
        let sequence = Sequence::restore(&self.engine, &self.pool, &self.path)?;
        self.room.release_bytes();
        Ok(LoanedSequence {
            sequence,
            file,
            room: self.room,
        })
    }
}

impl LoanedSequence {
    /// The sequence.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Saves to a file and remembers the file as this sequence's source. Returns the size of the file in bytes.
    ///
    /// # Errors
    /// As [`Sequence::save`].
    pub fn save(&mut self, path: &Path) -> Result<u64, EngineError> {
        let written = self.sequence.save(path)?;
        self.file = Some(FileState::new(path, &written));
        Ok(written.len())
    }
}

impl Promised {
    pub(super) fn amount(&self) -> Amount {
        *self.lock()
    }

    /// Promises this amount, which the caller must know to be available.
    pub(super) fn take(&self, amount: Amount) -> Room {
        let mut all = self.lock();
        all.sequences += amount.sequences;
        all.bytes += amount.bytes;
        Room {
            promised: self.clone(),
            amount,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Amount> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// Releases the bytes: the pool counts allocated pages.
    fn release_bytes(&mut self) {
        self.promised.lock().bytes -= self.amount.bytes;
        self.amount.bytes = 0;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut all = self.promised.lock();
        all.sequences -= self.amount.sequences;
        all.bytes -= self.amount.bytes;
    }
}

impl FileState {
    /// The file's current state; `None` if it is unreadable.
    pub(super) fn find(path: &Path) -> Option<Self> {
        Some(Self::new(path, &fs::metadata(path).ok()?))
    }

    fn new(path: &Path, file: &Metadata) -> Self {
        Self {
            path: path.to_owned(),
            bytes: file.len(),
            modified: file.modified().ok(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Scheduler {
    /// Makes room for the sequence in a session file, dropping idle sequences. [`Restoring::run`] reads the file, on
    /// another thread if answers should continue, and [`hold`](Self::hold) adds the sequence.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`].
    pub fn restoring(&mut self, path: &Path) -> Result<Restoring, EngineError> {
        let wanted = Amount {
            bytes: fs::metadata(path).map_or(0, |file| file.len()),
            ..Amount::PLACE
        };
        if !self.make_room(wanted) {
            return Err(EngineError::NoRoom("the session"));
        }
        Ok(Restoring {
            engine: Arc::clone(&self.engine),
            pool: self.pool.clone(),
            path: path.to_owned(),
            room: self.promised.take(wanted),
        })
    }

    /// Holds the sequence of a session file until its room is needed. [Requests](Request::session) that name the file
    /// continue from it, as long as the file is unchanged since it was read or [saved](LoanedSequence::save). Other
    /// requests with the same beginning can use it too, if nothing was evicted. It replaces an earlier sequence of
    /// the file. A sequence without a session file is dropped.
    pub fn hold(&mut self, session: LoanedSequence) {
        let LoanedSequence {
            mut sequence,
            file: Some(file),
            room,
        } = session
        else {
            return;
        };
        drop(room);
        if can_share(&sequence) {
            // In models with recurrent layers only idle sequences are searched.
            drop(share_prefix(&mut sequence));
        }
        self.is_blocked = false;
        self.idle.keep_session(sequence, file);
    }

    /// True if the sequence of the session file's current state is held.
    pub fn holds(&self, path: &Path) -> bool {
        FileState::find(path).is_some_and(|file| self.idle.session(&file).is_some())
    }

    /// Removes the sequence of a session file from the scheduler; `None` if it is not held.
    pub fn take_held(&mut self, path: &Path) -> Option<LoanedSequence> {
        let file = FileState::find(path)?;
        let sequence = self.idle.take_session(&file)?;
        Some(LoanedSequence {
            sequence,
            file: Some(file),
            room: self.promised.take(Amount::PLACE),
        })
    }

    /// Checks that a request can continue from the session it names.
    pub(super) fn check_session(&self, request: &Request, options: &SequenceOptions) -> Result<(), EngineError> {
        let Some(path) = &request.session else {
            return Ok(());
        };
        let held = FileState::find(path).and_then(|file| self.idle.session(&file));
        let held = held.ok_or_else(|| EngineError::SessionNotHeld(path.clone()))?;
        if request.prompt_probabilities.is_some() {
            let requirement = "the whole prompt has to be read for it: name no session";
            return Err(EngineError::option("prompt_probabilities", "asked for", requirement));
        }
        if !held.options().makes_the_same_pages(options) {
            let requirement = format!(
                "the session was read under {0}: use `prefill={0}`, or another session",
                held.options().prefill
            );
            return Err(EngineError::option("prefill", &options.prefill, requirement));
        }
        if !options.decode.follows_from_keys() || !can_share(held) {
            let requirement = "this policy learns from every query of the text, which a session does not keep: use another policy, such as full";
            return Err(EngineError::option("decode", &options.decode, requirement));
        }
        let shared = session_beginning(held, &request.tokens);
        if goes_back_to(held, shared) {
            Ok(())
        } else {
            Err(EngineError::OtherText {
                path: path.clone(),
                saved: held.tokens().len(),
                shared: common_prefix(held.tokens(), &request.tokens),
            })
        }
    }

    /// A sequence that continues from the session that a request names.
    pub(super) fn fork_session(
        &mut self,
        path: &Path,
        tokens: &[u32],
        options: &SequenceOptions,
    ) -> Result<Sequence, EngineError> {
        let not_held = || EngineError::SessionNotHeld(path.to_owned());
        let held = FileState::find(path).and_then(|file| self.idle.session_mut(&file));
        let held = held.ok_or_else(not_held)?;
        let shared = session_beginning(held, tokens);
        let mut fork = fork_beginning(held, shared, options)?.ok_or_else(not_held)?;
        // The prompt contains the complete text, so nothing is lost.
        fork.turn_for(tokens.len());
        Ok(fork)
    }

    /// Drops idle sequences until there is enough room; returns false if the others need it all.
    pub(super) fn make_room(&mut self, wanted: Amount) -> bool {
        loop {
            let places = self.alive() + wanted.sequences <= self.engine.options().machine.sequences;
            let bytes = self.taken_bytes().saturating_add(wanted.bytes) <= self.capacity_bytes();
            if places && bytes {
                return true;
            }
            if !self.drop_oldest_idle() {
                return false;
            }
        }
    }

    /// Drops the least recently used idle sequence that no waiting request names; returns false if there is none.
    pub(super) fn drop_oldest_idle(&mut self) -> bool {
        self.idle.drop_oldest(|path| is_named(&self.waiting, path))
    }
}

/// True if a waiting request names a session file.
pub(super) fn is_named(waiting: &[Waiting], path: &Path) -> bool {
    waiting
        .iter()
        .any(|waiting| waiting.request.session.as_deref() == Some(path))
}

/// Number of a sequence's tokens from which a prompt continues: the prompt's last token is left to be read.
fn session_beginning(sequence: &Sequence, prompt: &[u32]) -> usize {
    let shared = common_prefix(sequence.tokens(), prompt);
    shared.min(prompt.len().saturating_sub(1))
}
