//! Functions for macOS. The standard library's `sync_all` and `sync_data` are `F_FULLFSYNC` there: they wait for the
//! disk's own cache.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::ptr;

use memmap2::{MmapMut, MmapRaw, UncheckedAdvice};
use rustix::fs::{fcntl_nocache, fcntl_rdadvise};

use crate::files::{Found, read_each_at};
pub(crate) use crate::unix::*;

pub(crate) fn read_run_at(file: &File, targets: Vec<&mut [u8]>, offset: u64) -> io::Result<Found> {
    read_each_at(file, targets.into_iter(), offset)?;
    Ok(Found::OnDisk)
}

/// macOS cannot drop the cache of one file.
pub(crate) fn forget_cached(_file: &File) -> io::Result<()> {
    Ok(())
}

pub(crate) fn expect_read(file: &File, offset: u64, bytes: u64) {
    fcntl_rdadvise(file, offset, bytes).ok();
}

pub(crate) fn start_direct(file: &File) -> io::Result<Option<File>> {
    fcntl_nocache(file, true)?;
    Ok(None)
}

pub(crate) fn stop_direct(file: &File) {
    fcntl_nocache(file, false).ok();
}

/// macOS chooses the sizes of pages itself.
pub(crate) fn prefer_huge_pages(_mapping: &MmapMut) {}

pub(crate) fn prefer_huge_pages_in(_mapping: &MmapRaw, _part: Range<usize>) {}

pub(crate) fn gather_huge_page(_mapping: &MmapRaw, _part: Range<usize>) {}

pub(crate) fn give_way() {}

pub(crate) fn release(mapping: &mut MmapMut, bytes: Range<usize>) {
    // SAFETY: the mapping is private, anonymous and borrowed mutably, so no reference into it lives. Until a page of
    // the range is written, it holds its old bytes or zeros, which are valid values of u8. The caller checks that the
    // range lies inside the mapping.
    let released = unsafe { mapping.unchecked_advise_range(UncheckedAdvice::Free, bytes.start, bytes.len()) };
    released.ok();
}

/// The system keeps one peak per process.
pub(crate) fn reset_peak() {}

pub(crate) fn peak_bytes() -> Option<u64> {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is writable and of the type that the call fills.
    let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    (status == 0).then(|| u64::try_from(usage.ru_maxrss).ok()).flatten()
}

pub(crate) fn last_cache_bytes() -> Option<usize> {
    let names = [c"hw.l3cachesize", c"hw.perflevel0.l2cachesize", c"hw.l2cachesize"];
    names.into_iter().filter_map(setting).max()
}

/// A number among the system's settings.
fn setting(name: &CStr) -> Option<usize> {
    let (mut value, mut bytes) = (0u64, size_of::<u64>());
    // SAFETY: the name ends with a zero byte; the value has the size that is passed, and the call writes no more than
    // that.
    let status = unsafe {
        libc::sysctlbyname(
            name.as_ptr(),
            (&raw mut value).cast(),
            &raw mut bytes,
            ptr::null_mut(),
            0,
        )
    };
    // A 4-byte setting fills the lower half, because every Mac is little-endian.
    (status == 0 && value > 0)
        .then(|| usize::try_from(value).ok())
        .flatten()
}

pub(crate) fn cache_folder(absolute: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    Some(absolute("HOME")?.join("Library/Caches"))
}
