//! Selects formats, policies and context by free memory and by the lengths from which policies are faster.

use std::fmt;
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{Engine, EngineError, EngineOptions, human_bytes, policy_shapes};
use riffle_policy::{Phase, PolicyRules, PolicySpec};
use serde::Serialize;

use crate::AskError;

/// The policy for long documents; it finds facts at any position. Full attention writes the answers, because `quest`,
/// `twilight` and `certified` lost facts on popular models (docs/results/quality.md).
const LONG_PREFILL: &str = "peaks";

/// The policy is selected from this multiple of its break-even length; there its gain is worth the risk.
const BREAK_EVENS: usize = 8;

/// Tokens for later questions and their answers, if the model and the memory have space.
const LATER_TOKENS: usize = 4096;

/// Minimum tokens of an answer.
const SHORT_ANSWER_TOKENS: usize = 256;

/// Options that the caller set and that must not change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Given {
    /// The format of keys and values.
    pub format: bool,
    /// The context's length.
    pub context: bool,
    /// The policy of the prompt.
    pub prefill: bool,
    /// The policy of answers.
    pub decode: bool,
}

/// The selected options, each with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Documents.
    pub documents: usize,
    /// Tokens of the whole readable text.
    pub document_tokens: usize,
    /// Limit on the tokens of the parts for one question; `None` if the whole text is read.
    pub parts_tokens: Option<usize>,
    /// Tokens of documents, questions and answers together.
    pub context_tokens: usize,
    /// The format of keys and values.
    pub kv_format: String,
    /// Why this format.
    pub format_reason: String,
    /// The policy of the prompt.
    pub prefill: String,
    /// Why this policy.
    pub prefill_reason: String,
    /// The policy of answers.
    pub decode: String,
    /// Why this policy.
    pub decode_reason: String,
    /// True if another chunk length, another page length or another split of the documents may change the answer.
    pub depends_on_chunks: bool,
}

/// Formats the choice as one line.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = match self.documents {
            1 => "1 document".to_owned(),
            count => format!("{count} documents"),
        };
        write!(
            f,
            "{count}, {} tokens{}: context {}, keys and values in {} ({}), documents read by {} ({}), answers by {} ({})",
            self.document_tokens,
            match self.parts_tokens {
                Some(tokens) => format!(", {tokens} at a time"),
                None => String::new(),
            },
            self.context_tokens,
            self.kv_format,
            self.format_reason,
            policy_name(&self.prefill),
            self.prefill_reason,
            policy_name(&self.decode),
            self.decode_reason,
        )
    }
}

/// A policy's name without its parameters.
fn policy_name(policy: &str) -> &str {
    policy.split(':').next().unwrap_or(policy)
}

/// Tokens that the documents and the first question need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    pub(crate) documents: usize,
    pub(crate) document_tokens: usize,
    /// Tokens of the parts for a question; `None` if the whole text is read.
    pub(crate) parts_tokens: Option<usize>,
    pub(crate) prompt_tokens: usize,
    /// Limit on the tokens of an answer.
    pub(crate) answer_tokens: usize,
}

impl Need {
    /// Tokens of the documents, the first question and a short answer.
    pub(crate) fn least(&self) -> usize {
        self.prompt_tokens + self.answer_tokens.min(SHORT_ANSWER_TOKENS)
    }

    /// Tokens needed with a full answer and later questions.
    fn wide(&self) -> usize {
        self.prompt_tokens
            .saturating_add(self.answer_tokens)
            .saturating_add(LATER_TOKENS)
    }
}

/// Selects the options and returns the engine with them. `engine` has the weights; its other options are replaced.
pub(crate) fn choose(
    engine: &Engine,
    wanted: &EngineOptions,
    given: Given,
    need: Need,
) -> Result<(Arc<Engine>, Choice), AskError> {
    let limit = context_limit(engine, wanted, given);
    if need.least() > limit {
        return Err(AskError::TooLong {
            documents: need.document_tokens,
            rest: need.least() - need.document_tokens.min(need.least()),
            limit,
            is_given: wanted.model.context_tokens.is_some() && given.context,
            maximum: engine.model().config().max_position,
        });
    }
    let mut options = wanted.clone();
    let prefill = prefill_policy(
        engine,
        wanted,
        given.prefill,
        need.parts_tokens.unwrap_or(need.document_tokens),
    )?;
    let decode = decode_policy(wanted, given.decode);
    set_prefill(&mut options, &prefill.rules, given.prefill);
    options.sequence.decode = decode.rules.clone();
    let wide = need.wide().min(limit);
    let contexts = if given.context {
        vec![limit]
    } else {
        vec![wide, need.least().min(limit)]
    };
    let formats: &[Option<Format>] = if given.format {
        &[None]
    } else {
        &[Some(Format::F16), Some(Format::Q8_0)]
    };
    let mut refusal = None;
    for format in formats {
        for context in &contexts {
            let mut tried = options.clone().with_context_tokens(Some(*context));
            if let Some(format) = *format {
                (tried.cache.key_format, tried.cache.value_format) = (format, format);
            }
            match engine.with_options(tried) {
                Ok(engine) => {
                    let choice = described(
                        &engine,
                        need,
                        format_reason(&engine, given.format, *format),
                        [prefill, decode],
                    );
                    return Ok((engine, choice));
                }
                Err(error @ (EngineError::OutOfMemory { .. } | EngineError::TierTooSmall { .. })) => {
                    refusal = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Err(refusal.map_or(AskError::EmptyQuestion, AskError::Engine))
}

fn described(engine: &Engine, need: Need, format_reason: String, policies: [ChosenPolicy; 2]) -> Choice {
    let options = engine.options();
    let formats = [options.cache.key_format.name(), options.cache.value_format.name()];
    let [prefill, decode] = policies;
    Choice {
        documents: need.documents,
        document_tokens: need.document_tokens,
        parts_tokens: need.parts_tokens,
        context_tokens: engine.plan().context_tokens,
        kv_format: if formats[0] == formats[1] {
            formats[0].to_owned()
        } else {
            formats.join(":")
        },
        format_reason,
        prefill: options.sequence.prefill.to_string(),
        prefill_reason: prefill.reason,
        decode: options.sequence.decode.to_string(),
        decode_reason: decode.reason,
        depends_on_chunks: options.sequence.prefill.depends_on_chunks() || options.sequence.decode.depends_on_chunks(),
    }
}

fn format_reason(engine: &Engine, is_given: bool, format: Option<Format>) -> String {
    let bytes = human_bytes(engine.plan().kv_bytes);
    match format {
        _ if is_given => "as asked".to_owned(),
        Some(Format::Q8_0) => format!("{bytes} fit, f16 does not"),
        _ => format!("{bytes} fit"),
    }
}

/// Limit on the tokens of the context.
pub(crate) fn context_limit(engine: &Engine, wanted: &EngineOptions, given: Given) -> usize {
    let asked = wanted.model.context_tokens.filter(|_| given.context);
    asked.unwrap_or(engine.model().config().max_position)
}

struct ChosenPolicy {
    rules: PolicyRules,
    reason: String,
}

impl ChosenPolicy {
    fn new(rules: impl Into<PolicyRules>, reason: impl Into<String>) -> Self {
        Self {
            rules: rules.into(),
            reason: reason.into(),
        }
    }

    fn as_asked(rules: &PolicyRules) -> Self {
        Self::new(rules.clone(), "as asked")
    }
}

/// Policy for reading documents: the caller's; otherwise [`LONG_PREFILL`] for long documents and full attention for
/// short ones.
fn prefill_policy(
    engine: &Engine,
    wanted: &EngineOptions,
    is_given: bool,
    document_tokens: usize,
) -> Result<ChosenPolicy, AskError> {
    if is_given {
        return Ok(ChosenPolicy::as_asked(&wanted.sequence.prefill));
    }
    let spec: PolicySpec = LONG_PREFILL.parse().map_err(EngineError::from)?;
    let layers = policy_shapes(engine.model().config(), wanted);
    // The policy must be faster in every layer.
    let long = layers.iter().try_fold(0, |most: usize, layer| {
        let own = wanted.machine.cost.break_even_tokens(&spec, Phase::Prefill, layer)?;
        Some(most.max(own))
    });
    Ok(match long.map(|tokens| tokens.saturating_mul(BREAK_EVENS)) {
        Some(long) if document_tokens >= long => ChosenPolicy::new(spec, format!("from {long} tokens on")),
        Some(long) => ChosenPolicy::new(PolicySpec::full(), format!("{LONG_PREFILL} from {long} tokens on")),
        None => ChosenPolicy::new(PolicySpec::full(), format!("{LONG_PREFILL} never pays here")),
    })
}

/// The options with which a conversation reads documents of `document_tokens` tokens if the caller set no prefill
/// policy: `wanted` with the policy and chunk length that [`Conversation::open`](crate::Conversation::open) selects.
/// Both can then share pages.
///
/// # Errors
/// [`AskError::Engine`] for a policy that the model does not support.
pub fn reading_options(
    engine: &Engine,
    wanted: &EngineOptions,
    document_tokens: usize,
) -> Result<EngineOptions, AskError> {
    let prefill = prefill_policy(engine, wanted, false, document_tokens)?;
    let mut options = wanted.clone();
    set_prefill(&mut options, &prefill.rules, false);
    Ok(options)
}

/// Sets the prefill policy, and its preferred chunk length unless the caller set the policy.
fn set_prefill(options: &mut EngineOptions, rules: &PolicyRules, is_given: bool) {
    if let Some(chunk) = rules.preferred_chunk_tokens().filter(|_| !is_given) {
        options.machine.chunk_tokens = chunk.min(options.machine.batch_tokens);
    }
    options.sequence.prefill = rules.clone();
}

/// Policy for writing answers: the caller's, else full attention.
fn decode_policy(wanted: &EngineOptions, is_given: bool) -> ChosenPolicy {
    if is_given {
        ChosenPolicy::as_asked(&wanted.sequence.decode)
    } else {
        ChosenPolicy::new(PolicySpec::full(), "faster policies lose facts")
    }
}
