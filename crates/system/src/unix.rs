//! Functions for every Unix.

use std::fs::{DirBuilder, File, FileTimes, FileType, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown, symlink,
};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::OFlags;

use crate::files::{Links, RemovedOnDrop, UnnamedFile};

pub(crate) const MAPPINGS_ARE_LAZY: bool = true;
pub(crate) const LINE_CONTINUES: &str = "\\";
pub(crate) const HOME_VARIABLES: &[&str] = &["HOME"];

pub(crate) fn create_unnamed(path: &Path) -> io::Result<UnnamedFile> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    let is_removed = std::fs::remove_file(path).is_ok();
    let name = (!is_removed).then(|| RemovedOnDrop(path.to_owned()));
    Ok(UnnamedFile { file, name })
}

pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    FileExt::read_at(file, bytes, offset)
}

pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    FileExt::read_exact_at(file, bytes, offset)
}

pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    FileExt::write_all_at(file, bytes, offset)
}

#[inline]
pub(crate) fn fused_multiply_add(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

pub(crate) fn make_sparse(_file: &File) -> io::Result<()> {
    Ok(())
}

pub(crate) fn without_waiting(options: &mut OpenOptions, links: Links) -> &mut OpenOptions {
    // Between the check of the path and its opening, a pipe or a link may have replaced the file. Regular files
    // ignore these flags.
    let flags = match links {
        Links::Followed => OFlags::NONBLOCK,
        Links::Refused => OFlags::NONBLOCK | OFlags::NOFOLLOW,
    };
    options.custom_flags(flags.bits() as i32)
}

pub(crate) fn is_pipe(file_type: FileType) -> bool {
    file_type.is_fifo()
}

pub(crate) fn is_socket(file_type: FileType) -> bool {
    file_type.is_socket()
}

pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

pub(crate) fn private_folder(builder: &mut DirBuilder) -> &mut DirBuilder {
    builder.mode(0o700)
}

pub(crate) fn make_private(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o600))
}

pub(crate) fn keep_permissions(file: &File, old: &Metadata) -> io::Result<()> {
    let mut mode = old.mode() & 0o777;
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) && fchown(file, Some(old.uid()), Some(old.gid())).is_err() {
        // If the group is not the old file's, it gets the permissions of everybody.
        let of_others = mode & 0o007;
        mode = mode & 0o707 | mode & (of_others << 3);
    }
    file.set_permissions(Permissions::from_mode(mode))
}

pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

pub(crate) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(folder)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

pub(crate) fn link_file(target: &str, link: &Path) -> io::Result<()> {
    symlink(target, link)
}

pub(crate) fn set_read_time(path: &Path, time: SystemTime) -> io::Result<()> {
    File::open(path)?.set_times(FileTimes::new().set_accessed(time))
}

pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(opened), Ok(found)) = (file.metadata(), std::fs::symlink_metadata(path)) else {
        return false;
    };
    (opened.dev(), opened.ino()) == (found.dev(), found.ino())
}

pub(crate) fn state_folder(absolute: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    Some(absolute("HOME")?.join(".local/state"))
}

pub(crate) fn enable_escapes() -> bool {
    true
}

#[cfg(feature = "signals")]
pub(crate) fn outlive_file_size_limit() -> io::Result<()> {
    let unread = std::sync::Arc::default();
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, unread).map(drop)
}
