//! Read-only memory maps of weight files: the crate's only unsafe code.

use std::fs::File;

/// Maps a file for reading.
pub(crate) fn map(file: &File) -> std::io::Result<memmap2::Mmap> {
    // SAFETY: the map is read-only and private to the loader, which reads plain bytes from it and drops it when
    // the weights are packed. Another process that truncates the file meanwhile ends this one with SIGBUS, as with
    // every reader that maps files; bytes that change meanwhile are only numbers and break no invariant.
    unsafe { memmap2::Mmap::map(file) }
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
        let map = map(&File::open(&path).unwrap()).unwrap();
        assert_eq!(&map[..], &std::fs::read(&path).unwrap()[..]);
    }
}
