//! The logits of every position, written for verification against another implementation.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_engine::{Engine, Session};
use riffle_kv::{OutputError, OutputFile, OutputWriter};
use serde::Serialize;
use serde_json::json;

use crate::EvalError;
use crate::files::LOGITS;

/// Limit on the bytes of a file of token ids, about 40 million ids.
const LARGEST_TOKENS_BYTES: u64 = 256 << 20;

/// Summary of the logits written to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogitsReport {
    /// The safetensors file; its tensor `logits` is f32 `[tokens, vocab]`.
    pub path: PathBuf,
    /// Positions.
    pub tokens: usize,
    /// Logits a position.
    pub vocab_size: usize,
}

/// Reads token ids from a file: a JSON array, or numbers separated by spaces, commas or lines.
///
/// # Errors
/// The error names the file and the first text that is not an id.
pub fn read_tokens(path: &Path) -> Result<Vec<u32>, EvalError> {
    let text = riffle_files::read_text(path, LARGEST_TOKENS_BYTES);
    let text = text.map_err(|error| EvalError::file(path, &error.into()))?;
    parse_tokens(&text, path)
}

/// Parses token ids: a JSON array, or numbers separated by spaces, commas or lines. `path` is their origin, for
/// errors.
///
/// # Errors
/// The error names `path` and the first text that is not an id.
pub fn parse_tokens(text: &str, path: &Path) -> Result<Vec<u32>, EvalError> {
    let text = text.trim();
    let text = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    let tokens = text
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|word| !word.is_empty())
        .map(|word| {
            word.parse().map_err(|_| EvalError::NotATokenId {
                path: path.to_owned(),
                found: word.chars().take(40).collect(),
            })
        })
        .collect::<Result<Vec<u32>, _>>()?;
    if tokens.is_empty() {
        return Err(EvalError::NoTokens(path.to_owned()));
    }
    Ok(tokens)
}

/// Checks, before a model is loaded, that [`write_logits`] can write to `out`.
///
/// # Errors
/// [`EvalError::Output`].
pub fn check_logits(out: &Path) -> Result<(), EvalError> {
    OutputFile::check(out, LOGITS)?;
    Ok(())
}

/// Runs `tokens` through the model and writes the logits of every position to `out`. It writes row by row, so memory
/// does not grow with the input. The file appears only when it is complete; an existing file is replaced only if this
/// function wrote it.
///
/// # Errors
/// Errors of the model or the file system.
pub fn write_logits(engine: &Arc<Engine>, tokens: &[u32], out: &Path) -> Result<LogitsReport, EvalError> {
    let vocab_size = engine.model().config().vocab_size;
    let mut file = OutputFile::check(out, LOGITS)?.create()?;
    write_rows(engine, tokens, vocab_size, &mut file, out)?;
    file.finish()?;
    Ok(LogitsReport {
        path: out.to_owned(),
        tokens: tokens.len(),
        vocab_size,
    })
}

fn write_rows(
    engine: &Arc<Engine>,
    tokens: &[u32],
    vocab_size: usize,
    file: &mut OutputWriter,
    path: &Path,
) -> Result<(), EvalError> {
    let mut session = Session::new(engine)?;
    let failed = |source: io::Error| OutputError::System {
        path: path.to_owned(),
        source,
    };
    file.write_all(&safetensors_header("logits", &[tokens.len(), vocab_size]))
        .map_err(failed)?;
    let mut write_error = None;
    let result = session.prefill_with_logits(tokens, &mut |_, logits| {
        let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        match file.write_all(&bytes) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                write_error = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    if let Some(error) = write_error {
        return Err(failed(error).into());
    }
    result?;
    Ok(())
}

/// The header of a safetensors file with one f32 tensor: its length (u64, little endian), then JSON padded to 8
/// bytes.
fn safetensors_header(name: &str, shape: &[usize]) -> Vec<u8> {
    let bytes = shape.iter().product::<usize>() * size_of::<f32>();
    let mut head = json!({ name: { "dtype": "F32", "shape": shape, "data_offsets": [0, bytes] } })
        .to_string()
        .into_bytes();
    head.resize(head.len().next_multiple_of(8), b' ');
    let mut header = (head.len() as u64).to_le_bytes().to_vec();
    header.append(&mut head);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tokens_in(text: &str) -> Result<Vec<u32>, EvalError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, text).unwrap();
        read_tokens(&path)
    }

    #[test]
    fn token_files_may_be_json_or_plain_numbers() {
        assert_eq!(tokens_in("[1, 2,\n 3]").unwrap(), [1, 2, 3]);
        assert_eq!(tokens_in("1 2\n3,4\n").unwrap(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_token_file_with_words_names_the_first_one() {
        let message = tokens_in("[1, two]").unwrap_err().to_string();
        assert!(message.contains("\"two\" is not a token id"), "{message}");
        if cfg!(unix) {
            let message = read_tokens(Path::new("/dev/zero")).unwrap_err().to_string();
            assert!(message.contains("a device"), "{message}");
        }
        assert!(tokens_in("[]").unwrap_err().to_string().contains("no token ids"));
    }

    #[test]
    fn the_header_is_what_the_safetensors_crate_reads() {
        let mut file = safetensors_header("logits", &[2, 3]);
        file.extend((0..6).flat_map(|i| (i as f32).to_le_bytes()));
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let logits = tensors.tensor("logits").unwrap();
        assert_eq!(logits.shape(), [2, 3]);
        assert_eq!(logits.data()[20..], 5f32.to_le_bytes());
    }
}
