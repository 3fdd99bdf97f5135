//! Gives parts of a mapping back to the operating system. The crate's only `unsafe`.

use std::ops::Range;

use memmap2::MmapMut;

/// Pages given back must be whole pages of the operating system; 64 KiB covers every size Linux uses beyond x86.
pub(crate) const OS_PAGE_BYTES: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 64 * 1024 };

/// Gives `bytes` of an anonymous mapping back; they read as zeros afterwards, or as before where the system has no such
/// call. `bytes` must be aligned to [`OS_PAGE_BYTES`], ends past the mapping's are cut.
pub(crate) fn release(map: &mut MmapMut, bytes: Range<usize>) {
    let end = bytes.end.min(map.len());
    if bytes.start >= end || !bytes.start.is_multiple_of(OS_PAGE_BYTES) {
        return;
    }
    #[cfg(target_os = "linux")]
    {
        use memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the mapping is private and anonymous, so the only effect is that its bytes become zero, which is
        // a valid value of u8; it is borrowed mutably, so no reference into it lives. The range lies inside it, and
        // its start is aligned, so that memmap2 does not widen it downwards.
        let released = unsafe { map.unchecked_advise_range(DontNeed, bytes.start, end - bytes.start) };
        // Refused (locked memory): the bytes stay until their slot is used again or the slab is unmapped.
        released.ok();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn released_bytes_read_as_filled_with_zeros_and_others_stay() {
        let mut map = MmapMut::map_anon(4 * OS_PAGE_BYTES + 100).unwrap();
        let mut twin = vec![7u8; map.len()];
        map.fill(7);
        for range in [
            OS_PAGE_BYTES..2 * OS_PAGE_BYTES,
            4 * OS_PAGE_BYTES..9 * OS_PAGE_BYTES,
            17..OS_PAGE_BYTES,
        ] {
            release(&mut map, range.clone());
            if range.start.is_multiple_of(OS_PAGE_BYTES) {
                let end = range.end.min(twin.len());
                twin[range.start..end].fill(0);
            }
        }
        assert!(map[..] == twin[..]);
    }
}
