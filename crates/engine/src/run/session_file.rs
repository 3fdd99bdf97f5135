//! The file of a run's session: restored before, saved after, and locked meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use riffle_kv::{KvCache, KvError, PathLock};
use serde::Serialize;

use crate::sequence::common_prefix;
use crate::{Engine, EngineError, Session};

/// The outcome of saving a session's file.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SessionReport {
    /// Path of the file.
    pub path: String,
    /// Number of tokens in the file before the run.
    pub restored_tokens: usize,
    /// Milliseconds to restore, without the model's fingerprint; 0 without a file.
    pub restore_ms: f64,
    /// Milliseconds to save.
    pub save_ms: f64,
    /// Bytes of the file now.
    pub file_bytes: u64,
}

/// A session's file, locked.
pub(crate) struct SessionFile {
    path: PathBuf,
    _lock: PathLock,
    pub(crate) report: SessionReport,
}

impl SessionFile {
    /// Locks the file, after checking that a session can be saved there.
    pub(crate) fn open(path: &Path) -> Result<Self, EngineError> {
        KvCache::check_save(path)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: PathLock::take(path)?,
            report: SessionReport {
                path: path.display().to_string(),
                restored_tokens: 0,
                restore_ms: 0.0,
                save_ms: 0.0,
                file_bytes: 0,
            },
        })
    }

    /// The session in the file, or an empty one without a file.
    pub(crate) fn session(&mut self, engine: &Arc<Engine>) -> Result<Session, EngineError> {
        let there = self.path.try_exists().map_err(|source| KvError::File {
            action: "read",
            path: self.path.clone(),
            source,
        })?;
        if !there {
            return Session::new(engine);
        }
        engine.fingerprint()?;
        let start = Instant::now();
        let session = Session::restore(engine, &self.path)?;
        self.report.restore_ms = start.elapsed().as_secs_f64() * 1e3;
        self.report.restored_tokens = session.tokens().len();
        Ok(session)
    }

    /// [`Session::keep_shared`], unless a prompt would discard most of the session, which means a wrong file.
    pub(crate) fn keep_shared(&self, session: &mut Session, tokens: &[u32]) -> Result<usize, EngineError> {
        let saved = session.tokens().len();
        let shared = common_prefix(session.tokens(), tokens);
        if 2 * shared < saved && shared < tokens.len() {
            return Err(EngineError::OtherText {
                path: self.path.clone(),
                saved,
                shared,
            });
        }
        session.keep_shared(tokens)
    }

    pub(crate) fn save(&mut self, session: &Session) -> Result<(), EngineError> {
        let start = Instant::now();
        session.sequence().save(&self.path)?;
        self.report.save_ms = start.elapsed().as_secs_f64() * 1e3;
        self.report.file_bytes = std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        Ok(())
    }
}
