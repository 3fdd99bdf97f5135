//! Files: reads and writes at an offset, permissions, links and disks.

use std::fs::{DirBuilder, File, FileType, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::platform;

/// The source of a read's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Completely in the system's file cache.
    Cached,
    /// The read had to wait, or its source is unknown.
    OnDisk,
}

/// A file for this process only.
#[derive(Debug)]
pub struct UnnamedFile {
    /// Open for reading and writing.
    pub file: File,
    /// The name, if the system cannot remove it while the file is open.
    pub name: Option<RemovedOnDrop>,
}

/// The name of a file that is removed on drop.
#[derive(Debug)]
pub struct RemovedOnDrop(pub(crate) PathBuf);

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Creates a file that disappears with this process. On Unix its name is removed immediately; Windows removes it with
/// the last handle.
///
/// # Errors
/// If the file cannot be created, for example because its name exists.
pub fn create_unnamed(path: &Path) -> io::Result<UnnamedFile> {
    platform::create_unnamed(path)
}

/// Reads some bytes from `offset` on: 0 at the end of the file.
///
/// # Errors
/// Errors of the system.
pub fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    platform::read_at(file, bytes, offset)
}

/// Fills `bytes` from `offset` on.
///
/// # Errors
/// Errors of the system; [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the file ends earlier.
pub fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    platform::read_exact_at(file, bytes, offset)
}

/// Writes all of `bytes` from `offset` on.
///
/// # Errors
/// Errors of the system.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    platform::write_all_at(file, bytes, offset)
}

/// Fills `targets` with consecutive parts of the file from `offset` on. On Linux it uses one request if the system
/// supports this; otherwise one request per target.
///
/// # Errors
/// As [`read_exact_at`].
pub fn read_run_at(file: &File, targets: Vec<&mut [u8]>, offset: u64) -> io::Result<Found> {
    platform::read_run_at(file, targets, offset)
}

/// Announces that these bytes will be read, so that the disk can process several requests at a time. It may have no
/// effect.
pub fn expect_read(file: &File, offset: u64, bytes: u64) {
    platform::expect_read(file, offset, bytes);
}

/// Writes a file to the disk and drops it from the system's cache. The next reads are then as slow as the disk. On
/// systems that cannot drop it, it is only written out.
///
/// # Errors
/// If it cannot be written out.
pub fn forget_cached(file: &File) -> io::Result<()> {
    file.sync_data()?;
    platform::forget_cached(file)
}

/// Fills each target with a separate request.
pub(crate) fn read_each_at<'t>(
    file: &File,
    targets: impl Iterator<Item = &'t mut [u8]>,
    mut offset: u64,
) -> io::Result<()> {
    for target in targets {
        read_exact_at(file, target, offset)?;
        offset += target.len() as u64;
    }
    Ok(())
}

/// Treatment of a path that is a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// The target is opened.
    Followed,
    /// Unix refuses to open the link. Windows opens the link itself, and its type shows that.
    Refused,
}

/// Makes a file take disk space only for written bytes. Unix does so for every file.
///
/// # Errors
/// Errors of the system; a file system without such files.
pub fn make_sparse(file: &File) -> io::Result<()> {
    platform::make_sparse(file)
}

/// Makes opening not wait for the other end of a pipe.
pub fn without_waiting(options: &mut OpenOptions, links: Links) -> &mut OpenOptions {
    platform::without_waiting(options, links)
}

/// True for a pipe with a name in a folder.
pub fn is_pipe(file_type: FileType) -> bool {
    platform::is_pipe(file_type)
}

/// True for a socket with a name in a folder.
pub fn is_socket(file_type: FileType) -> bool {
    platform::is_socket(file_type)
}

/// Makes new files readable by the owner only. On Windows they have the folder's permissions.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    platform::private(options)
}

/// Makes new folders accessible to the owner only. On Windows they have the parent's permissions.
pub fn private_folder(builder: &mut DirBuilder) -> &mut DirBuilder {
    platform::private_folder(builder)
}

/// Restricts an open file to its owner. On Windows it keeps the folder's permissions.
///
/// # Errors
/// Errors of the system.
pub fn make_private(file: &File) -> io::Result<()> {
    platform::make_private(file)
}

/// Copies owner and permissions of a replaced file to its replacement, as far as this user may.
///
/// # Errors
/// The permissions cannot be set.
pub fn keep_permissions(file: &File, old: &Metadata) -> io::Result<()> {
    platform::keep_permissions(file, old)
}

/// Syncs a folder's file names to the disk. Windows does not need this: its file systems journal names.
///
/// # Errors
/// Errors of the system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    platform::sync_folder(if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    })
}

/// Bytes that this user may still write to the disk of a folder.
///
/// # Errors
/// Errors of the system.
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    platform::free_bytes(folder)
}

/// Creates a link at `link` to `target`, a path relative to the link's folder.
///
/// # Errors
/// Errors of the system; [`Unsupported`](io::ErrorKind::Unsupported) on Windows, where most users may not create links.
pub fn link_file(target: &str, link: &Path) -> io::Result<()> {
    platform::link_file(target, link)
}

/// Sets the time of the last read, which some file systems do not keep themselves.
///
/// # Errors
/// Errors of the system.
pub fn set_read_time(path: &Path, time: SystemTime) -> io::Result<()> {
    platform::set_read_time(path, time)
}

/// True if `path` still names the open file, and not a replacement.
pub fn is_at(file: &File, path: &Path) -> bool {
    platform::is_at(file, path)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_run_holds_what_plain_reads_hold_and_ends_with_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..200_000u32).map(|at| (at * 31 % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        for (lengths, offset) in [
            (vec![4096; 8], 0),
            (vec![1; 700], 4095),
            (vec![9000, 17, 60_000], 123_000),
            (vec![], 5),
        ] {
            let mut run: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; *length]).collect();
            let mut plain = run.clone();
            read_run_at(&file, run.iter_mut().map(|part| &mut part[..]).collect(), offset).unwrap();
            read_each_at(&file, plain.iter_mut().map(|part| &mut part[..]), offset).unwrap();
            assert_eq!(run, plain);
            let total: usize = lengths.iter().sum();
            assert_eq!(plain.concat(), bytes[offset as usize..][..total]);
            expect_read(&file, offset, total as u64);
        }
        let mut run = [vec![0; 1000], vec![0; 1000]];
        let error = read_run_at(&file, run.iter_mut().map(|part| &mut part[..]).collect(), 198_500);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_unnamed_file_is_read_back_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages");
        let made = create_unnamed(&path).unwrap();
        write_all_at(&made.file, &[3; 100], 50).unwrap();
        let mut bytes = [0; 60];
        read_exact_at(&made.file, &mut bytes, 90).unwrap();
        assert_eq!(bytes, [3; 60]);
        drop(made);
        assert!(!path.exists());
        assert!(create_unnamed(&folder.path().join("none/pages")).is_err());
    }

    #[test]
    #[cfg_attr(windows, ignore = "Wine 8 reports no disk for an open file that was renamed")]
    fn a_name_is_told_from_a_file_that_took_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        let file = File::create(&first).unwrap();
        std::fs::write(&second, "other").unwrap();
        assert!(is_at(&file, &first) && !is_at(&file, &second));
        std::fs::rename(&first, folder.path().join("third")).unwrap();
        assert!(!is_at(&file, &first) && is_at(&file, &folder.path().join("third")));
    }

    #[test]
    fn the_time_of_the_last_read_is_set_and_the_bytes_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("read");
        std::fs::write(&path, "bytes").unwrap();
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        set_read_time(&path, time).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().accessed().unwrap(), time);
        assert_eq!(std::fs::read(&path).unwrap(), b"bytes");
        assert!(set_read_time(&folder.path().join("none"), time).is_err());
    }

    #[test]
    fn a_sparse_file_may_be_longer_than_its_disk_has_room_for() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes = free_bytes(&std::env::temp_dir()).unwrap() + (1 << 30);
        make_sparse(&file).unwrap();
        file.write_all(b"head").unwrap();
        file.set_len(bytes).unwrap();
        let mut found = [1; 5];
        read_exact_at(&file, &mut found, 0).unwrap();
        assert_eq!((&found, file.metadata().unwrap().len()), (b"head\0", bytes));
    }

    #[test]
    fn a_disk_has_free_bytes_and_a_missing_folder_has_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(folder.path()).unwrap() > 0);
        assert!(free_bytes(&folder.path().join("none")).is_err());
        sync_folder(folder.path()).unwrap();
        sync_folder(Path::new("")).unwrap();
    }
}
