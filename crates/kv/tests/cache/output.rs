//! Output files: replaced files, untouched files, and removed leftovers.

use std::fs::{self, File};
use std::io::{self, Write};
#[cfg(unix)]
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::testing::append_all;
use riffle_attention::Format;
use riffle_kv::{CacheShape, FileKind, KvCache, KvError, LayerShape, LayerShapes, OutputFile, PathLock};
use tempfile::TempDir;

const NOTES: FileKind = FileKind {
    name: "a file of notes",
    matches: |begin| begin.starts_with(b"notes:"),
};

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn write(path: &Path, text: &str) {
    OutputFile::check(path, NOTES)
        .unwrap()
        .write(|file| file.write_all(text.as_bytes()))
        .unwrap();
}

fn refusal(path: &Path) -> String {
    let message = OutputFile::check(path, NOTES).unwrap_err().to_string();
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    message
}

#[cfg(unix)]
fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn cache() -> (CacheShape, KvCache) {
    let shape = CacheShape {
        layers: LayerShapes::alike(1, LayerShape::new(1, 16)),
        page_tokens: 32,
        key_format: Format::F16,
        value_format: Format::F16,
    };
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, 1, 40);
    (shape, cache)
}

#[test]
fn only_files_of_the_same_kind_are_replaced() {
    let folder = Folder::new();
    let path = folder.path("out");
    write(&path, "notes: one");
    write(&path, "notes: two");
    assert_eq!(fs::read_to_string(&path).unwrap(), "notes: two");
    // An empty file, such as one from mktemp, is replaced too.
    File::create(&path).unwrap();
    write(&path, "notes: three");
    let diary = folder.path("diary");
    fs::write(&diary, "a diary").unwrap();
    let message = refusal(&diary);
    assert!(message.contains("is not a file of notes"), "{message}");
    assert_eq!(fs::read_to_string(&diary).unwrap(), "a diary");
    assert_eq!(folder.names(), ["diary", "out"]);
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused_before_the_work_and_left_alone() {
    let folder = Folder::new();
    assert!(refusal(Path::new("/dev/null")).contains("a device"));
    assert!(refusal(folder.0.path()).contains("a folder"));
    symlink("nowhere", folder.path("dangling")).unwrap();
    assert!(refusal(&folder.path("dangling")).contains("a link to a file that is not there"));
    symlink("/dev/null", folder.path("to-device")).unwrap();
    assert!(refusal(&folder.path("to-device")).contains("a device"));
    let pipe = folder.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    assert!(refusal(&pipe).contains("a pipe"));
    assert!(refusal(&folder.path("no/such/out")).contains("its folder is not there"));
    // Nobody can write to this folder, not even root.
    refusal(Path::new("/proc/riffle-output"));
    assert_eq!(folder.names(), ["dangling", "pipe", "to-device"]);
    assert!(fs::symlink_metadata(folder.path("dangling")).unwrap().is_symlink());
}

#[cfg(unix)]
#[test]
fn a_link_stays_and_its_target_is_replaced() {
    let folder = Folder::new();
    fs::create_dir(folder.path("elsewhere")).unwrap();
    let (link, target) = (folder.path("link"), folder.path("elsewhere/target"));
    fs::write(&target, "notes: old").unwrap();
    symlink("elsewhere/target", &link).unwrap();
    write(&link, "notes: new");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&target).unwrap(), "notes: new");
    assert!(fs::symlink_metadata(&target).unwrap().is_file());
    assert_eq!(folder.names(), ["elsewhere", "link"]);
}

#[cfg(unix)]
#[test]
fn a_replaced_file_keeps_its_permissions_and_a_new_cache_is_its_owners_alone() {
    let folder = Folder::new();
    let path = folder.path("out");
    for wanted in [0o600, 0o640, 0o644, 0o666] {
        fs::write(&path, "notes: old").unwrap();
        set_mode(&path, wanted);
        write(&path, "notes: new");
        assert_eq!(mode(&path), wanted, "{wanted:o}");
    }
    File::create(folder.path("plain")).unwrap();
    write(&folder.path("new"), "notes: new");
    assert_eq!(mode(&folder.path("new")), mode(&folder.path("plain")), "by umask");
    let (_, cache) = cache();
    let saved = folder.path("cache");
    cache.save(&saved, b"", b"").unwrap();
    assert_eq!(mode(&saved), 0o600);
    set_mode(&saved, 0o640);
    cache.save(&saved, b"", b"").unwrap();
    assert_eq!(mode(&saved), 0o640);
}

#[test]
fn a_write_that_fails_or_stops_leaves_what_was_there() {
    let folder = Folder::new();
    let path = folder.path("out");
    write(&path, "notes: old");
    let output = OutputFile::check(&path, NOTES).unwrap();
    let failed = output.write(|file| {
        file.write_all(b"notes: half")?;
        Err(io::Error::other("no more"))
    });
    assert!(failed.unwrap_err().to_string().contains("no more"));
    let mut writer = output.create().unwrap();
    writer.write_all(b"notes: half").unwrap();
    drop(writer);
    assert_eq!(fs::read_to_string(&path).unwrap(), "notes: old");
    assert_eq!(folder.names(), ["out"]);
}

#[test]
fn leftovers_of_ours_are_cleared_and_files_of_others_stay() {
    let folder = Folder::new();
    let path = folder.path("out");
    let output = OutputFile::check(&path, NOTES).unwrap();
    let mut writer = output.create().unwrap();
    writer.write_all(b"notes: half").unwrap();
    writer.flush().unwrap();
    let name = folder.names().pop().unwrap();
    let under_way = folder.path(&name);
    // A partial file that another process is writing stays.
    write(&path, "notes: one");
    assert_eq!(fs::read_to_string(&under_way).unwrap(), "notes: half");
    drop(writer);

    // A partial file of a killed process.
    fs::write(&under_way, "notes: half").unwrap();
    let foreign = [
        ".out.partial",
        ".out.mine.partial",
        ".out.1-0.partial",
        ".out.1-0-0123456789abcdef.partial",
    ];
    for name in foreign {
        fs::write(folder.path(name), "notes: mine").unwrap();
    }
    write(&path, "notes: two");
    assert!(!under_way.exists());
    // A partial file with foreign content, and a link.
    fs::write(&under_way, "a diary").unwrap();
    write(&path, "notes: three");
    assert_eq!(fs::read_to_string(&under_way).unwrap(), "a diary");
    #[cfg(unix)]
    {
        fs::remove_file(&under_way).unwrap();
        symlink("out", &under_way).unwrap();
        write(&path, "notes: four");
        assert!(fs::symlink_metadata(&under_way).is_ok());
    }
    for name in foreign {
        assert_eq!(fs::read_to_string(folder.path(name)).unwrap(), "notes: mine", "{name}");
    }
}

#[cfg(unix)]
#[test]
fn a_lock_file_is_no_link_and_a_link_has_the_lock_of_its_target() {
    let folder = Folder::new();
    fs::write(folder.path("precious"), "").unwrap();
    symlink("precious", folder.path(".session.lock")).unwrap();
    let message = PathLock::take(folder.path("session")).unwrap_err().to_string();
    assert!(message.contains(".session.lock is a link"), "{message}");
    symlink("created", folder.path(".other.lock")).unwrap();
    assert!(PathLock::take(folder.path("other")).is_err());
    assert!(!folder.path("created").exists());

    fs::write(folder.path("target"), "").unwrap();
    symlink("target", folder.path("link")).unwrap();
    let held = PathLock::take(folder.path("link")).unwrap();
    assert!(matches!(
        PathLock::take(folder.path("target")),
        Err(KvError::Busy { .. })
    ));
    drop(held);
}

#[test]
fn only_files_of_ours_are_said_to_be_deleted() {
    let folder = Folder::new();
    let (shape, cache) = cache();
    let path = folder.path("cache");
    cache.save(&path, b"", b"").unwrap();
    let good = fs::read(&path).unwrap();
    let message = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        KvCache::restore(&path, &shape, b"", None).err().unwrap().to_string()
    };
    for foreign in [&b""[..], b"RIF", b"a diary", &[b'x'; 500]] {
        let message = message(foreign);
        assert!(
            !message.contains("delete") && message.contains("not a KV cache file"),
            "{message}"
        );
    }
    for cut in [8, 20, 79, good.len() - 1] {
        let message = message(&good[..cut]);
        assert!(message.contains("delete it"), "{cut}: {message}");
    }
    let mut other_version = good.clone();
    other_version[8] ^= 1;
    assert!(message(&other_version).contains("format 2 (here 3), which this version cannot read: delete it"));
    // A save does not overwrite a foreign file either.
    fs::write(&path, "a diary").unwrap();
    assert!(
        cache
            .save(&path, b"", b"")
            .unwrap_err()
            .to_string()
            .contains("is not a KV cache file")
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "a diary");
}
