//! Decodes tokens to text.

use serde::Deserialize;
use serde_json::Value;

use super::byte_level::byte_of;
use super::growth::{self, Bounded};
use super::pattern::{Pattern, PatternText};
use super::piece_spaces::SPACE_PIECE;
use super::pre_tokenizer::Prepend;

const REPLACEMENT: &str = "\u{fffd}";

/// The steps of a decoder, in order.
#[derive(Debug, Clone)]
pub(crate) struct Decoder {
    /// `None` if a file has no decoder: tokens are joined with spaces.
    steps: Option<Vec<Decoding>>,
}

/// A step, which maps a list of texts to another.
#[derive(Debug, Clone)]
pub(crate) enum Decoding {
    /// Printable characters become bytes, and all texts are joined.
    Bytes,
    /// Tokens `<0xXX>` become bytes.
    ByteTokens,
    /// All texts joined.
    Fuse,
    Replace(Pattern, String),
    /// Removes a limited number of a character at the left and the right end of each text.
    Strip(char, usize, usize),
    /// A character for spaces becomes a space; with the flag, the first text's leading one is removed.
    Spaces(char, bool),
    WordPiece(String, bool),
    /// A suffix becomes a space; the last text's is removed.
    Suffix(String),
    Ctc(String, String, bool),
}

/// A decoder in tokenizer.json's form.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum DecoderText {
    #[serde(rename = "BPEDecoder")]
    BytePairs {
        suffix: String,
    },
    ByteLevel,
    WordPiece {
        prefix: String,
        cleanup: bool,
    },
    Metaspace {
        replacement: char,
        add_prefix_space: Option<bool>,
        prepend_scheme: Option<Prepend>,
    },
    #[serde(rename = "CTC")]
    Ctc {
        pad_token: String,
        word_delimiter_token: String,
        cleanup: bool,
    },
    Sequence {
        decoders: Vec<DecoderText>,
    },
    Replace {
        pattern: PatternText,
        content: String,
    },
    Fuse,
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    ByteFallback,
}

impl Decoder {
    /// The decoder of a tokenizer.json.
    pub(crate) fn from_json(value: Option<Value>) -> Result<Decoder, String> {
        let Some(value) = value else {
            return Ok(Decoder { steps: None });
        };
        let text: DecoderText = serde_json::from_value(value).map_err(|error| format!("decoder: {error}"))?;
        let mut steps = Vec::new();
        text.push_steps(&mut steps)?;
        Decoder::new(steps)
    }

    /// A decoder of these steps.
    pub(crate) fn new(steps: Vec<Decoding>) -> Result<Decoder, String> {
        growth::check("decoder", steps.iter().map(Decoding::growth))?;
        Ok(Decoder { steps: Some(steps) })
    }

    /// True if tokens `<0xXX>` are decoded as bytes.
    pub(crate) fn reads_byte_tokens(&self) -> bool {
        let mut steps = self.steps.iter().flatten();
        steps.any(|step| matches!(step, Decoding::ByteTokens))
    }

    /// The bytes of a token in the middle of a text.
    pub(crate) fn bytes_in_text(&self, token: &str) -> Result<Vec<u8>, String> {
        // A text that no decoder changes and no tokenizer contains.
        const BEFORE: &str = "\u{1}";
        let mut steps = self.steps.iter().flatten();
        if steps.any(|step| matches!(step, Decoding::Bytes)) {
            let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
            return Ok(bytes.unwrap_or_else(|| token.as_bytes().to_vec()));
        }
        if let (true, Some(byte)) = (self.reads_byte_tokens(), byte_token(token)) {
            return Ok(vec![byte]);
        }
        let text = self.decode(vec![BEFORE.to_owned(), token.to_owned()])?;
        Ok(text.strip_prefix(BEFORE).unwrap_or(&text).as_bytes().to_vec())
    }

    /// The text of tokens.
    pub(crate) fn decode(&self, mut tokens: Vec<String>) -> Result<String, String> {
        let Some(steps) = &self.steps else {
            return Ok(tokens.join(" "));
        };
        for step in steps {
            tokens = step.apply(tokens)?;
        }
        Ok(tokens.concat())
    }
}

impl DecoderText {
    fn push_steps(self, steps: &mut Vec<Decoding>) -> Result<(), String> {
        if steps.len() > growth::MOST_STEPS {
            return Ok(());
        }
        steps.push(match self {
            DecoderText::BytePairs { suffix } => Decoding::Suffix(suffix),
            DecoderText::ByteLevel => Decoding::Bytes,
            DecoderText::WordPiece { prefix, cleanup } => Decoding::WordPiece(prefix, cleanup),
            DecoderText::Metaspace {
                replacement,
                add_prefix_space,
                prepend_scheme,
            } => {
                let never = add_prefix_space == Some(false) || prepend_scheme == Some(Prepend::Never);
                Decoding::Spaces(replacement, !never)
            }
            DecoderText::Ctc {
                pad_token,
                word_delimiter_token,
                cleanup,
            } => Decoding::Ctc(pad_token, word_delimiter_token, cleanup),
            DecoderText::Sequence { decoders } => {
                return decoders.into_iter().try_for_each(|step| step.push_steps(steps));
            }
            DecoderText::Replace { pattern, content } => Decoding::Replace(pattern.compile()?, content),
            DecoderText::Fuse => Decoding::Fuse,
            DecoderText::Strip { content, start, stop } => Decoding::Strip(content, start, stop),
            DecoderText::ByteFallback => Decoding::ByteTokens,
        });
        Ok(())
    }
}

impl Decoding {
    /// The steps from SentencePiece's pieces to a text, including the leading space.
    pub(crate) fn for_pieces() -> Vec<Decoding> {
        vec![
            Decoding::Replace(Pattern::Text(SPACE_PIECE.to_owned()), " ".into()),
            Decoding::ByteTokens,
            Decoding::Fuse,
        ]
    }

    /// Upper bound of the ratio of output to input length.
    fn growth(&self) -> f64 {
        match self {
            Decoding::Replace(pattern, content) => match pattern.shortest_match() {
                0 => content.len() as f64 + 1.0,
                shortest => content.len() as f64 / shortest as f64,
            },
            // An empty text between every two characters.
            Decoding::Suffix(_) | Decoding::Ctc(..) | Decoding::WordPiece(..) => 2.0,
            Decoding::Bytes => 3.0,
            _ => 1.0,
        }
    }

    fn apply(&self, tokens: Vec<String>) -> Result<Vec<String>, String> {
        let count = tokens.len();
        let tokens = tokens.into_iter();
        Ok(match self {
            Decoding::Bytes => vec![bytes_to_text(tokens)],
            Decoding::ByteTokens => byte_tokens_to_text(tokens),
            Decoding::Fuse => vec![tokens.collect()],
            Decoding::Replace(pattern, content) => {
                let replaced = tokens.map(|token| replace(&token, pattern, content));
                return replaced.collect();
            }
            Decoding::Strip(character, start, stop) => tokens
                .map(|token| strip(&token, *character, *start, *stop).to_owned())
                .collect(),
            Decoding::Spaces(replacement, strips_first) => tokens
                .enumerate()
                .map(|(at, token)| {
                    if at == 0 && *strips_first {
                        token.replace(*replacement, "")
                    } else {
                        token.replace(*replacement, " ")
                    }
                })
                .collect(),
            Decoding::WordPiece(prefix, cleanup) => tokens
                .enumerate()
                .map(|(at, token)| word_piece(at, token, prefix, *cleanup))
                .collect(),
            Decoding::Suffix(suffix) => tokens
                .enumerate()
                .map(|(at, token)| token.replace(suffix.as_str(), if at + 1 == count { "" } else { " " }))
                .collect(),
            Decoding::Ctc(pad, delimiter, cleanup) => {
                let mut tokens: Vec<String> = tokens.collect();
                tokens.dedup();
                let texts = tokens.into_iter().map(|token| {
                    let text = token.replace(pad.as_str(), "");
                    match cleanup {
                        true => tidy(&text).replace(delimiter.as_str(), " "),
                        false => text,
                    }
                });
                texts.filter(|text| !text.is_empty()).collect()
            }
        })
    }
}

fn bytes_to_text(tokens: impl Iterator<Item = String>) -> String {
    let mut bytes = Vec::new();
    for token in tokens {
        let before = bytes.len();
        bytes.extend(token.chars().map_while(byte_of));
        // A token that does not spell bytes is its own text.
        if bytes.len() - before < token.chars().count() {
            bytes.truncate(before);
            bytes.extend(token.bytes());
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The byte of a token such as `<0x0A>`.
pub(crate) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

fn byte_tokens_to_text(tokens: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts = Vec::new();
    let mut bytes = Vec::new();
    let end_run = |bytes: &mut Vec<u8>, texts: &mut Vec<String>| match String::from_utf8(std::mem::take(bytes)) {
        Ok(text) if text.is_empty() => {}
        Ok(text) => texts.push(text),
        // A run is valid or invalid as a whole.
        Err(error) => texts.extend(error.as_bytes().iter().map(|_| REPLACEMENT.to_owned())),
    };
    for token in tokens {
        match byte_token(&token) {
            Some(byte) => bytes.push(byte),
            None => {
                end_run(&mut bytes, &mut texts);
                texts.push(token);
            }
        }
    }
    end_run(&mut bytes, &mut texts);
    texts
}

fn replace(token: &str, pattern: &Pattern, content: &str) -> Result<String, String> {
    let mut output = Bounded::new(token.len());
    let mut end = 0;
    pattern.find(token, |found| {
        output.push(&token[end..found.start])?;
        end = found.end;
        output.push(content)
    })?;
    output.push(&token[end..])?;
    Ok(output.finish())
}

fn strip(token: &str, character: char, start: usize, stop: usize) -> &str {
    let mut token = token;
    for _ in 0..start {
        let Some(rest) = token.strip_prefix(character) else {
            break;
        };
        token = rest;
    }
    for _ in 0..stop {
        let Some(rest) = token.strip_suffix(character) else {
            break;
        };
        token = rest;
    }
    token
}

fn word_piece(at: usize, token: String, prefix: &str, cleanup: bool) -> String {
    let token = match token.strip_prefix(prefix) {
        _ if at == 0 => token,
        Some(rest) => rest.to_owned(),
        None => format!(" {token}"),
    };
    if cleanup { tidy(&token) } else { token }
}

/// Joins English text split by BERT's tokenizer.
fn tidy(text: &str) -> String {
    let pairs = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    pairs
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}
