//! Reads and checks tokenizer.model, a SentencePiece model.

use super::charsmap::CharacterMap;
use super::folder::{Source, SourceError};
use super::protobuf::Message;
use super::sentence_pieces::{Algorithm, BYTE, CONTROL, NORMAL, SentencePieces};
use super::settings::TokenizerSettings;

/// Numbers of the used fields.
mod field {
    pub(super) const PIECE: u64 = 1;
    pub(super) const TRAINER: u64 = 2;
    pub(super) const NORMALIZER: u64 = 3;
    pub(super) mod piece {
        pub(crate) const TEXT: u64 = 1;
        pub(crate) const SCORE: u64 = 2;
        pub(crate) const KIND: u64 = 3;
    }
    pub(super) mod trainer {
        pub(crate) const ALGORITHM: u64 = 3;
        pub(crate) const SPACE_AT_END: u64 = 24;
        pub(crate) const SPELLS_BYTES: u64 = 35;
        pub(crate) const BOS: u64 = 41;
        pub(crate) const EOS: u64 = 42;
    }
    pub(super) mod normalizer {
        pub(crate) const MAP: u64 = 2;
        pub(crate) const ADDS_SPACE: u64 = 3;
        pub(crate) const REMOVES_EXTRA_SPACES: u64 = 4;
        pub(crate) const ESCAPES_SPACES: u64 = 5;
    }
}

/// Maximum number of pieces: several times the largest known model's.
const MOST_PIECES: usize = 1 << 22;
const UNIGRAM: u64 = 1;
const BYTE_PAIRS: u64 = 2;

/// The parts of a model that affect how it reads texts.
struct Read<'a> {
    pieces: SentencePieces<'a>,
    algorithm: u64,
    bos: u64,
    eos: u64,
    has_trainer: bool,
    has_normalizer: bool,
}

/// Reads the bytes of a tokenizer.model.
pub(super) fn read(bytes: &[u8], settings: &TokenizerSettings) -> Result<Source, SourceError> {
    let read = parse(bytes).map_err(|problem| format!("it is no SentencePiece model: {problem}"))?;
    let Read { mut pieces, .. } = read;
    pieces.algorithm = match read.algorithm {
        UNIGRAM => Algorithm::Unigram,
        BYTE_PAIRS => Algorithm::Merging,
        3 => return Err(SourceError::Unsupported("SentencePiece model of whole words".into())),
        4 => return Err(SourceError::Unsupported("SentencePiece model of characters".into())),
        other => return Err(SourceError::Unsupported(format!("SentencePiece model of type {other}"))),
    };
    let control = |id: u64| {
        usize::try_from(id)
            .ok()
            .filter(|id| pieces.kinds.get(*id) == Some(&CONTROL))
    };
    let (bos, eos) = (control(read.bos), control(read.eos));
    let (bos, eos) = (bos.map(|id| id as u32), eos.map(|id| id as u32));
    let (bos, eos) = (
        settings.token_id(&pieces.texts, "bos_token").or(bos),
        settings.token_id(&pieces.texts, "eos_token").or(eos),
    );
    let surroundings = settings.surroundings(bos, eos);
    let pipeline = pieces.pipeline(|own| settings.with_added_tokens(own), surroundings)?;
    Ok(Source { pipeline, bos, eos })
}

/// Texts, kinds and scores.
type Pieces = (Vec<String>, Vec<u8>, Vec<f32>);

/// The pieces of a tokenizer.model that merges by score; `None` for other kinds.
pub(super) fn pieces(bytes: &[u8]) -> Result<Option<Pieces>, String> {
    let read = parse(bytes)?;
    let SentencePieces {
        texts, kinds, scores, ..
    } = read.pieces;
    let texts = texts.into_iter().map(str::to_owned).collect();
    Ok(Some((texts, kinds, scores)).filter(|_| read.algorithm == BYTE_PAIRS))
}

fn parse(bytes: &[u8]) -> Result<Read<'_>, String> {
    let mut read = Read {
        pieces: SentencePieces {
            texts: Vec::new(),
            scores: Vec::new(),
            kinds: Vec::new(),
            algorithm: Algorithm::Unigram,
            map: None,
            adds_space: true,
            space_at_end: false,
            removes_extra_spaces: true,
            escapes_spaces: true,
            spells_bytes: false,
        },
        algorithm: UNIGRAM,
        bos: 1,
        eos: 2,
        has_trainer: false,
        has_normalizer: false,
    };
    for field in Message::new(bytes) {
        let (number, value) = field?;
        match number {
            field::PIECE => read_piece(Message::new(value.bytes()?), &mut read.pieces)?,
            field::TRAINER => {
                read.has_trainer = true;
                read_trainer(Message::new(value.bytes()?), &mut read)?;
            }
            field::NORMALIZER => {
                read.has_normalizer = true;
                read_normalizer(Message::new(value.bytes()?), &mut read.pieces)?;
            }
            _ => {}
        }
    }
    if read.pieces.texts.is_empty() {
        return Err("it holds no pieces".into());
    }
    // The settings follow the pieces. A file without settings is truncated.
    if !(read.has_trainer && read.has_normalizer) {
        return Err("it ends before its settings".into());
    }
    Ok(read)
}

fn read_piece<'a>(message: Message<'a>, pieces: &mut SentencePieces<'a>) -> Result<(), String> {
    use field::piece::{KIND, SCORE, TEXT};
    let id = pieces.texts.len();
    if id == MOST_PIECES {
        return Err(format!("it has more than {MOST_PIECES} pieces"));
    }
    let (mut text, mut score, mut kind) = ("", 0.0, u64::from(NORMAL));
    for field in message {
        let (number, value) = field?;
        match number {
            TEXT => text = value.text()?,
            SCORE => score = value.float()?,
            KIND => kind = value.number()?,
            _ => {}
        }
    }
    let known = u8::try_from(kind).ok().filter(|kind| (NORMAL..=BYTE).contains(kind));
    pieces
        .kinds
        .push(known.ok_or_else(|| format!("piece {id} is of the unknown type {kind}"))?);
    if !score.is_finite() {
        return Err(format!("the score of piece {id} is not a number"));
    }
    pieces.texts.push(text);
    pieces.scores.push(score);
    Ok(())
}

fn read_trainer(message: Message<'_>, read: &mut Read<'_>) -> Result<(), String> {
    use field::trainer::{ALGORITHM, BOS, EOS, SPACE_AT_END, SPELLS_BYTES};
    for field in message {
        let (number, value) = field?;
        match number {
            ALGORITHM => read.algorithm = value.number()?,
            SPACE_AT_END => read.pieces.space_at_end = value.flag()?,
            SPELLS_BYTES => read.pieces.spells_bytes = value.flag()?,
            BOS => read.bos = value.number()?,
            EOS => read.eos = value.number()?,
            _ => {}
        }
    }
    Ok(())
}

fn read_normalizer(message: Message<'_>, pieces: &mut SentencePieces<'_>) -> Result<(), String> {
    use field::normalizer::{ADDS_SPACE, ESCAPES_SPACES, MAP, REMOVES_EXTRA_SPACES};
    for field in message {
        let (number, value) = field?;
        match number {
            MAP => pieces.map = CharacterMap::from_model(value.bytes()?)?,
            ADDS_SPACE => pieces.adds_space = value.flag()?,
            REMOVES_EXTRA_SPACES => pieces.removes_extra_spaces = value.flag()?,
            ESCAPES_SPACES => pieces.escapes_spaces = value.flag()?,
            _ => {}
        }
    }
    Ok(())
}
