//! Compresses a session file.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use riffle_kv::KvCache;
use serde::Serialize;

use crate::run::session_file::SessionFile;
use crate::{CompressOptions, Compressed, Engine, EngineError, PrefillProgress, SessionReport};

/// The outcome of compressing a session.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct CompressReport {
    /// The method and the share, such as `kvzip:0.3`.
    pub compress: String,
    /// Pairs kept and freed.
    #[serde(flatten)]
    pub compressed: Compressed,
    /// Milliseconds of the compression.
    pub compress_ms: f64,
    /// Size of the file before, in bytes.
    pub file_bytes_before: u64,
    /// The file now.
    pub session: SessionReport,
}

/// Restores a session from a file, [compresses](crate::compress_sequence) it and saves it to the same file.
///
/// # Errors
/// As [`crate::Sequence::restore`], [`crate::compress_sequence`] and [`crate::Sequence::save`]. The file is then
/// unchanged.
pub fn compress_session(
    engine: &Arc<Engine>,
    path: &Path,
    options: &CompressOptions,
    observe: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
) -> Result<CompressReport, EngineError> {
    // A missing file is reported before its folder is touched.
    KvCache::saved_identity(path)?;
    let mut file = SessionFile::open(path)?;
    let mut session = file.session(engine)?;
    let file_bytes_before = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let start = Instant::now();
    let compressed = session.compress(options, observe)?;
    let compress_ms = start.elapsed().as_secs_f64() * 1e3;
    file.save(&session)?;
    Ok(CompressReport {
        compress: options.to_string(),
        compressed,
        compress_ms,
        file_bytes_before,
        session: file.report,
    })
}
