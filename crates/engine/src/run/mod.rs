//! One prompt in, one answer out, with measurements.

pub(crate) mod compress_session;
pub(crate) mod questions;
pub(crate) mod session_file;
pub(crate) mod time_left;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use riffle_model::{ConversationText, ExpertStatistics, LoadTimes};
use riffle_policy::{Phase, PolicyRules, dense_below};
use serde::Serialize;

use crate::run::session_file::SessionFile;
use crate::sharing::{
    MeasuredPrefixCache, PrefixCacheOptions, PrefixReport, SharedPrefixes, SharedReport, SharedStoreOptions,
    fill_prefix, prefix_cuts,
};
use crate::{
    AttentionTime, AuditReport, DraftCount, Engine, EngineError, GenerateOptions, Generation, MemoryPlan,
    PrefillProgress, Sequence, Session, SessionReport, StopReason, described_activations,
};

/// Longest wait at the end of a run for writes to the shared store.
const SHARING_TIME: Duration = Duration::from_secs(60);

/// A prompt and options for the answer.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The text to read; `None` continues the session's answer.
    pub prompt: Option<String>,
    /// Instructions for the model, if its chat template supports them.
    pub system: Option<String>,
    /// Wrap the prompt in the model's chat template, if it has one.
    pub chat: bool,
    /// The prompt comes from a document: special tokens spelt in it are text, unless `chat` is off and the prompt is
    /// the model's whole input.
    pub is_document: bool,
    /// The length, draws and ends of the answer.
    pub generate: GenerateOptions,
    /// A file from which the session is restored, if it exists, and to which it is saved.
    pub session: Option<PathBuf>,
    /// The cache in which known beginnings are looked up, and in which this prompt's beginning is stored.
    pub prefix_cache: Option<PrefixCacheOptions>,
    /// A store of beginnings shared with other processes and machines, searched after the prefix cache.
    pub shared_store: Option<SharedStoreOptions>,
}

/// An event during a run. Breaking ends the run.
#[derive(Debug, Clone, Copy)]
pub enum RunEvent<'a> {
    /// Sent every few milliseconds while the chat template renders.
    Waiting,
    /// The prompt is being read.
    Prefill(PrefillProgress),
    /// The answer's next piece of text.
    Text(&'a str),
}

/// The answer and the closing summary.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RunReport {
    /// The model's path.
    pub model: String,
    /// The generated text.
    pub text: String,
    /// Why generation ended.
    pub stop: StopReason,
    /// Tokens of the prompt, or of the session if its answer is continued.
    pub prompt_tokens: usize,
    /// Number of these that were not read again.
    pub reused_tokens: usize,
    /// Tokens read again because the text grew beyond the length at which the model's rotation changes (LongRoPE).
    pub turned_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Drafts of these tokens.
    pub drafts: DraftCount,
    /// The time of loading the model, by part, before the session was opened.
    pub load: LoadTimes,
    /// Milliseconds from opening the session to the first generated token.
    pub time_to_first_token_ms: f64,
    /// Prompt tokens read per second; 0 if none had to be read.
    pub prefill_tokens_per_s: f64,
    /// Tokens generated per second after the first; 0 for fewer than two.
    pub decode_tokens_per_s: f64,
    /// Share of causal query-key pairs that attention read, over the layers with policies.
    pub density: f64,
    /// Time spent in attention while the prompt was read, by part.
    pub prefill_attention: AttentionTime,
    /// Time spent in attention while the answer was generated.
    pub decode_attention: AttentionTime,
    /// The prefill policy.
    pub prefill_policy: String,
    /// The decode policy.
    pub decode_policy: String,
    /// True if another chunk length, another page length or a prompt read in two parts may change the answer:
    /// policies depend on chunks, a window drops tokens, prompt tokens are selected, or policies are chosen by the
    /// text.
    pub depends_on_chunks: bool,
    /// Contexts with fewer tokens were read densely by the prefill policy, because it would not pay off.
    pub prefill_dense_below: usize,
    /// As `prefill_dense_below`, for the decode policy.
    pub decode_dense_below: usize,
    /// The kept share of exact attention, if an audit was requested.
    pub audit: Option<AuditReport>,
    /// True if the prompt was wrapped in the model's chat template.
    pub chat_template_applied: bool,
    /// The KV cache at the end.
    pub kv: KvReport,
    /// The session's file, if there is one.
    pub session: Option<SessionReport>,
    /// The prefix cache, if there is one.
    pub prefix_cache: Option<PrefixReport>,
    /// The shared store, if there is one.
    pub shared_store: Option<SharedReport>,
    /// How linear layers read their input: exactly, or rounded and to which precision.
    pub activations: String,
    /// Counts of experts read from the model's files since it was loaded, if experts stay there.
    pub experts: Option<ExpertStatistics>,
    /// The plan of the run.
    pub plan: MemoryPlan,
    /// Number of computing threads.
    pub threads: usize,
}

/// The KV cache at the end of a run.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct KvReport {
    /// Tokens held.
    pub tokens: usize,
    /// Pages allocated, over all layers and KV heads.
    pub pages: usize,
    /// Tokens in a page.
    pub page_tokens: usize,
    /// Element formats of keys and values.
    pub format: String,
    /// Bytes in device memory; with a device, including copies of pages in RAM or on disk.
    pub device_bytes: u64,
    /// Bytes in RAM.
    pub ram_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes of these pages that other answers of the run share.
    pub shared_bytes: u64,
}

impl KvReport {
    fn new(sequence: &Sequence) -> Self {
        let (engine, usage) = (sequence.engine(), sequence.usage());
        let options = engine.options();
        Self {
            tokens: usage.tokens,
            pages: usage.pages,
            page_tokens: options.cache.page_tokens,
            format: format!(
                "{}:{}",
                options.cache.key_format.name(),
                options.cache.value_format.name()
            ),
            device_bytes: usage.bytes_by_tier.device + sequence.counts().device.page_bytes,
            ram_bytes: usage.bytes_by_tier.ram,
            disk_bytes: usage.bytes_by_tier.disk,
            shared_bytes: usage.shared_bytes,
        }
    }
}

/// Reads the prompt and generates the answer.
///
/// # Errors
/// Before anything is computed: [`EngineError::EmptyPrompt`], [`EngineError::ContextExceeded`], bad sampling options.
/// [`EngineError::Interrupted`] if the observer breaks during the prefill, [`ModelError::TemplateInterrupted`] if it
/// breaks while the chat template renders; a break during generation is a [`StopReason::Interrupted`] in the report.
///
/// [`ModelError::TemplateInterrupted`]: riffle_model::ModelError::TemplateInterrupted
pub fn run(
    engine: &Arc<Engine>,
    request: &RunRequest,
    observe: &mut dyn FnMut(RunEvent<'_>) -> ControlFlow<()>,
) -> Result<RunReport, EngineError> {
    request.generate.sampling.validate()?;
    let prompt = request.prompt.as_ref();
    let prompt = prompt
        .map(|prompt| prompt_tokens(engine, request, prompt, &mut || observe(RunEvent::Waiting)))
        .transpose()?;
    let prefix = request.prefix_cache.as_ref().filter(|_| prompt.is_some());
    let mut prefix = prefix.map(MeasuredPrefixCache::open).transpose()?;
    let shared = request.shared_store.as_ref().filter(|_| prompt.is_some());
    let mut shared = shared.map(SharedPrefixes::open).transpose()?;
    let mut file = request.session.as_deref().map(SessionFile::open).transpose()?;

    let start = Instant::now();
    let beyond = (prefix.as_mut(), shared.as_mut());
    let (mut session, reused_tokens) = open_session(engine, prompt.as_ref(), file.as_mut(), beyond)?;
    let opened_s = start.elapsed().as_secs_f64();
    if let Some((tokens, _)) = &prompt
        && reused_tokens < tokens.len()
    {
        let read = read(&mut session, tokens, (prefix.as_mut(), shared.as_mut()), observe);
        if let (Err(EngineError::Interrupted { .. }), Some(file)) = (&read, &mut file) {
            file.save(&session)?;
        }
        read?;
    } else if session.sequence().answer().drawn.pending.is_none() && prompt.is_none() {
        let path = request.session.clone().unwrap_or_default();
        return Err(EngineError::NothingToContinue { path });
    }
    let first_s = start.elapsed().as_secs_f64();
    let prompt_tokens = session.tokens().len();

    if let Some(shared) = &mut shared {
        shared.publish_all(session.sequence(), Duration::ZERO)?;
    }
    let generation = session.generate(&request.generate, &mut |text| observe(RunEvent::Text(text)))?;
    let decode_s = start.elapsed().as_secs_f64() - first_s;
    if let Some(file) = &mut file {
        file.save(&session)?;
    }
    if let Some(prefix) = &mut prefix
        && !session.sequence().recurrence().is_recurrent()
    {
        prefix.store_if_possible(session.sequence());
    }
    if let Some(shared) = &mut shared {
        shared.publish_all(session.sequence(), SHARING_TIME)?;
    }
    let finished = Finished {
        generation,
        prompt_tokens,
        reused_tokens,
        opened_s,
        first_s,
        decode_s,
        chat_template_applied: prompt.is_some_and(|(_, applied)| applied),
    };
    Ok(RunReport {
        session: file.map(|file| file.report),
        prefix_cache: prefix.map(|prefix| prefix.report),
        shared_store: shared.map(SharedPrefixes::into_report),
        ..finished.report(session.sequence())
    })
}

/// Beginnings outside the session's file: on disk, and in a shared store.
type Beyond<'a> = (Option<&'a mut MeasuredPrefixCache>, Option<&'a mut SharedPrefixes>);

/// The session to continue, and the number of prompt tokens that need not be read: from the session's file or, if
/// that has none of them, from the prefix cache or the shared store.
fn open_session(
    engine: &Arc<Engine>,
    prompt: Option<&(Vec<u32>, bool)>,
    mut file: Option<&mut SessionFile>,
    (prefix, shared): Beyond<'_>,
) -> Result<(Session, usize), EngineError> {
    let mut session = match &mut file {
        Some(file) => file.session(engine)?,
        None => Session::new(engine)?,
    };
    let Some((tokens, _)) = prompt else {
        let held = session.tokens().len();
        return Ok((session, held));
    };
    let mut reused_tokens = match file {
        Some(file) => file.keep_shared(&mut session, tokens)?,
        None => 0,
    };
    if let (Some(prefix), 0) = (prefix, reused_tokens) {
        let loaded = prefix.load(session.sequence_mut(), |sequence, cache| {
            Ok(((), fill_prefix(sequence, cache, tokens)?))
        });
        loaded.or_else(|error| prefix.lose(error))?;
        reused_tokens = session.tokens().len();
    }
    if let (Some(shared), false) = (shared, reused_tokens + 1 == tokens.len()) {
        shared.fill(session.sequence_mut(), tokens)?;
        reused_tokens = session.tokens().len();
    }
    Ok((session, reused_tokens))
}

/// Reads the prompt tokens that the session lacks, and stores intermediate states for others if pages alone are not
/// enough.
fn read(
    session: &mut Session,
    tokens: &[u32],
    (mut prefix, mut shared): Beyond<'_>,
    observe: &mut dyn FnMut(RunEvent<'_>) -> ControlFlow<()>,
) -> Result<(), EngineError> {
    let first = session.tokens().len();
    let cuts = if prefix.is_some() || shared.is_some() {
        prefix_cuts(session.sequence(), tokens.len())
    } else {
        Vec::new()
    };
    for end in cuts.into_iter().chain([tokens.len()]) {
        let start = session.tokens().len();
        session.prefill(&tokens[start..end], &mut |progress| {
            observe(RunEvent::Prefill(PrefillProgress {
                tokens_done: (start - first) as f64 + progress.tokens_done,
                tokens: tokens.len() - first,
                ..progress
            }))
        })?;
        if let Some(prefix) = prefix.as_mut().filter(|_| end < tokens.len()) {
            prefix.store_if_possible(session.sequence());
        }
        if let Some(shared) = shared.as_mut().filter(|_| end < tokens.len()) {
            shared.publish_all(session.sequence(), Duration::ZERO)?;
        }
    }
    Ok(())
}

/// An answer, with times.
pub(crate) struct Finished {
    pub(crate) generation: Generation,
    pub(crate) prompt_tokens: usize,
    pub(crate) reused_tokens: usize,
    /// Seconds until reading the prompt began, and until it ended.
    pub(crate) opened_s: f64,
    pub(crate) first_s: f64,
    pub(crate) decode_s: f64,
    pub(crate) chat_template_applied: bool,
}

impl Finished {
    pub(crate) fn report(self, sequence: &Sequence) -> RunReport {
        // The first token needs no forward pass after the prefill.
        let decoded = sequence.tokens().len() - self.prompt_tokens;
        let read = self.prompt_tokens - self.reused_tokens;
        let engine = sequence.engine();
        let options = engine.options();
        // The longest over all layers.
        let below = |rules: &PolicyRules, phase| {
            let layers = engine.resolved.policy.iter();
            let of_layers = layers.map(|layer| dense_below(&rules.base, phase, layer, &options.machine.cost));
            of_layers.max().unwrap_or(0)
        };
        RunReport {
            model: engine.path().display().to_string(),
            text: self.generation.text,
            stop: self.generation.stop,
            prompt_tokens: self.prompt_tokens,
            reused_tokens: self.reused_tokens,
            turned_tokens: sequence.counts().turned_tokens,
            generated_tokens: self.generation.tokens.len(),
            drafts: self.generation.drafts,
            load: engine.load_times(),
            time_to_first_token_ms: self.first_s * 1e3,
            prefill_tokens_per_s: match read {
                0 => 0.0,
                read => read as f64 / (self.first_s - self.opened_s),
            },
            decode_tokens_per_s: match decoded {
                0 => 0.0,
                decoded => decoded as f64 / self.decode_s,
            },
            density: sequence.counts().pairs.density(),
            prefill_attention: sequence.counts().prefill_time,
            decode_attention: sequence.counts().decode_time,
            prefill_policy: match options.sequence.auto_target {
                Some(target) => format!("auto to {target}"),
                None => options.sequence.prefill.to_string(),
            },
            decode_policy: options.sequence.decode.to_string(),
            depends_on_chunks: options.sequence.prefill.depends_on_chunks()
                || options.sequence.decode.depends_on_chunks()
                || options.sequence.window.is_some()
                || options.sequence.auto_target.is_some()
                || options.model.token_selection.is_some(),
            prefill_dense_below: below(&options.sequence.prefill, Phase::Prefill),
            decode_dense_below: below(&options.sequence.decode, Phase::Decode),
            audit: sequence.audit(),
            chat_template_applied: self.chat_template_applied,
            kv: KvReport::new(sequence),
            session: None,
            prefix_cache: None,
            shared_store: None,
            activations: described_activations(
                engine.model().config(),
                options.model.activations,
                options.machine.device.is_some(),
            ),
            experts: engine.expert_statistics(),
            plan: engine.plan().clone(),
            threads: rayon::current_num_threads(),
        }
    }
}

/// The prompt as tokens, through the chat template if one applies; `poll` decides whether to continue rendering.
pub(crate) fn prompt_tokens(
    engine: &Engine,
    request: &RunRequest,
    prompt: &str,
    poll: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(Vec<u32>, bool), EngineError> {
    if prompt.trim().is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    let tokenizer = engine.tokenizer()?;
    match engine.chat_template().is_some() && request.chat {
        true => {
            let text = engine.conversation_text(request.system.as_deref(), [], prompt, poll)?;
            // The template writes the special tokens itself.
            Ok((tokenizer.encode_conversation(&text, false)?, true))
        }
        false if request.system.is_some() => Err(EngineError::NoChatTemplate(engine.path().display().to_string())),
        false if request.chat && request.is_document => {
            let mut text = ConversationText::default();
            text.push_content(prompt);
            Ok((tokenizer.encode_conversation(&text, true)?, false))
        }
        false => Ok((tokenizer.encode(prompt, true)?, false)),
    }
}
