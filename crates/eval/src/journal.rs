//! Journals: files of a measurement's finished cells, so that an interrupted run can continue.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use riffle_files::LockedFile;
use riffle_kv::{FileKind, OutputFile};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use twox_hash::XxHash3_64;

use crate::EvalError;

/// Beginning of each line. 16 hexadecimal digits, [`AFTER_HASH`] and the hashed text follow.
const BEFORE_HASH: &str = "{\"xxh3\":\"";
const AFTER_HASH: &str = "\",";
/// Beginning of journals without checksums.
const UNCHECKED: &[u8] = b"{\"journal\":";

/// Limit on the bytes of a journal.
const LARGEST_JOURNAL_BYTES: u64 = 256 << 20;

const KIND: FileKind = FileKind {
    name: "a journal of riffle eval",
    matches: |begin| begin.starts_with(BEFORE_HASH.as_bytes()) || begin.starts_with(UNCHECKED),
};

/// Finished cells in a file of one JSON line each; every finished cell appends a line.
///
/// Each line starts with the XXH3 hash of its remaining text. The first line describes the measurement; each other
/// line has the name and the result of a cell. Numbers are read back to the same bits.
#[derive(Debug, Default)]
pub struct Journal {
    /// The file is locked, because two processes must not write one journal.
    file: Option<(PathBuf, LockedFile)>,
    found: HashMap<String, Value>,
}

impl Journal {
    /// A journal without a file; it forgets its cells at the end of the run.
    pub fn none() -> Self {
        Self::default()
    }

    /// Continues the journal at `path`, or creates it. `about` contains every setting that decides the results except
    /// the cells' names; a journal with other settings is refused. An incomplete last line, which a killed process
    /// leaves, is dropped, and its cell runs again.
    ///
    /// # Errors
    /// [`EvalError::Output`] for a path that cannot be written; [`EvalError::File`] for a journal that is unreadable,
    /// changed, in use, or of another measurement.
    pub fn open(path: &Path, about: &Value) -> Result<Self, EvalError> {
        let refused = |reason: String| EvalError::File {
            path: path.to_owned(),
            reason,
        };
        let io = |error: std::io::Error| EvalError::file(path, &error);
        OutputFile::new(path, KIND)?;
        let mut options = OpenOptions::new();
        let file = riffle_files::open_with(path, options.read(true).append(true).create(true))
            .map_err(|error| io(error.into()))?;
        let mut file = LockedFile::exclusive_if_supported(file).ok_or_else(|| {
            refused("in use by another process: wait for it to end, or give --resume another file".to_owned())
        })?;
        let bytes = riffle_files::read_within(&mut *file, LARGEST_JOURNAL_BYTES).map_err(|error| io(error.into()))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n');
        let known = lines.next().map(|line| head(line).map_err(refused)).transpose()?;
        if let Some(known) = known.as_ref().filter(|known| *known != about) {
            return Err(refused(format!(
                "it was begun with other settings ({}): give --resume another file, or remove this one",
                differences(known, about)
            )));
        }
        let mut found = HashMap::new();
        for (number, line) in lines.enumerate() {
            let cell = opened(line).and_then(|mut cell| {
                let name = cell.get("cell")?.as_str()?.to_owned();
                Some((name, cell.get_mut("found")?.take()))
            });
            let (name, value) = cell.ok_or_else(|| {
                refused(format!(
                    "line {} has changed since it was written: remove that line, and its cell is measured again",
                    number + 2
                ))
            })?;
            found.insert(name, value);
        }
        file.set_len(whole as u64).map_err(io)?;
        if known.is_none() {
            file.write_all(sealed(&json!({ "journal": about })).as_bytes())
                .map_err(io)?;
        }
        Ok(Self {
            file: Some((path.to_owned(), file)),
            found,
        })
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, cell: &str) -> Option<T> {
        self.found
            .get(cell)
            .and_then(|value| serde_json::from_value(value.clone()).ok())
    }

    pub(crate) fn put<T: Serialize>(&mut self, cell: &str, found: &T) -> Result<(), EvalError> {
        let Some((path, file)) = &mut self.file else {
            return Ok(());
        };
        let line = sealed(&json!({ "cell": cell, "found": found }));
        // One write, so that a killed process leaves a whole line or an incomplete last line.
        file.write_all(line.as_bytes())
            .and_then(|()| file.sync_data())
            .map_err(|error| EvalError::file(path, &error))
    }
}

/// Reads the description of the measurement from the journal's first line.
fn head(line: &[u8]) -> Result<Value, String> {
    if line.starts_with(UNCHECKED) {
        return Err("an earlier version of riffle began it: give --resume another file".to_owned());
    }
    let head = opened(line).and_then(|mut head| Some(head.get_mut("journal")?.take()));
    head.ok_or_else(|| "its first line has changed since it was written: give --resume another file".to_owned())
}

/// A line: an object whose first field is the hash of the other fields' text.
fn sealed(fields: &Value) -> String {
    let text = fields.to_string();
    let fields = text.strip_prefix('{').unwrap_or(&text);
    let hash = XxHash3_64::oneshot(fields.as_bytes());
    format!("{BEFORE_HASH}{hash:016x}{AFTER_HASH}{fields}\n")
}

/// Opens a line of [`sealed`]; `None` if any byte has changed.
fn opened(line: &[u8]) -> Option<Value> {
    let line = str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (hash, rest) = line.strip_prefix(BEFORE_HASH)?.split_at_checked(16)?;
    let fields = rest.strip_prefix(AFTER_HASH)?;
    if hash != format!("{:016x}", XxHash3_64::oneshot(fields.as_bytes())) {
        return None;
    }
    serde_json::from_str(&format!("{{{fields}")).ok()
}

/// The first settings that differ between two journals, in a short line.
fn differences(known: &Value, about: &Value) -> String {
    const NAMED: usize = 3;
    let mut differing = Vec::new();
    differ("", Some(known), Some(about), &mut differing);
    let more = differing.len().saturating_sub(NAMED);
    differing.truncate(NAMED);
    let mut text = differing.join("; ");
    if more > 0 {
        text += &format!("; and {more} more");
    }
    text
}

fn differ(name: &str, known: Option<&Value>, about: Option<&Value>, differing: &mut Vec<String>) {
    if known == about {
        return;
    }
    if let (Some(Value::Object(known)), Some(Value::Object(about))) = (known, about) {
        let new = about.keys().filter(|name| !known.contains_key(*name));
        for field in known.keys().chain(new) {
            let inner = if name.is_empty() {
                field.clone()
            } else {
                format!("{name}.{field}")
            };
            differ(&inner, known.get(field), about.get(field), differing);
        }
        return;
    }
    let name = if name.is_empty() { "what is measured" } else { name };
    let (known, about) = (shortened(known), shortened(about));
    differing.push(if known == about {
        format!("{name} differs")
    } else {
        format!("{name}: {known} there, {about} here")
    });
}

fn shortened(value: Option<&Value>) -> String {
    const MOST: usize = 32;
    let text = match value {
        None => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_journal_that_is_no_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        for (path, found) in [(path.as_path(), "a pipe"), (Path::new("/dev/zero"), "a device")] {
            let message = Journal::open(path, &json!({})).unwrap_err().to_string();
            assert!(message.contains(found), "{message}");
        }
    }

    fn journal_of(path: &Path, cells: usize) -> Value {
        let about = json!({ "seed": 1 });
        let mut journal = Journal::open(path, &about).unwrap();
        for cell in 0..cells {
            journal.put(&format!("cell {cell}"), &(cell as f64 / 3.0)).unwrap();
        }
        about
    }

    #[test]
    fn numbers_come_back_to_the_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let numbers: Vec<f64> = (0..20_000)
            .map(|_| f64::from_bits(random.random()))
            .filter(|number| number.is_finite())
            .chain((0..20_000).map(|number| (f64::from(number) * 0.37).exp().recip()))
            .collect();
        let about = json!({});
        Journal::open(&path, &about).unwrap().put("cell", &numbers).unwrap();
        let found: Vec<f64> = Journal::open(&path, &about).unwrap().get("cell").unwrap();
        let bits = |numbers: &[f64]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
        assert!(bits(&found) == bits(&numbers));
    }

    #[test]
    fn a_changed_line_is_refused_by_its_number_and_an_unfinished_last_one_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let about = journal_of(&path, 3);
        let whole = fs::read(&path).unwrap();
        let mut refused = 0;
        for at in 0..whole.len() - 1 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            let line = 1 + whole[..at].iter().filter(|byte| **byte == b'\n').count();
            match Journal::open(&path, &about) {
                Err(error) => {
                    let message = error.to_string();
                    // A lost line end joins a line with the next one; a changed first line may look like another
                    // program's.
                    let named = message.contains(&format!("line {line} has changed")) || line == 1;
                    assert!(named, "byte {at}: {message}");
                    refused += 1;
                }
                Ok(_) => panic!("byte {at} of line {line} goes unnoticed"),
            }
        }
        assert_eq!(refused, whole.len() - 1);
        let last_line = whole[..whole.len() - 1]
            .iter()
            .rposition(|byte| *byte == b'\n')
            .unwrap()
            + 1;
        for cut in last_line..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let journal = Journal::open(&path, &about).unwrap();
            assert_eq!(journal.get::<f64>("cell 1"), Some(1.0 / 3.0));
            assert_eq!(journal.get::<f64>("cell 2"), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_journal_about_something_else_is_refused_in_a_short_line_that_names_the_first_differences() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let about = |policy: &str, seed: u64| {
            json!({
                "measurement": "compare",
                "about": { "wording": { "facts": "a long text ".repeat(100) + policy }, "seed": seed },
                "settings": { "prefill": policy, "decode": policy, "key_format": policy },
            })
        };
        drop(Journal::open(&path, &about("full", 1)).unwrap());
        let message = Journal::open(&path, &about("streaming", 2)).unwrap_err().to_string();
        for part in [
            "about.wording.facts differs",
            "about.seed: 1 there, 2 here",
            "and 2 more",
            "--resume",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
        let line = message.strip_prefix(&path.display().to_string()).unwrap();
        assert!(line.chars().count() < 400 && !line.contains('\n'), "{message}");
        let message = Journal::open(&path, &json!([])).unwrap_err().to_string();
        assert!(message.contains("what is measured: "), "{message}");
    }

    #[test]
    fn what_is_no_journal_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        for (text, part) in [
            ("some notes\n", "not a journal"),
            ("{\"a\": 1}", "not a journal"),
            ("{\"journal\":{}}\n", "an earlier version"),
        ] {
            fs::write(&path, text).unwrap();
            let message = Journal::open(&path, &json!({})).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let message = Journal::open(folder.path(), &json!({})).unwrap_err().to_string();
        assert!(message.contains("a folder"), "{message}");
    }

    #[test]
    fn a_journal_has_one_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let held = Journal::open(&path, &json!({})).unwrap();
        let message = Journal::open(&path, &json!({})).unwrap_err().to_string();
        assert!(message.contains("in use by another process"), "{message}");
        let of_a_child = held.file.as_ref().map(|(_, file)| file.try_clone().unwrap());
        drop(held);
        Journal::open(&path, &json!({})).unwrap();
        drop(of_a_child);
    }
}
