//! Memory: huge pages, returned bytes, file mappings, and this process's peak.

use std::fs::File;
use std::io;
use std::ops::Range;

use memmap2::{Mmap, MmapMut, MmapRaw};

use crate::platform;

/// True if mappings take memory only for written pages. Windows counts all of it at once.
pub const MAPPINGS_ARE_LAZY: bool = platform::MAPPINGS_ARE_LAZY;

/// Returned memory must be whole pages of the operating system; 64 KiB covers every page size beyond x86.
pub const RELEASED_PAGE_BYTES: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 64 * 1024 };

/// Requests huge pages. A refusal only costs speed, so it is ignored.
pub fn prefer_huge_pages(mapping: &MmapMut) {
    platform::prefer_huge_pages(mapping);
}

/// As [`prefer_huge_pages`], for a part of a mapping.
pub fn prefer_huge_pages_in(mapping: &MmapRaw, part: Range<usize>) {
    platform::prefer_huge_pages_in(mapping, part);
}

/// Turns the small pages in `part` into a huge page. They stay small if the system cannot do this, has no free
/// memory, or the bytes were never written; the errors do not distinguish these cases.
pub fn gather_huge_page(mapping: &MmapRaw, part: Range<usize>) {
    if part.start < part.end && part.end <= mapping.len() {
        platform::gather_huge_page(mapping, part);
    }
}

/// Returns `bytes` of an anonymous mapping to the system. Linux fills them with zeros; elsewhere each page has zeros
/// or its old bytes until it is written. `bytes` must be aligned to [`RELEASED_PAGE_BYTES`]; the range is cut at the
/// mapping's end.
pub fn release(mapping: &mut MmapMut, bytes: Range<usize>) {
    let end = bytes.end.min(mapping.len());
    if bytes.start < end && bytes.start.is_multiple_of(RELEASED_PAGE_BYTES) {
        // If the system refuses (locked memory), the bytes stay until they are reused or the mapping ends.
        platform::release(mapping, bytes.start..end);
    }
}

/// Maps a file for reading.
///
/// # Errors
/// Errors of the system.
pub fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only, and its readers take plain bytes from it. Another process that truncates the file
    // meanwhile ends this one with SIGBUS, as with every reader that maps files; Windows refuses to truncate it. Bytes
    // that change meanwhile are only numbers and break no invariant.
    unsafe { Mmap::map(file) }
}

/// Starts a new peak, if the system can; otherwise [`peak_bytes`] covers the whole process.
pub fn reset_peak() {
    platform::reset_peak();
}

/// Peak of this process's main memory in bytes since the start of the peak; `None` on systems that do not report it.
pub fn peak_bytes() -> Option<u64> {
    platform::peak_bytes()
}

/// Bytes of the processor's largest cache; `None` if the system does not report it.
pub fn last_cache_bytes() -> Option<usize> {
    platform::last_cache_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_shows_the_bytes_a_plain_read_returns() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bytes");
        let bytes: Vec<u8> = (0..70_001u32).map(|i| (i * 31 % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let map = map_file(&File::open(&path).unwrap()).unwrap();
        assert_eq!(&map[..], &std::fs::read(&path).unwrap()[..]);
    }

    #[test]
    fn released_bytes_are_zeros_or_as_before_and_others_stay() {
        const PAGE: usize = RELEASED_PAGE_BYTES;
        let mut map = MmapMut::map_anon(4 * PAGE + 100).unwrap();
        let mut may_be_zero = vec![false; map.len()];
        map.fill(7);
        for range in [PAGE..2 * PAGE, 4 * PAGE..9 * PAGE, 17..PAGE] {
            release(&mut map, range.clone());
            if range.start.is_multiple_of(PAGE) {
                let end = range.end.min(map.len());
                may_be_zero[range.start..end].fill(true);
            }
        }
        let is_right = |at: usize| match may_be_zero[at] {
            false => map[at] == 7,
            true if cfg!(target_os = "linux") => map[at] == 0,
            true => map[at] == 0 || map[at] == 7,
        };
        assert!((0..map.len()).all(is_right));
    }

    #[test]
    fn the_peak_holds_what_was_allocated_meanwhile() {
        reset_peak();
        let before = peak_bytes().unwrap();
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(peak_bytes().unwrap() >= before.max(held.len() as u64));
    }
}
