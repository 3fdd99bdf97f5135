//! A hash that identifies a model.

use std::path::Path;

use rayon::prelude::*;
use twox_hash::XxHash3_128;

use crate::fields::read_text_file;
use crate::load::open;
use crate::{LoadOptions, ModelError};

/// Bytes per piece; pieces are hashed on all threads.
const PIECE_BYTES: usize = 16 << 20;

/// A hash of a model's settings and of every byte of its weights, for data kept between runs. It includes the layers
/// after a pooled state. The tokenizer is excluded, because keys and values do not depend on it.
///
/// It reads the weight files once, which takes seconds for many gigabytes.
///
/// # Errors
/// As [`inspect`](crate::inspect).
pub fn fingerprint(path: impl AsRef<Path>) -> Result<u128, ModelError> {
    fingerprint_with(path, &LoadOptions::default())
}

/// As [`fingerprint`], for a model that needs the families of `options`. Other options do not affect the hash.
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
    for weights in std::iter::once(&parts.weights).chain(parts.embedding.weights()) {
        weights.for_each_file(|bytes| {
            hash.write(&(bytes.len() as u64).to_le_bytes());
            let pieces: Vec<u128> = bytes.par_chunks(PIECE_BYTES).map(XxHash3_128::oneshot).collect();
            for piece in pieces {
                hash.write(&piece.to_le_bytes());
            }
        })?;
    }
    Ok(hash.finish_128())
}
