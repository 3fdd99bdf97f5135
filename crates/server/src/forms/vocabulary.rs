//! The model's tokens as bytes, for the check of forms.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use riffle_engine::Engine;
use riffle_model::Tokenizer;
use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

/// Limits that keep the work for one token within some milliseconds.
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 1000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 200_000,
    step_max_items: 50_000,
    max_lexer_states: 50_000,
    max_grammar_size: 200_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};

/// The tokens of an engine's model in a tree of their bytes, and its tokenizer.
struct Vocabulary {
    engine: Arc<Engine>,
    tree: TokTrie,
}

/// Creates the parsers that prepare forms for an engine's model.
pub(super) fn factory(engine: &Arc<Engine>) -> Result<Arc<ParserFactory>, String> {
    let tokenizer = engine.tokenizer().map_err(|error| error.to_string())?;
    let ends = &engine.generation_defaults().eos;
    let Some(end) = ends.first().copied().or(tokenizer.eos()) else {
        return Err("this model has no token that ends a text, which structured output needs".to_owned());
    };
    let vocab_size = engine.model().config().vocab_size;
    let info = TokRxInfo::new(u32::try_from(vocab_size).map_err(|error| error.to_string())?, end);
    let words: Result<Vec<Vec<u8>>, String> = (0..info.vocab_size).map(|id| bytes_of(tokenizer, id)).collect();
    let tree = TokTrie::from(&info, &words?);
    let tree = match ends.len() {
        0 | 1 => tree,
        _ => tree.with_eos_tokens(ends),
    };
    let environment: TokEnv = Arc::new(Vocabulary {
        engine: Arc::clone(engine),
        tree,
    });
    let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
    *factory.limits_mut() = LIMITS;
    factory.quiet();
    Ok(Arc::new(factory))
}

/// The bytes of a token; special tokens are marked, so that no text matches them.
fn bytes_of(tokenizer: &Tokenizer, id: TokenId) -> Result<Vec<u8>, String> {
    let bytes = tokenizer.token_bytes(id).map_err(|error| error.to_string())?;
    Ok(if tokenizer.is_special(id) {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes.as_slice()].concat()
    } else {
        bytes
    })
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.tree
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let encode = |text: &str| self.engine.tokenizer().ok()?.encode(text, false).ok();
        self.tree
            .tokenize_with_greedy_fallback(bytes, |text| encode(text).unwrap_or_default())
    }

    fn tokenize_is_canonical(&self) -> bool {
        // Tokenizers that put a space before a text split its middle differently.
        false
    }
}
