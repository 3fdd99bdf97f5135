//! Reads and writes at a place of a file, whatever the system.
//!
//! On Linux several planes are read by one request, and the system is told of reads to come. Elsewhere, and where a
//! system or a sandbox does not know such requests, planes are read one after another.

use std::fs::File;
use std::io;

/// The place in which a read found its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// All of it in the system's cache of files.
    Cached,
    /// It had to be waited for, or nobody knows.
    OnDisk,
}

/// Fills `targets`, which lie one after another in the file from `offset` on.
pub(super) fn read_run_at(file: &File, targets: Vec<&mut [u8]>, offset: u64) -> io::Result<Found> {
    #[cfg(target_os = "linux")]
    return linux::read_run_at(file, targets, offset);
    #[cfg(not(target_os = "linux"))]
    {
        read_each_at(file, targets.into_iter(), offset)?;
        Ok(Found::OnDisk)
    }
}

/// Tells the system that these bytes will be read, so that the disk has several requests at a time. Where it does not
/// listen nothing but time is lost.
pub(super) fn expect_read(_file: &File, _offset: u64, _bytes: u64) {
    #[cfg(target_os = "linux")]
    linux::expect_read(_file, _offset, _bytes);
}

/// Writes a file out and asks the system to forget what it caches of it: the next reads are as slow as the disk. On
/// systems that have no way to ask, it is only written out.
///
/// # Errors
/// When it cannot be written out.
pub fn forget_cached(file: &File) -> io::Result<()> {
    file.sync_data()?;
    #[cfg(target_os = "linux")]
    linux::forget_cached(file)?;
    Ok(())
}

/// Fills each target by a request of its own.
fn read_each_at<'t>(file: &File, targets: impl Iterator<Item = &'t mut [u8]>, mut offset: u64) -> io::Result<()> {
    for target in targets {
        read_exact_at(file, target, offset)?;
        offset += target.len() as u64;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::{self, IoSliceMut};
    use std::num::NonZeroU64;

    use rustix::fs::{Advice, fadvise};
    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    use super::{Found, read_each_at};

    /// Buffers in one request at most; systems allow 1,024.
    const MOST_BUFFERS: usize = 512;

    pub(super) fn read_run_at(file: &File, targets: Vec<&mut [u8]>, mut offset: u64) -> io::Result<Found> {
        let mut buffers: Vec<IoSliceMut<'_>> = targets.into_iter().map(IoSliceMut::new).collect();
        let mut left = &mut buffers[..];
        let mut found = Found::Cached;
        while !left.is_empty() {
            // Bytes outside the cache are asked for again and waited for; so is everything where that cannot be told.
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
                // Either a read that fails or a system without such requests; a plain read tells.
                Err(_) => {
                    read_each_at(file, left.iter_mut().map(|buffer| &mut buffer[..]), offset)?;
                    break;
                }
            }
        }
        Ok(found)
    }

    pub(super) fn forget_cached(file: &File) -> io::Result<()> {
        Ok(fadvise(file, 0, None, Advice::DontNeed)?)
    }

    pub(super) fn expect_read(file: &File, offset: u64, bytes: u64) {
        fadvise(file, offset, NonZeroU64::new(bytes), Advice::WillNeed).ok();
    }
}

#[cfg(unix)]
pub(super) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
pub(super) fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        let written = file.seek_write(bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        let read = file.seek_read(bytes, offset)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes = &mut bytes[read..];
        offset += read as u64;
    }
    Ok(())
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
}
