//! The index of blocks, with their last uses.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::panic::{self, UnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Once;

use redb::backends::FileBackend;
use redb::{Builder, Database, ReadOnlyDatabase, ReadableDatabase, ReadableTable, TableDefinition};

use crate::KvError;
use crate::output::open_regular;

/// Depth of a block in its text, bytes, last use.
type Record = (u32, u64, u64);

const BLOCKS: TableDefinition<'_, u128, Record> = TableDefinition::new("blocks");
/// Uses are counted, not timed, because clocks can go back.
const COUNTERS: TableDefinition<'_, &str, u64> = TableDefinition::new("counters");
const USES: &str = "uses";
/// First bytes of every store file.
const MAGIC: &[u8] = b"redb\x1A\x0A\xA9\x0D\x0A";

/// A block in the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Number of blocks before this one.
    pub(super) depth: u32,
    pub(super) bytes: u64,
}

/// The index; changes are on the disk when a call returns.
pub(super) struct Index {
    path: PathBuf,
    database: Store,
}

enum Store {
    Whole(Database),
    /// The index of a read-only folder: nothing is recorded, removed or repaired.
    ReadOnly(ReadOnlyDatabase),
    /// A read-only folder without an index.
    None,
}

impl Index {
    /// Opens the index. A damaged index is renamed to `index.redb.damaged`, replacing an older file of this name, and
    /// an empty index replaces it. Only the list of kept blocks is lost, and the second value returned is true.
    ///
    /// A file without an index's first bytes belongs to another program and is an error, unless `has_blocks` finds
    /// blocks beside it.
    pub(super) fn open(path: &Path, has_blocks: impl Fn() -> bool) -> Result<(Self, bool), KvError> {
        // The store may panic on damaged bytes.
        match quietly(|| Self::open_whole(path)) {
            Ok(Ok(index)) => return Ok((index, false)),
            Ok(Err(error)) if !is_damage(&error, &has_blocks) => return Err(index_error(path, error)),
            _ => {}
        }
        let mut aside = path.as_os_str().to_owned();
        aside.push(".damaged");
        std::fs::rename(path, aside).map_err(|source| KvError::File {
            action: "set aside",
            path: path.to_owned(),
            source,
        })?;
        let index = Self::open_whole(path).map_err(|error| index_error(path, error))?;
        Ok((index, true))
    }

    /// Opens the index and reads it completely.
    fn open_whole(path: &Path) -> Result<Self, redb::Error> {
        let backend = FileBackend::new(open_file(path)?)?;
        let index = Self {
            path: path.to_owned(),
            database: Store::Whole(Builder::new().create_with_backend(backend)?),
        };
        index.try_change(|_, _| Ok(()))?;
        index.try_list()?;
        Ok(index)
    }

    /// Opens the index of a read-only folder and reads it completely.
    pub(super) fn open_to_read(path: &Path) -> Result<Self, KvError> {
        let open = || {
            let file = match begun(path, OpenOptions::new().read(true)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Store::None),
                file => file?,
            };
            let database = Builder::new().open_read_only_with_backend(FileBackend::new(file)?)?;
            Ok::<_, redb::Error>(Store::ReadOnly(database))
        };
        let opened = quietly(|| {
            let index = Self {
                path: path.to_owned(),
                database: open()?,
            };
            index.try_list()?;
            Ok::<_, redb::Error>(index)
        });
        let damaged = |problem: String| KvError::Index {
            folder: path.parent().unwrap_or(path).to_owned(),
            problem,
        };
        match opened {
            Ok(opened) => opened.map_err(|error| damaged(error.to_string())),
            Err(_) => Err(damaged("it is damaged".to_owned())),
        }
    }

    /// True if the index is writable.
    pub(super) fn is_writable(&self) -> bool {
        matches!(self.database, Store::Whole(_))
    }

    /// The current blocks; `None` if there are none.
    fn blocks(&self) -> Result<Option<redb::ReadOnlyTable<u128, Record>>, redb::Error> {
        let reading = match &self.database {
            Store::Whole(database) => database.begin_read()?,
            Store::ReadOnly(database) => database.begin_read()?,
            Store::None => return Ok(None),
        };
        Ok(Some(reading.open_table(BLOCKS)?))
    }

    pub(super) fn get(&self, key: u128) -> Result<Option<Entry>, KvError> {
        let read = || -> Result<Option<Entry>, redb::Error> {
            let Some(table) = self.blocks()? else {
                return Ok(None);
            };
            Ok(table.get(key)?.map(|entry| {
                let (depth, bytes, _) = entry.value();
                Entry { depth, bytes }
            }))
        };
        read().map_err(|error| self.error(error))
    }

    /// The keys of all entries.
    pub(super) fn keys(&self) -> Result<HashSet<u128>, KvError> {
        Ok(self.list()?.into_iter().map(|(key, _)| key).collect())
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> Result<u64, KvError> {
        Ok(self
            .list()?
            .iter()
            .map(|(_, (_, bytes, _))| *bytes)
            .fold(0, u64::saturating_add))
    }

    /// The blocks to remove so that the others take at most `room_bytes`: the least recently used first; of one text
    /// the last blocks first, because a block is found through its parents.
    pub(super) fn oldest_beyond(&self, room_bytes: u64) -> Result<Vec<u128>, KvError> {
        let mut blocks = self.list()?;
        blocks.sort_unstable_by_key(|(key, (depth, _, used))| (*used, u32::MAX - depth, *key));
        let mut bytes: u64 = blocks
            .iter()
            .map(|(_, (_, bytes, _))| *bytes)
            .fold(0, u64::saturating_add);
        let beyond = blocks.iter().take_while(|(_, (_, block, _))| {
            let beyond = bytes > room_bytes;
            bytes = bytes.saturating_sub(*block);
            beyond
        });
        Ok(beyond.map(|(key, _)| *key).collect())
    }

    /// Records a use of blocks.
    pub(super) fn touch(&mut self, keys: &[u128]) -> Result<(), KvError> {
        if keys.is_empty() {
            return Ok(());
        }
        self.insert(std::iter::empty(), keys)
    }

    /// Adds new blocks, and records a use of the blocks before them.
    pub(super) fn insert(
        &mut self,
        entries: impl Iterator<Item = (u128, Entry)>,
        used: &[u128],
    ) -> Result<(), KvError> {
        self.change(|blocks, now| {
            for key in used {
                let entry = blocks.get(key)?.map(|entry| entry.value());
                if let Some((depth, bytes, _)) = entry {
                    blocks.insert(key, (depth, bytes, now))?;
                }
            }
            for (key, entry) in entries {
                blocks.insert(key, (entry.depth, entry.bytes, now))?;
            }
            Ok(())
        })
    }

    pub(super) fn remove(&mut self, keys: &[u128]) -> Result<(), KvError> {
        if keys.is_empty() {
            return Ok(());
        }
        self.change(|blocks, _| {
            for key in keys {
                blocks.remove(key)?;
            }
            Ok(())
        })
    }

    fn list(&self) -> Result<Vec<(u128, Record)>, KvError> {
        self.try_list().map_err(|error| self.error(error))
    }

    fn try_list(&self) -> Result<Vec<(u128, Record)>, redb::Error> {
        let Some(table) = self.blocks()? else {
            return Ok(Vec::new());
        };
        let entries = table.iter()?.map(|entry| {
            let (key, value) = entry?;
            Ok((key.value(), value.value()))
        });
        entries
            .collect::<Result<_, redb::StorageError>>()
            .map_err(redb::Error::from)
    }

    fn change(
        &self,
        work: impl FnOnce(&mut redb::Table<'_, u128, Record>, u64) -> Result<(), redb::Error>,
    ) -> Result<(), KvError> {
        self.try_change(work).map_err(|error| self.error(error))
    }

    /// Runs one transaction: `work` gets the blocks and the number of this use. Does nothing if the index is
    /// read-only.
    fn try_change(
        &self,
        work: impl FnOnce(&mut redb::Table<'_, u128, Record>, u64) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        let Store::Whole(database) = &self.database else {
            return Ok(());
        };
        let transaction = database.begin_write()?;
        {
            let mut counters = transaction.open_table(COUNTERS)?;
            let now = counters.get(USES)?.map_or(0, |uses| uses.value()).saturating_add(1);
            counters.insert(USES, now)?;
            work(&mut transaction.open_table(BLOCKS)?, now)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn error(&self, error: redb::Error) -> KvError {
        index_error(&self.path, error)
    }
}

/// The store's file: a new one, or one with a store's first bytes.
fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    begun(path, &mut options)
}

/// A file that is empty or has a store's first bytes.
fn begun(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let mut file = open_regular(path, options)?;
    let mut begin = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    file.rewind()?;
    if !begin.is_empty() && begin != MAGIC {
        let name = path.file_name().unwrap_or_default().display();
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{name} there is no index of a prefix cache: use another folder"),
        ));
    }
    Ok(file)
}

thread_local! {
    /// True while this thread catches a panic and reports it as an error.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs work that may panic, without a panic message on standard error.
fn quietly<T>(work: impl FnOnce() -> T + UnwindSafe) -> std::thread::Result<T> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |information| {
            if !IS_QUIET.get() {
                before(information);
            }
        }));
    });
    IS_QUIET.set(true);
    let outcome = panic::catch_unwind(work);
    IS_QUIET.set(false);
    outcome
}

/// True if the file's content is at fault, instead of the system or another program.
fn is_damage(error: &redb::Error, has_blocks: impl Fn() -> bool) -> bool {
    match error {
        redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => has_blocks(),
        redb::Error::Io(error) => error.kind() == io::ErrorKind::UnexpectedEof,
        redb::Error::DatabaseAlreadyOpen => false,
        _ => true,
    }
}

fn index_error(path: &Path, error: redb::Error) -> KvError {
    let problem = match error {
        // An error of the system or of another program's file: delete nothing.
        redb::Error::Io(error) => error.to_string(),
        error => format!(
            "{error}; remove {} and the .block files beside it, or use another folder",
            path.display()
        ),
    };
    KvError::Index {
        folder: path.parent().unwrap_or(path).to_owned(),
        problem,
    }
}
