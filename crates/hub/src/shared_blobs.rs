//! Bytes that several repositories of a cache share, as in `huggingface_hub` 2.
//!
//! `blobs/ab/HASH` in the cache has the bytes, `models--owner--name/blobs/SUM` is a link to it, and
//! `blobs/ab/HASH.refs` lists these links. Bytes without a list stay, because `hf cache prune` removes them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::HubError;
use crate::cache::Lock;

/// Limit on the bytes of a list of links.
const LARGEST_LIST: u64 = 16 << 20;
/// Hexadecimal digits of a hash.
const HASH_DIGITS: usize = 64;

/// Removes the bytes of the removed link `blob` if no other link needs them; returns the number of freed bytes.
pub(crate) fn release(cache: &Path, blob: &Path, target: &Path) -> Result<u64, HubError> {
    let Some(shared) = shared_blob(cache, blob, target) else {
        return Ok(0);
    };
    let (list, lock) = (with_ending(&shared, "refs"), with_ending(&shared, "lock"));
    let Ok(metadata) = fs::symlink_metadata(&shared) else {
        return Ok(0);
    };
    let Ok(links) = riffle_files::read_text(&list, LARGEST_LIST) else {
        return Ok(0);
    };
    let Some(_lock) = Lock::take(&lock)? else {
        return Ok(0);
    };
    let is_needed = |line: &str| {
        let link = cache.join(line);
        let is_below = Path::new(line)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let target = fs::read_link(&link);
        is_below && target.is_ok_and(|target| shared_blob(cache, &link, &target).as_ref() == Some(&shared))
    };
    if !metadata.is_file() || links.lines().any(is_needed) {
        return Ok(0);
    }
    fs::remove_file(&shared).map_err(HubError::io(&shared))?;
    fs::remove_file(&list).map_err(HubError::io(&list))?;
    Ok(metadata.len())
}

/// The file of a link in the cache's shared folder; `None` if the link leads elsewhere.
fn shared_blob(cache: &Path, link: &Path, target: &Path) -> Option<PathBuf> {
    let folder = link.parent()?.canonicalize().ok()?;
    let place = folder.join(target.parent()?).canonicalize().ok()?;
    let hash = target.file_name().and_then(OsStr::to_str)?;
    let is_hash = hash.len() == HASH_DIGITS && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let common = cache.canonicalize().ok()?.join("blobs").join(hash.get(..2)?);
    (is_hash && place == common).then(|| common.join(hash))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    path.with_file_name(format!("{name}.{ending}"))
}
