//! Notes under names of the caller, which belong to no text.

use riffle_system::files::sync_folder;
use twox_hash::XxHash3_128;

use super::PrefixCache;
use super::block::Note;
use super::folder::failed;
use super::index::Entry;
use crate::KvError;

impl PrefixCache {
    /// The note stored under `name`. A damaged file is removed.
    ///
    /// # Errors
    /// As [`known_tokens`](Self::known_tokens).
    pub fn named_note(&self, name: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let (_lock, mut index) = self.locked_index()?;
        let owner = XxHash3_128::oneshot(name);
        let key = Note::new(owner, &[]).key;
        if index.get(key)?.is_none() {
            return Ok(None);
        }
        let found = Note::read(&self.path_of(key), owner)?;
        if found.is_some() {
            index.touch(&[key])?;
        } else {
            self.forget(&mut index, key)?;
        }
        Ok(found)
    }

    /// Stores a note under `name`, in place of an earlier one. It counts in the budget and leaves like a block.
    /// Returns false if the budget is too small for it.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn store_named_note(&self, name: &[u8], bytes: &[u8]) -> Result<bool, KvError> {
        let note = Note::new(XxHash3_128::oneshot(name), bytes);
        let entry = Entry {
            depth: 0,
            bytes: note.file_bytes(),
        };
        if entry.bytes > self.budget_bytes {
            return Ok(false);
        }
        let _lock = self.lock()?;
        let mut index = self.index()?;
        self.sweep(&index)?;
        self.check_writable()?;
        if index.get(note.key)?.is_some() {
            index.remove(&[note.key])?;
            self.remove_block(note.key)?;
        }
        self.make_room(&mut index, entry.bytes)?;
        note.write(&self.path_of(note.key))?;
        sync_folder(&self.folder).map_err(|source| failed("write", &self.folder, source))?;
        index.insert(std::iter::once((note.key, entry)), &[])?;
        Ok(true)
    }
}
