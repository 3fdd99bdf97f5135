//! One prompt in, one answer out, with everything that was measured on the way.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use riffle_kv::KvUsage;
use riffle_model::ChatMessage;
use serde::Serialize;

use crate::{Engine, EngineError, GenerateOptions, MemoryPlan, PrefillProgress, Session, StopReason};

/// A prompt and how to answer it.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The text to read.
    pub prompt: String,
    /// Instructions for the model, where its chat template takes them.
    pub system: Option<String>,
    /// Wrap the prompt in the model's chat template, if it has one.
    pub chat: bool,
    /// What to generate.
    pub generate: GenerateOptions,
}

/// What happens while a run is under way. Breaking ends the run.
#[derive(Debug, Clone, Copy)]
pub enum RunEvent<'a> {
    /// The prompt is being read.
    Prefill(PrefillProgress),
    /// The answer's next piece of text.
    Text(&'a str),
}

/// The answer and the closing summary.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The model's path.
    pub model: String,
    /// The generated text.
    pub text: String,
    /// Why generation ended.
    pub stop: StopReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Milliseconds from the start of the prefill to the first generated token.
    pub time_to_first_token_ms: f64,
    /// Prompt tokens read a second.
    pub prefill_tokens_per_s: f64,
    /// Tokens generated a second after the first; 0 when fewer than two were.
    pub decode_tokens_per_s: f64,
    /// Share of causal query-key pairs that attention read.
    pub density: f64,
    /// The prefill policy.
    pub prefill_policy: String,
    /// The decode policy.
    pub decode_policy: String,
    /// Whether the prompt was wrapped in the model's chat template.
    pub chat_template_applied: bool,
    /// What the KV cache held at the end.
    pub kv: KvReport,
    /// The plan the run kept to.
    pub plan: MemoryPlan,
    /// Threads that computed.
    pub threads: usize,
}

/// The KV cache at the end of a run.
#[derive(Debug, Clone, Serialize)]
pub struct KvReport {
    /// Tokens held.
    pub tokens: usize,
    /// Pages allocated, over all layers and KV heads.
    pub pages: usize,
    /// Tokens in a page.
    pub page_tokens: usize,
    /// Element formats of keys and values.
    pub format: String,
    /// Bytes in device memory.
    pub device_bytes: u64,
    /// Bytes in RAM.
    pub ram_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
}

impl KvReport {
    fn new(engine: &Engine, usage: &KvUsage) -> Self {
        let options = engine.options();
        Self {
            tokens: usage.tokens,
            pages: usage.pages,
            page_tokens: options.page_tokens,
            format: format!("{}:{}", options.key_format.name(), options.value_format.name()),
            device_bytes: usage.bytes_by_tier.device,
            ram_bytes: usage.bytes_by_tier.ram,
            disk_bytes: usage.bytes_by_tier.disk,
        }
    }
}

/// Reads the prompt and generates the answer.
///
/// # Errors
/// Before anything is computed: [`EngineError::EmptyPrompt`], [`EngineError::ContextExceeded`], bad sampling options.
/// [`EngineError::Interrupted`] when the observer breaks during the prefill; a break during generation is a
/// [`StopReason::Interrupted`] in the report.
pub fn run(
    engine: &Arc<Engine>,
    request: &RunRequest,
    observe: &mut dyn FnMut(RunEvent<'_>) -> ControlFlow<()>,
) -> Result<RunReport, EngineError> {
    request.generate.sampling.validate()?;
    let (tokens, chat_template_applied) = prompt_tokens(engine, request)?;
    let mut session = Session::new(engine)?;

    let start = Instant::now();
    session.prefill(&tokens, &mut |progress| observe(RunEvent::Prefill(progress)))?;
    let prefill_s = start.elapsed().as_secs_f64();

    let generation = session.generate(&request.generate, &mut |text| observe(RunEvent::Text(text)))?;
    let decode_s = start.elapsed().as_secs_f64() - prefill_s;

    // The first token costs no forward pass beyond the prefill; every later one costs one.
    let decoded = session.tokens().len() - tokens.len();
    let options = engine.options();
    Ok(RunReport {
        model: engine.path().display().to_string(),
        text: generation.text,
        stop: generation.stop,
        prompt_tokens: tokens.len(),
        generated_tokens: generation.tokens.len(),
        time_to_first_token_ms: prefill_s * 1e3,
        prefill_tokens_per_s: tokens.len() as f64 / prefill_s,
        decode_tokens_per_s: if decoded == 0 { 0.0 } else { decoded as f64 / decode_s },
        density: session.density(),
        prefill_policy: options.prefill.to_string(),
        decode_policy: options.decode.to_string(),
        chat_template_applied,
        kv: KvReport::new(engine, &session.usage()),
        plan: engine.plan().clone(),
        threads: rayon::current_num_threads(),
    })
}

/// The prompt as tokens, through the chat template where one applies.
fn prompt_tokens(engine: &Engine, request: &RunRequest) -> Result<(Vec<u32>, bool), EngineError> {
    if request.prompt.trim().is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    let tokenizer = engine.tokenizer()?;
    match engine.chat_template() {
        Some(template) if request.chat => {
            let mut messages = Vec::new();
            if let Some(system) = &request.system {
                messages.push(ChatMessage::new("system", system));
            }
            messages.push(ChatMessage::new("user", &request.prompt));
            let text = template.render(&messages, true)?;
            // The template writes the special tokens itself.
            Ok((tokenizer.encode(&text, false)?, true))
        }
        _ if request.system.is_some() => Err(EngineError::NoChatTemplate(engine.path().display().to_string())),
        _ => Ok((tokenizer.encode(&request.prompt, true)?, false)),
    }
}
