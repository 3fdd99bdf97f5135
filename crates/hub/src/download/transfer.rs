//! Downloads files into the cache: continues partial files, checks them, and then renames them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use riffle_files::{gguf_shard, gguf_stem};
use riffle_system::files::free_bytes;

use super::client::{Answer, Client, Trouble};
use super::listing::RemoteFile;
use super::look::{Beginning, Look};
use super::sum::{Sum, Summing};
use super::watch::Watch;
use crate::HubError;
use crate::cache::{Lock, Repository};
use crate::progress::Activity;

/// Downloads of one repository at one commit.
pub(crate) struct Transfer<'a, 'l> {
    client: &'a Client,
    repository: &'a Repository,
    commit: &'a str,
    look: Look<'l>,
    watch: Watch<'a>,
    bytes_downloaded: u64,
}

/// A partial file, with its length and the checksum so far.
struct Partial {
    path: PathBuf,
    file: File,
    position: u64,
    summing: Summing,
}

/// Free bytes that a download leaves on the disk.
const ROOM_LEFT: u64 = 64 << 20;
/// Bytes of one read of a partial file.
const BLOCK: usize = 1 << 20;
/// Delay between two checks of a lock.
const LOCK_WAIT: Duration = Duration::from_millis(200);

/// True for a later file of a split GGUF model.
fn is_later_shard(path: &str) -> bool {
    let shard = gguf_stem(path).and_then(gguf_shard);
    shard.is_some_and(|shard| shard.number > 1)
}

impl<'a, 'l> Transfer<'a, 'l> {
    pub(crate) fn new(
        client: &'a Client,
        repository: &'a Repository,
        commit: &'a str,
        look: Look<'l>,
        watch: Watch<'a>,
    ) -> Self {
        Self {
            client,
            repository,
            commit,
            look,
            watch,
            bytes_downloaded: 0,
        }
    }

    /// Bytes received over the network.
    pub(crate) fn bytes_downloaded(&self) -> u64 {
        self.bytes_downloaded
    }

    /// Shows the settings in the snapshot, before the weights are downloaded.
    pub(crate) fn show_settings(&mut self, name: &str, weight_bytes: u64) -> Result<(), HubError> {
        let path = self.repository.snapshot(self.commit).join(name);
        self.look.show(&Beginning::Settings(&path, weight_bytes))
    }

    /// Downloads files into the snapshot, small ones first. A split GGUF model's first file precedes the others,
    /// because it describes the model.
    pub(crate) fn fetch_all(&mut self, files: &[RemoteFile]) -> Result<(), HubError> {
        let mut files: Vec<&RemoteFile> = files.iter().collect();
        files.sort_by_key(|file| (is_later_shard(&file.path), file.bytes));
        let sum_of = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
        let found = sum_of(&mut files.iter().map(|file| self.bytes_there(file)));
        let progress = &mut self.watch.progress;
        progress.bytes = sum_of(&mut files.iter().map(|file| file.bytes));
        (progress.bytes_done, progress.bytes_found) = (found, found);
        self.check_room(self.watch.progress.bytes.saturating_sub(found))?;
        for file in files {
            let rest = self.watch.progress.bytes_done - self.bytes_there(file).min(self.watch.progress.bytes_done);
            self.fetch(file, rest)?;
            self.watch.progress.bytes_done = rest + file.bytes;
        }
        self.watch.begin(Activity::Downloading)
    }

    /// Downloads one file into the snapshot; `rest` is the number of bytes of other finished files.
    fn fetch(&mut self, file: &RemoteFile, rest: u64) -> Result<(), HubError> {
        let sum = &file.sum;
        file.path.clone_into(&mut self.watch.progress.file);
        if !self.is_there(file) {
            let lock = self.repository.locks().join(format!("{}.lock", sum.digits()));
            let _lock = loop {
                if let Some(lock) = Lock::take(&lock)? {
                    break lock;
                }
                self.watch.begin(Activity::WaitingForProcess)?;
                std::thread::sleep(LOCK_WAIT);
            };
            // The process that had the lock may have downloaded the file.
            if !self.is_there(file) {
                self.download(file, sum, rest)?;
            }
        }
        self.repository.link(self.commit, &file.path, sum.digits())
    }

    fn download(&mut self, file: &RemoteFile, sum: &Sum, rest: u64) -> Result<(), HubError> {
        let path = self.repository.partial(sum.digits());
        let mut partial = Partial::open(path, file, sum)?;
        self.read_again(&mut partial, file, rest)?;
        let mut was_there = partial.position > 0;
        loop {
            self.watch.begin(Activity::Downloading)?;
            let (client, commit) = (self.client, self.commit);
            let (downloaded, look) = (&mut self.bytes_downloaded, &mut self.look);
            client.with_tries(&mut self.watch, &mut |watch| {
                watch.progress.bytes_done = rest + partial.position;
                if partial.position == file.bytes {
                    return Ok(());
                }
                let answer = client.ask(&client.file(commit, &file.path), partial.position, watch)?;
                partial.take_up(&answer, file, sum)?;
                partial.fill(&answer, file, (watch, look), (rest, downloaded))
            })?;
            let found = std::mem::replace(&mut partial.summing, sum.begin(file.bytes)).end();
            if found == *sum {
                return partial.finish(self.repository.blob(sum.digits()));
            }
            if !was_there {
                fs::remove_file(&partial.path).map_err(HubError::io(&partial.path))?;
                return Err(HubError::Sum {
                    file: file.path.clone(),
                    found: found.to_string(),
                    stated: sum.to_string(),
                });
            }
            // Bytes of an earlier process may be damaged, so the download restarts.
            partial.restart(file, sum)?;
            was_there = false;
        }
    }

    /// Hashes the bytes of an earlier download.
    fn read_again(&mut self, partial: &mut Partial, file: &RemoteFile, rest: u64) -> Result<(), HubError> {
        let length = partial.file.metadata().map_err(HubError::io(&partial.path))?.len();
        if length > file.bytes {
            partial.file.set_len(0).map_err(HubError::io(&partial.path))?;
            return Ok(());
        }
        self.watch.begin(Activity::Checking)?;
        let mut block = vec![0; BLOCK];
        loop {
            let read = partial.file.read(&mut block).map_err(HubError::io(&partial.path))?;
            if read == 0 {
                return Ok(());
            }
            partial.summing.add(&block[..read]);
            partial.position += read as u64;
            self.watch.progress.bytes_done = rest + partial.position;
            self.watch.tick()?;
        }
    }

    fn is_there(&self, file: &RemoteFile) -> bool {
        let metadata = self.repository.whole(self.commit, &file.path, file.sum.digits());
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.bytes)
    }

    /// Bytes of a file that are already downloaded.
    fn bytes_there(&self, file: &RemoteFile) -> u64 {
        if self.is_there(file) {
            return file.bytes;
        }
        let partial = fs::metadata(self.repository.partial(file.sum.digits()));
        let length = partial.map_or(0, |metadata| metadata.len());
        if length > file.bytes { 0 } else { length }
    }

    fn check_room(&self, needed: u64) -> Result<(), HubError> {
        let folder = self.repository.folder();
        let free = match free_bytes(&folder) {
            Ok(free) => free,
            Err(error) => return Err(HubError::io(folder)(error)),
        };
        if needed > 0 && needed.saturating_add(ROOM_LEFT) > free {
            Err(HubError::NoRoom { needed, free, folder })
        } else {
            Ok(())
        }
    }
}

impl Partial {
    fn open(path: PathBuf, file: &RemoteFile, sum: &Sum) -> Result<Self, HubError> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        Ok(Self {
            file: riffle_files::open_no_link(&path, options).map_err(HubError::file(&path))?,
            path,
            position: 0,
            summing: sum.begin(file.bytes),
        })
    }

    /// Truncates the partial file.
    fn restart(&mut self, file: &RemoteFile, sum: &Sum) -> Result<(), HubError> {
        self.position = 0;
        self.summing = sum.begin(file.bytes);
        let emptied = self
            .file
            .set_len(0)
            .and_then(|()| std::io::Seek::rewind(&mut self.file));
        emptied.map_err(HubError::io(&self.path))
    }

    /// Checks that an answer continues at the end of the file; if the answer starts over, so does the file.
    fn take_up(&mut self, answer: &Answer, file: &RemoteFile, sum: &Sum) -> Result<(), Trouble> {
        let other_length = |length: u64| {
            answer.refused(format!(
                "{} is {length} bytes long there, and {} in the hub's list",
                file.path, file.bytes
            ))
        };
        match answer.head.status {
            206 => {
                let range = answer.head.header("content-range").and_then(first_and_length);
                match range {
                    Some((first, None)) if first == self.position => Ok(()),
                    Some((first, Some(length))) if first == self.position && length == file.bytes => Ok(()),
                    Some((first, Some(length))) if first == self.position => Err(other_length(length)),
                    _ => {
                        self.restart(file, sum)?;
                        Err(answer.trouble("it sends another part of the file than it was asked for".to_owned()))
                    }
                }
            }
            416 => {
                self.restart(file, sum)?;
                Err(answer.trouble("it has no such part of the file".to_owned()))
            }
            _ => {
                let length = answer
                    .head
                    .header("content-length")
                    .and_then(|length| length.parse().ok());
                if let Some(length) = length.filter(|length| *length != file.bytes) {
                    return Err(other_length(length));
                }
                // The server does not support ranges, or the request had none.
                if self.position > 0 {
                    self.restart(file, sum)?;
                }
                Ok(())
            }
        }
    }

    /// Writes bytes until the file is complete. `counts` has the bytes of other files, and counts received bytes.
    fn fill(
        &mut self,
        answer: &Answer,
        file: &RemoteFile,
        (watch, look): (&mut Watch<'_>, &mut Look<'_>),
        counts: (u64, &mut u64),
    ) -> Result<(), Trouble> {
        let (rest, downloaded) = counts;
        while self.position < file.bytes {
            let Some(bytes) = answer.next(watch)? else {
                return Err(answer.trouble("the connection was cut".to_owned()));
            };
            if bytes.len() as u64 > file.bytes - self.position {
                return Err(answer.refused(format!("{} is longer there than in the hub's list", file.path)));
            }
            self.summing.add(&bytes);
            self.file.write_all(&bytes).map_err(HubError::io(&self.path))?;
            self.position += bytes.len() as u64;
            *downloaded += bytes.len() as u64;
            look.pass(self.position, &self.path, file)?;
            watch.progress.bytes_done = rest + self.position;
            watch.tick()?;
        }
        Ok(())
    }

    /// Renames the file to its final name, once its bytes are on the disk.
    fn finish(self, blob: PathBuf) -> Result<(), HubError> {
        let finished = self.file.sync_all().and_then(|()| fs::rename(&self.path, &blob));
        finished.map_err(HubError::io(blob))
    }
}

/// The first byte and, if known, the whole length of a range such as `bytes 5-9/10`.
fn first_and_length(range: &str) -> Option<(u64, Option<u64>)> {
    let (part, length) = range.trim().strip_prefix("bytes ")?.split_once('/')?;
    let first = part.split_once('-')?.0.trim().parse().ok()?;
    match length.trim() {
        "*" => Some((first, None)),
        length => Some((first, Some(length.parse().ok()?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_answers_are_read() {
        assert_eq!(first_and_length("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(first_and_length("bytes 5-9/*"), Some((5, None)));
        for range in ["", "bytes */10", "bytes 5-9", "5-9/10", "bytes a-9/10", "bytes 5-9/ten"] {
            assert_eq!(first_and_length(range), None, "{range}");
        }
    }
}
