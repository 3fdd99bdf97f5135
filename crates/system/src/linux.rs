//! Functions for Linux.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::PathBuf;

use memmap2::{Advice, MmapMut, MmapRaw, UncheckedAdvice};
use rustix::fs::{OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::process::setpriority_process;

use crate::files::{Found, read_each_at};
pub(crate) use crate::unix::*;

/// Maximum number of buffers of one request; systems allow 1,024.
const MOST_BUFFERS: usize = 512;

pub(crate) fn read_run_at(file: &File, targets: Vec<&mut [u8]>, mut offset: u64) -> io::Result<Found> {
    let mut buffers: Vec<IoSliceMut<'_>> = targets.into_iter().map(IoSliceMut::new).collect();
    let mut left = &mut buffers[..];
    let mut found = Found::Cached;
    while !left.is_empty() {
        // Uncached bytes are requested again, with waiting; so is everything if the cache state is unknown.
        let flags = match found {
            Found::Cached => ReadWriteFlags::NOWAIT,
            Found::OnDisk => ReadWriteFlags::empty(),
        };
        let count = left.len().min(MOST_BUFFERS);
        let wanted: usize = left[..count].iter().map(|buffer| buffer.len()).sum();
        match preadv2(file, &mut left[..count], offset, flags) {
            Ok(read) => {
                if read == 0 && found == Found::OnDisk {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                if read < wanted {
                    found = Found::OnDisk;
                }
                IoSliceMut::advance_slices(&mut left, read);
                offset += read as u64;
            }
            Err(Errno::INTR) => {}
            Err(_) if found == Found::Cached => found = Found::OnDisk,
            // Either the read failed or the system lacks such requests; a plain read decides.
            Err(_) => {
                read_each_at(file, left.iter_mut().map(|buffer| &mut buffer[..]), offset)?;
                break;
            }
        }
    }
    Ok(found)
}

pub(crate) fn forget_cached(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

pub(crate) fn expect_read(file: &File, offset: u64, bytes: u64) {
    fadvise(file, offset, NonZeroU64::new(bytes), rustix::fs::Advice::WillNeed).ok();
}

pub(crate) fn start_direct(file: &File) -> io::Result<Option<File>> {
    fcntl_setfl(file, fcntl_getfl(file)? | OFlags::DIRECT)?;
    Ok(None)
}

pub(crate) fn stop_direct(file: &File) {
    if let Ok(flags) = fcntl_getfl(file) {
        fcntl_setfl(file, flags - OFlags::DIRECT).ok();
    }
}

pub(crate) fn prefer_huge_pages(mapping: &MmapMut) {
    mapping.advise(Advice::HugePage).ok();
}

pub(crate) fn prefer_huge_pages_in(mapping: &MmapRaw, part: Range<usize>) {
    mapping.advise_range(Advice::HugePage, part.start, part.len()).ok();
}

pub(crate) fn gather_huge_page(mapping: &MmapRaw, part: Range<usize>) {
    // The constant of Linux 6.1, for every C library.
    const MADV_COLLAPSE: i32 = 25;
    // SAFETY: the caller checks that the part lies in the mapping, which is borrowed. The call moves its bytes to other
    // pages of main memory; no byte changes, and none is missing at any time.
    let _ = unsafe { libc::madvise(mapping.as_mut_ptr().add(part.start).cast(), part.len(), MADV_COLLAPSE) };
}

/// The lowest priority. Without a process, the call means the calling thread.
pub(crate) fn give_way() {
    setpriority_process(None, 19).ok();
}

pub(crate) fn release(mapping: &mut MmapMut, bytes: Range<usize>) {
    // SAFETY: the mapping is private and anonymous, so its bytes only become zero, which is a valid u8. It is borrowed
    // mutably, so no reference into it lives. The caller checks that the range lies inside it. The caller also checks
    // that the start is aligned, so memmap2 does not widen the range downwards.
    let released = unsafe { mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, bytes.start, bytes.len()) };
    released.ok();
}

pub(crate) fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").ok();
}

pub(crate) fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

pub(crate) fn last_cache_bytes() -> Option<usize> {
    let size = |index: usize| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        cache_bytes(text.trim())
    };
    (0..5).filter_map(size).max()
}

/// A cache size in Linux's form: `32K`, `480M`.
fn cache_bytes(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

pub(crate) fn cache_folder(absolute: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    Some(absolute("HOME")?.join(".cache"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches_are_read_as_linux_writes_them() {
        let read = ["32K", "491520K", "480M", "64", "", "?K"].map(cache_bytes);
        assert_eq!(
            read,
            [Some(32 << 10), Some(480 << 20), Some(480 << 20), Some(64), None, None]
        );
    }
}
