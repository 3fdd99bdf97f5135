//! A number that tells one model from another.

use std::path::Path;

use rayon::prelude::*;
use twox_hash::XxHash3_128;

use crate::fields::read_text_file;
use crate::load::open;
use crate::{LoadOptions, ModelError};

/// Bytes hashed in one piece; pieces are hashed on all threads.
const PIECE_BYTES: usize = 16 << 20;

/// A hash of a model's settings and of every byte of its weights, for what is kept from one run to the next. The
/// tokenizer is not part of it: it is text that depends on it, not keys and values.
///
/// It reads the weight files once: a matter of seconds for many gigabytes.
///
/// # Errors
/// As [`inspect`](crate::inspect).
pub fn fingerprint(path: impl AsRef<Path>) -> Result<u128, ModelError> {
    fingerprint_with(path, &LoadOptions::default())
}

/// As [`fingerprint`], for a model that needs the families of `options`; nothing else of them is part of the hash.
pub fn fingerprint_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<u128, ModelError> {
    let path = path.as_ref();
    let parts = open(path, &LoadOptions::default().with_families(options.families))?;
    let mut hash = XxHash3_128::new();
    if parts.path.is_dir() {
        let settings = parts.fields.path();
        let bytes = read_text_file(settings)?.ok_or_else(|| ModelError::NotFound {
            path: settings.to_owned(),
        })?;
        hash.write(&bytes);
    }
    parts.weights.for_each_file(|bytes| {
        hash.write(&(bytes.len() as u64).to_le_bytes());
        let pieces: Vec<u128> = bytes.par_chunks(PIECE_BYTES).map(XxHash3_128::oneshot).collect();
        for piece in pieces {
            hash.write(&piece.to_le_bytes());
        }
    })?;
    Ok(hash.finish_128())
}
