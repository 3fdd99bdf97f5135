//! Reads tekken.json, Mistral's own tokenizer format: tokens as bytes, merged by rank.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;
use serde_json::json;

use super::added::{AddedToken, AddedTokens};
use super::base64::from_base64;
use super::byte_level::push_byte;
use super::byte_pairs::{BytePairs, Unknown};
use super::decoder::{Decoder, Decoding};
use super::folder::{Source, SourceError};
use super::merges::{Merges, Scores};
use super::model::Model;
use super::neighbours::Neighbours;
use super::normalizer::Normalizer;
use super::pattern::{self, Pattern};
use super::pipeline::Pipeline;
use super::pre_tokenizer::{Cut, PreTokenizer};
use super::settings::TokenizerSettings;
use super::vocabulary::Vocabulary;

const BOS: &str = "<s>";
const EOS: &str = "</s>";
/// Maximum number of special tokens; known files have a thousand.
const MOST_SPECIAL: usize = 1 << 12;

/// The special tokens of files without a list, by id.
const OLDER_SPECIAL: [&str; 20] = [
    "<unk>",
    BOS,
    EOS,
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// The contents of tekken.json for text.
#[derive(Deserialize)]
struct File<'a> {
    config: Config,
    #[serde(borrow)]
    vocab: Vec<RankedText<'a>>,
    special_tokens: Option<Vec<SpecialText>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct RankedText<'a> {
    rank: usize,
    #[serde(borrow)]
    token_bytes: Cow<'a, str>,
}

#[derive(Deserialize)]
struct SpecialText {
    rank: usize,
    token_str: String,
    #[serde(default = "yes")]
    is_control: bool,
}

fn yes() -> bool {
    true
}

/// Reads the bytes of a tekken.json.
pub(super) fn read(bytes: &[u8], settings: &TokenizerSettings) -> Result<Source, SourceError> {
    let file: File<'_> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let special = file.config.default_num_special_tokens;
    let tokens = file
        .config
        .default_vocab_size
        .checked_sub(special)
        .filter(|tokens| *tokens <= file.vocab.len());
    let Some(tokens) = tokens.filter(|_| special <= MOST_SPECIAL) else {
        return Err(SourceError::from(format!(
            "its vocabulary of {} tokens cannot hold default_vocab_size {} with default_num_special_tokens {special}",
            file.vocab.len(),
            file.config.default_vocab_size
        )));
    };
    let added = added_tokens(file.special_tokens, special)?;
    let id = |text: &str| added.iter().find(|token| token.text == text).map(|token| token.id);
    let (bos, eos) = (id(BOS), id(EOS));
    let surroundings = settings.surroundings(bos, eos);
    let texts = texts(&file.vocab[..tokens])?;
    let vocabulary = Vocabulary::new(
        texts
            .iter()
            .enumerate()
            .map(|(rank, text)| ((special + rank) as u32, text.as_str())),
    )?;
    let ranks = 0..special + tokens;
    let scores = ranks
        .map(|id| if id < special { f32::NAN } else { -(id as f32) })
        .collect();
    pattern::check_length([json!({"Regex": file.config.pattern})].iter())?;
    let model = BytePairs {
        merges: Merges::Scored(Scores::from_left(scores)),
        neighbours: Neighbours::new(&vocabulary),
        unknown: Unknown::Nothing,
        fuses_unknown: false,
        byte_tokens: Vec::new(),
        continuing_prefix: String::new(),
        word_suffix: String::new(),
        takes_whole_words: true,
    };
    let pipeline = Pipeline {
        added: AddedTokens::new(settings.with_added_tokens(added))?,
        normalizer: Normalizer::default(),
        pre_tokenizer: PreTokenizer::new(vec![
            Cut::isolated(Pattern::expression(&file.config.pattern)?),
            Cut::Bytes,
        ])?,
        model: Model::BytePairs(model),
        decoder: Decoder::new(vec![Decoding::Bytes])?,
        vocabulary,
        surroundings,
    };
    Ok(Source { pipeline, bos, eos })
}

/// The tokens by rank, with bytes as characters.
fn texts(vocabulary: &[RankedText<'_>]) -> Result<Vec<String>, String> {
    let mut seen = HashSet::with_capacity(vocabulary.len());
    let text = |(rank, token): (usize, &RankedText<'_>)| {
        if token.rank != rank {
            return Err(format!("token {rank} of its vocabulary has rank {}", token.rank));
        }
        let bytes =
            from_base64(&token.token_bytes).ok_or_else(|| format!("the bytes of token {rank} are not base64"))?;
        if rank < 256 && bytes != [rank as u8] {
            return Err(format!("token {rank} must be the byte {rank}"));
        }
        let mut text = String::with_capacity(bytes.len());
        bytes.iter().for_each(|byte| push_byte(*byte, &mut text));
        Ok(text)
    };
    let texts: Vec<String> = vocabulary.iter().enumerate().map(text).collect::<Result<_, _>>()?;
    if texts.len() < 256 {
        return Err(format!(
            "its vocabulary has {} tokens, fewer than there are bytes",
            texts.len()
        ));
    }
    match texts.iter().position(|text| !seen.insert(text.as_str())) {
        Some(rank) => Err(format!("token {rank} has the bytes of another one")),
        None => Ok(texts),
    }
}

/// The special tokens, whose ids precede all others; ids without a token get a generated text.
fn added_tokens(listed: Option<Vec<SpecialText>>, count: usize) -> Result<Vec<AddedToken>, String> {
    let older = OLDER_SPECIAL.iter().enumerate().map(|(rank, text)| SpecialText {
        rank,
        token_str: (*text).to_owned(),
        is_control: true,
    });
    let listed = listed.unwrap_or_else(|| older.collect());
    let fillers = (listed.len()..count).map(|rank| SpecialText {
        rank,
        token_str: format!("<SPECIAL_{rank}>"),
        is_control: true,
    });
    let fillers: Vec<SpecialText> = fillers.collect();
    let (mut ids, mut texts) = (HashSet::new(), HashSet::new());
    let token = |token: SpecialText| {
        if token.rank >= count || !ids.insert(token.rank) || !texts.insert(token.token_str.clone()) {
            return Err(format!(
                "special token {:?} has id {}, which is another's or not below {count}",
                token.token_str, token.rank
            ));
        }
        Ok(AddedToken::new(token.rank as u32, token.token_str, token.is_control))
    };
    listed.into_iter().chain(fillers).map(token).collect()
}
