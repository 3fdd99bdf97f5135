//! Functions for Windows.

use std::fs::{DirBuilder, File, FileTimes, FileType, Metadata, OpenOptions};
use std::io;
use std::mem::zeroed;
use std::ops::Range;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::os::windows::io::{AsRawHandle, FromRawHandle};
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::SystemTime;

use memmap2::{MmapMut, MmapRaw};
use windows_sys::Win32::Foundation::{GENERIC_READ, INVALID_HANDLE_VALUE};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_ATTRIBUTE_TEMPORARY, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_DELETE_ON_CLOSE,
    FILE_FLAG_NO_BUFFERING, FILE_FLAG_OPEN_REPARSE_POINT, FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_SHARE_WRITE,
    FILE_WRITE_ATTRIBUTES, GetDiskFreeSpaceExW, GetFileInformationByHandle, ReOpenFile,
};
use windows_sys::Win32::System::Console::{
    ENABLE_VIRTUAL_TERMINAL_PROCESSING, GetConsoleMode, GetStdHandle, STD_ERROR_HANDLE, STD_OUTPUT_HANDLE,
    SetConsoleMode,
};
use windows_sys::Win32::System::IO::DeviceIoControl;
use windows_sys::Win32::System::Memory::{MEM_RESET, PAGE_READWRITE, VirtualAlloc, VirtualUnlock};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::SystemInformation::{
    GetLogicalProcessorInformation, RelationCache, SYSTEM_LOGICAL_PROCESSOR_INFORMATION,
};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

use crate::files::{Found, Links, UnnamedFile, read_each_at};

pub(crate) const MAPPINGS_ARE_LAZY: bool = false;
pub(crate) const LINE_CONTINUES: &str = "`";
pub(crate) const HOME_VARIABLES: &[&str] = &["USERPROFILE", "HOME"];

/// The name is removed with the last handle, even if the process is killed.
pub(crate) fn create_unnamed(path: &Path) -> io::Result<UnnamedFile> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let file = options
        .attributes(FILE_ATTRIBUTE_TEMPORARY)
        .custom_flags(FILE_FLAG_DELETE_ON_CLOSE)
        .open(path)?;
    Ok(UnnamedFile { file, name: None })
}

pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(bytes, offset)
}

pub(crate) fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
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

pub(crate) fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
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

pub(crate) fn read_run_at(file: &File, targets: Vec<&mut [u8]>, offset: u64) -> io::Result<Found> {
    read_each_at(file, targets.into_iter(), offset)?;
    Ok(Found::OnDisk)
}

/// Windows drops a file's cache when the file is opened uncached.
pub(crate) fn forget_cached(file: &File) -> io::Result<()> {
    start_direct(file).ok();
    Ok(())
}

pub(crate) fn expect_read(_file: &File, _offset: u64, _bytes: u64) {}

pub(crate) fn start_direct(file: &File) -> io::Result<Option<File>> {
    let sharing = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    // SAFETY: the handle is open while `file` is borrowed; the call takes numbers beside it.
    let handle = unsafe { ReOpenFile(file.as_raw_handle(), GENERIC_READ, sharing, FILE_FLAG_NO_BUFFERING) };
    if handle == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is a new one of a file, and nobody else has it.
    Ok(Some(unsafe { File::from_raw_handle(handle) }))
}

/// The uncached handle is separate, and no longer read.
pub(crate) fn stop_direct(_file: &File) {}

/// Computes in f64, where the product of two f32 is exact. An inexact sum becomes the neighbour with an odd last bit,
/// so that the second rounding cannot go wrong (Boldo and Melquiond 2008).
#[inline]
pub(crate) fn fused_multiply_add(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let rest = sum - product;
    let error = (product - (sum - rest)) + (c - rest);
    let bits = sum.to_bits();
    if !sum.is_finite() || error == 0.0 || bits & 1 == 1 {
        return sum as f32;
    }
    let is_larger = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if is_larger { bits + 1 } else { bits - 1 }) as f32
}

pub(crate) fn make_sparse(file: &File) -> io::Result<()> {
    // Constant of winioctl.h.
    const FSCTL_SET_SPARSE: u32 = 0x900c4;
    let (handle, mut written) = (file.as_raw_handle(), 0);
    let nothing = ptr::null_mut();
    // SAFETY: the handle is open while `file` is borrowed. The call takes no bytes and gives none, and the count is
    // writable.
    let done = unsafe {
        DeviceIoControl(
            handle,
            FSCTL_SET_SPARSE,
            nothing,
            0,
            nothing,
            0,
            &raw mut written,
            ptr::null_mut(),
        )
    };
    if done == 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

pub(crate) fn without_waiting(options: &mut OpenOptions, links: Links) -> &mut OpenOptions {
    match links {
        Links::Followed => options,
        Links::Refused => options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT),
    }
}

/// Pipes on Windows have no names in folders.
pub(crate) fn is_pipe(_file_type: FileType) -> bool {
    false
}

pub(crate) fn is_socket(_file_type: FileType) -> bool {
    false
}

pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

pub(crate) fn private_folder(builder: &mut DirBuilder) -> &mut DirBuilder {
    builder
}

pub(crate) fn make_private(_file: &File) -> io::Result<()> {
    Ok(())
}

pub(crate) fn keep_permissions(file: &File, old: &Metadata) -> io::Result<()> {
    file.set_permissions(old.permissions())
}

pub(crate) fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

pub(crate) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let name: Vec<u16> = folder.as_os_str().encode_wide().chain([0]).collect();
    let mut free = 0;
    // SAFETY: the name ends with a zero, the number is writable, and the other results are not asked for.
    let done = unsafe { GetDiskFreeSpaceExW(name.as_ptr(), &raw mut free, ptr::null_mut(), ptr::null_mut()) };
    if done == 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(free)
    }
}

pub(crate) fn link_file(_target: &str, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn set_read_time(path: &Path, time: SystemTime) -> io::Result<()> {
    let file = OpenOptions::new().access_mode(FILE_WRITE_ATTRIBUTES).open(path)?;
    file.set_times(FileTimes::new().set_accessed(time))
}

pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let flags = FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS;
    // Opens the file without read access, because a file locked by another process still reports its number.
    let found = OpenOptions::new().access_mode(0).custom_flags(flags).open(path);
    let (Some(opened), Some(found)) = (number(file), found.ok().as_ref().and_then(number)) else {
        return false;
    };
    opened == found
}

/// The number of the disk, and of the file on it.
fn number(file: &File) -> Option<(u32, u32, u32)> {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut found: BY_HANDLE_FILE_INFORMATION = unsafe { zeroed() };
    // SAFETY: the handle is open while `file` is borrowed, and the structure is writable.
    let done = unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut found) };
    (done != 0).then_some((found.dwVolumeSerialNumber, found.nFileIndexHigh, found.nFileIndexLow))
}

/// Huge pages of Windows need a privilege that users lack.
pub(crate) fn prefer_huge_pages(_mapping: &MmapMut) {}

pub(crate) fn prefer_huge_pages_in(_mapping: &MmapRaw, _part: Range<usize>) {}

pub(crate) fn gather_huge_page(_mapping: &MmapRaw, _part: Range<usize>) {}

pub(crate) fn give_way() {}

pub(crate) fn release(mapping: &mut MmapMut, bytes: Range<usize>) {
    let start = mapping[bytes.clone()].as_mut_ptr().cast();
    // SAFETY: the mapping is anonymous and borrowed mutably, so no reference into it lives. Until a page of the range
    // is written it holds its old bytes or zeros, both valid values of u8. The range lies inside the mapping.
    let is_reset = !unsafe { VirtualAlloc(start, bytes.len(), MEM_RESET, PAGE_READWRITE) }.is_null();
    if is_reset {
        // SAFETY: the range is as above. Unlocking pages that are not locked takes them out of main memory.
        unsafe { VirtualUnlock(start, bytes.len()) };
    }
}

/// The system keeps one peak per process.
pub(crate) fn reset_peak() {}

pub(crate) fn peak_bytes() -> Option<u64> {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut counters: PROCESS_MEMORY_COUNTERS = unsafe { zeroed() };
    let bytes = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    // SAFETY: the handle is this process's, and the structure has the size that is passed.
    let done = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, bytes) };
    (done != 0).then_some(counters.PeakWorkingSetSize as u64)
}

pub(crate) fn last_cache_bytes() -> Option<usize> {
    let mut bytes = 0;
    // SAFETY: without room the call writes nothing but the bytes that it needs.
    unsafe { GetLogicalProcessorInformation(ptr::null_mut(), &raw mut bytes) };
    // SAFETY: all fields are integers, for which zero is a value.
    let empty: SYSTEM_LOGICAL_PROCESSOR_INFORMATION = unsafe { zeroed() };
    let mut found = vec![empty; bytes as usize / size_of::<SYSTEM_LOGICAL_PROCESSOR_INFORMATION>()];
    // SAFETY: there is room for the bytes that are passed.
    let done = unsafe { GetLogicalProcessorInformation(found.as_mut_ptr(), &raw mut bytes) };
    if done == 0 {
        return None;
    }
    let caches = found.iter().filter(|entry| entry.Relationship == RelationCache);
    // SAFETY: the relationship says that the union holds a cache.
    caches.map(|entry| unsafe { entry.Anonymous.Cache.Size } as usize).max()
}

pub(crate) fn cache_folder(absolute: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    absolute("LOCALAPPDATA")
}

pub(crate) fn state_folder(absolute: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    absolute("LOCALAPPDATA")
}

pub(crate) fn enable_escapes() -> bool {
    [STD_OUTPUT_HANDLE, STD_ERROR_HANDLE].into_iter().all(|stream| {
        let mut mode = 0;
        // SAFETY: the call takes a number.
        let handle = unsafe { GetStdHandle(stream) };
        // SAFETY: the mode is writable. An invalid handle, or one of no console, only gives an error.
        let is_console = unsafe { GetConsoleMode(handle, &raw mut mode) } != 0;
        // SAFETY: the handle is one of a console, which takes numbers.
        !is_console || unsafe { SetConsoleMode(handle, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING) } != 0
    })
}

#[cfg(feature = "signals")]
pub(crate) fn outlive_file_size_limit() -> io::Result<()> {
    Ok(())
}
