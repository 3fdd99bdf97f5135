//! The tokenizer `bert` of GGUF files: WordPiece, whose pieces the converter spells as SentencePiece would.

use super::tokenizer::Tokens;
use crate::ModelError;
use crate::tokenizer::{
    AddedTokens, Behavior, CONTROL, Cut, Decoder, Decoding, Model, Normalization, Normalizer, Pattern, Pipeline,
    PreTokenizer, SPACE_PIECE, Surroundings, Unknown, Vocabulary, WordPieces, is_punctuation,
};

/// Prefix of every piece of a word except the first, in tokenizer.json.
const CONTINUING: &str = "##";
/// Words of more characters are unknown, as in every released model.
const LONGEST_WORD: usize = 100;

impl Tokens<'_> {
    /// A vocabulary of WordPiece: the first piece of a word begins with `▁`, the others have no mark.
    pub(super) fn word_pieces(&self) -> Result<Pipeline, ModelError> {
        let broken = |problem: String| self.broken(&problem);
        let texts: Vec<String> = self.pieces_by_kind().map(|(text, kind)| spelt(text, kind)).collect();
        let numbered = texts.iter().enumerate();
        let vocabulary = Vocabulary::new(numbered.map(|(id, text)| (id as u32, text.as_str()))).map_err(broken)?;
        let is_cased = has_capitals(&texts);
        let token = |setting: &'static str, usual: &str| -> Result<Option<u32>, ModelError> {
            Ok(self.named(setting)?.or_else(|| vocabulary.id(usual)))
        };
        let first = match self.named("cls_token_id")? {
            None => token("bos_token_id", "[CLS]")?,
            named => named,
        };
        let last: Vec<u32> = token("seperator_token_id", "[SEP]")?.into_iter().collect();
        let unknown = token("unknown_token_id", "[UNK]")?.map(|id| texts[id as usize].as_str());
        let model = WordPieces {
            unknown: Unknown::new(unknown, &vocabulary),
            continuing_prefix: CONTINUING.to_owned(),
            longest_word: LONGEST_WORD,
            longest_piece: vocabulary.longest_text(),
        };
        let mut steps = vec![Normalization::CleanText, Normalization::SpacedIdeographs];
        if !is_cased {
            steps.extend([Normalization::StripNonSpacingMarks, Normalization::Lowercase]);
        }
        let cuts = vec![
            Cut::split(Pattern::Character(char::is_whitespace), Behavior::Removed),
            Cut::isolated(Pattern::Character(is_punctuation)),
        ];
        Ok(Pipeline {
            added: AddedTokens::new(self.added_tokens()).map_err(broken)?,
            normalizer: Normalizer::new(steps).map_err(broken)?,
            pre_tokenizer: PreTokenizer::new(cuts).map_err(broken)?,
            model: Model::WordPieces(model),
            surroundings: Surroundings::new(first.into_iter().collect(), last.clone()).with_pair(last, true),
            decoder: Decoder::new(vec![Decoding::WordPiece(CONTINUING.to_owned(), true)]).map_err(broken)?,
            vocabulary,
        })
    }
}

/// True for the vocabulary of a model that reads capitals, in which many pieces have them. Files do not say it.
fn has_capitals(texts: &[String]) -> bool {
    let is_cased = |text: &&String| !text.contains('[') && text.contains(|c: char| c.is_ascii_uppercase());
    texts.iter().filter(is_cased).count() * 100 > texts.len()
}

/// A piece as tokenizer.json spells it.
fn spelt(text: &str, kind: u8) -> String {
    if kind == CONTROL || text.starts_with('[') && text.len() > 1 && text.ends_with(']') {
        return text.to_owned();
    }
    match text.strip_prefix(SPACE_PIECE) {
        Some(first) => first.to_owned(),
        None => format!("{CONTINUING}{text}"),
    }
}
