//! Checks that anything but a regular file is refused at once, and that reads stop at their limit.

#![cfg(unix)]

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use riffle_files::{FileError, open, open_no_link, open_with, read, read_file_or_pipe, read_text, read_within};

fn pipe(folder: &Path) -> PathBuf {
    let path = folder.join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    path
}

#[test]
fn pipes_sockets_devices_and_folders_are_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    for (path, found) in [
        (pipe(folder.path()).as_path(), "a pipe"),
        (&socket, "a socket"),
        (Path::new("/dev/zero"), "a device"),
        (&link, "a device"),
        (folder.path(), "a folder"),
    ] {
        let expected = format!("it is {found}, not a regular file");
        assert_eq!(open(path).unwrap_err().to_string(), expected);
        assert_eq!(read(path, 10).unwrap_err().to_string(), expected);
        let mut append = OpenOptions::new();
        let error = open_with(path, append.create(true).append(true)).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(io::Error::from(error).to_string(), expected);
    }
    let missing = open(folder.path().join("missing")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_link_to_a_file_is_followed_or_refused_as_the_caller_says() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "text").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let mut read = OpenOptions::new();
    let read = read.read(true);
    assert!(open_with(&link, read).is_ok() && open_no_link(&file, read).is_ok());
    let refused = open_no_link(&link, read).unwrap_err();
    assert_eq!(refused.to_string(), "it is a link, not a regular file");
    // Nothing is created at a link's target either.
    fs::remove_file(&file).unwrap();
    assert!(open_no_link(&link, OpenOptions::new().create(true).append(true)).is_err());
    assert!(!file.exists());
}

#[test]
fn a_file_is_read_up_to_its_limit_and_not_beyond() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    fs::write(&path, "twelve bytes").unwrap();
    assert_eq!(read_text(&path, 12).unwrap(), "twelve bytes");
    assert!(matches!(read(&path, 11), Err(FileError::TooLarge { limit_bytes: 11 })));
    // A file of 64 GiB that takes no space on the disk.
    let sparse = fs::File::create(folder.path().join("sparse")).unwrap();
    sparse.set_len(64 << 30).unwrap();
    assert!(read(folder.path().join("sparse"), 1 << 20).is_err());
    // A stream without end.
    assert!(matches!(
        read_within(io::repeat(0), 1 << 20),
        Err(FileError::TooLarge { .. })
    ));
    fs::write(&path, [0xff]).unwrap();
    assert_eq!(read_text(&path, 12).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_pipe_is_read_where_pipes_are_allowed_and_devices_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = pipe(folder.path());
    for (bytes, fits) in [(10, true), (11, false)] {
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut pipe = OpenOptions::new().write(true).open(path).unwrap();
                // The reader may close the pipe before everything is written.
                pipe.write_all(&vec![b'x'; bytes]).ok();
            }
        });
        assert_eq!(read_file_or_pipe(&path, 10).is_ok(), fits);
        writer.join().unwrap();
    }
    let error = read_file_or_pipe("/dev/zero", 10).unwrap_err();
    assert_eq!(error.to_string(), "it is a device, not a regular file");
}
