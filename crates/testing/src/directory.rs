//! Writes the text files of a model directory from one input, for the fuzz target and the tests of riffle-model.

use std::path::Path;

const FILES: [&str; 7] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "tekken.json",
    "tokenizer.model",
];

/// Writes the files from an input with the byte 0xff between them. No text file contains that byte; the last file is
/// not text. An empty part means a missing file.
pub fn write_directory(folder: &Path, bytes: &[u8]) {
    let mut parts = bytes.splitn(FILES.len(), |byte| *byte == 0xff);
    for file in FILES {
        let path = folder.join(file);
        match parts.next() {
            Some(part) if !part.is_empty() => std::fs::write(&path, part).expect("the input is written"),
            _ => _ = std::fs::remove_file(&path),
        }
    }
}
