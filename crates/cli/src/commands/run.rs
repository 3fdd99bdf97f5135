//! `riffle run`: reads a prompt and writes the answer.

use std::ops::ControlFlow;
use std::path::Path;

use riffle_engine::{
    AuditReport, DraftCount, Engine, EngineOptions, GenerateOptions, PrefixReport, PromptText, RunEvent, RunReport,
    RunRequest, SamplingOptions, SessionReport, SharedReport, StopReason, human_bytes, largest_text_bytes,
    with_threads,
};
use riffle_model::ExpertStatistics;

use super::{engine_options, grouped, note_activations, note_template, print, print_json, read_input};
use crate::args::{GenerateArguments, RunArguments};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::PrefillDisplay;
use crate::{console, flags};

pub(crate) fn run(arguments: &RunArguments) -> Result<(), Failure> {
    let model = arguments.model.path()?;
    let mut options = engine_options(&arguments.engine)?;
    let most = largest_text_bytes(&options);
    let prompt = if arguments.continues {
        None
    } else {
        Some(read_input(&arguments.input, most)?)
    };
    let places = arguments.prefix.places()?;
    let text_bytes = prompt.as_ref().map_or(0, |prompt| prompt.len() as u64);
    plan_text(&mut options, text_bytes, &arguments.question, !places.is_empty());
    options.model.draft_model = arguments.generate.draft.model().map(Path::to_owned);
    options.model.draft_predictor = arguments.generate.draft.uses_predictor();
    with_threads(arguments.engine.threads, || {
        let engine = Engine::load(model, options)?;
        arguments.model.remember();
        let on_device = engine.options().machine.device.is_some();
        note_activations(&arguments.engine, engine.model().config(), on_device);
        let request = RunRequest {
            prompt,
            system: arguments.system.clone(),
            chat: !arguments.raw,
            is_document: arguments.input.prompt.is_none(),
            generate: generate_options(&engine, &arguments.generate),
            session: arguments.session.clone(),
            prefix_cache: places.folder.clone(),
            shared_store: places.store.clone(),
        };
        if arguments.question.is_empty() {
            return answer(&engine, &request, arguments.json);
        }
        if request.chat {
            note_template(&engine);
        }
        let text = request.prompt.clone().unwrap_or_default();
        let questions = arguments.question.iter();
        let prompts: Vec<String> = questions.map(|question| format!("{text}\n{question}")).collect();
        answer_all(&engine, &request, &prompts, arguments.json)
    })?
}

/// Answers prompts with a common beginning, each with its summary.
fn answer_all(
    engine: &std::sync::Arc<Engine>,
    request: &RunRequest,
    prompts: &[String],
    json: bool,
) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let mut display = PrefillDisplay::new(engine);
    let mut output = Ok(());
    let mut reports = Vec::new();
    riffle_engine::run_questions(
        engine,
        request,
        prompts,
        &mut |_, event| {
            match event {
                RunEvent::Waiting => {}
                RunEvent::Prefill(progress) => display.update(progress),
                RunEvent::Text(text) => {
                    display.finish();
                    if !json {
                        output = console::print_answer(text);
                    }
                }
            }
            if output.is_err() {
                ControlFlow::Break(())
            } else {
                interrupt.flow()
            }
        },
        &mut |report| {
            if json {
                note_lost_prefixes(&report)
            } else {
                summarise(&report)
            }
            let interrupted = report.stop == StopReason::Interrupted;
            reports.push(report);
            if interrupted {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    )?;
    output?;
    if json {
        print_json(&reports)?;
    }
    match reports.last() {
        Some(last) if last.stop == StopReason::Interrupted => Err(Failure::interrupted(format!(
            "interrupted in the answer to question {}",
            reports.len()
        ))),
        _ => Ok(()),
    }
}

/// Runs a request with progress, answer and summary.
fn answer(engine: &std::sync::Arc<Engine>, request: &RunRequest, json: bool) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let mut display = PrefillDisplay::new(engine);
    let mut output_failure = None;
    let report = riffle_engine::run(engine, request, &mut |event| {
        match event {
            RunEvent::Waiting => {}
            RunEvent::Prefill(progress) => display.update(progress),
            RunEvent::Text(text) => {
                display.finish();
                if !json && let Err(failure) = console::print_answer(text) {
                    output_failure = Some(failure);
                    return ControlFlow::Break(());
                }
            }
        }
        interrupt.flow()
    });
    display.finish();
    if let Some(failure) = output_failure {
        return Err(failure);
    }
    let report = report?;
    if json {
        note_lost_prefixes(&report);
        print_json(&report)?;
    } else {
        print("\n")?;
        summarise(&report);
    }
    if report.stop == StopReason::Interrupted {
        return Err(Failure::interrupted(format!(
            "interrupted after {} generated tokens",
            report.generated_tokens
        )));
    }
    Ok(())
}

/// Tells the engine's planner the prompt and the use of its pages.
pub(super) fn plan_text(options: &mut EngineOptions, text_bytes: u64, questions: &[String], prefix_cache: bool) {
    let longest = questions.iter().map(|question| question.len() as u64 + 1).max();
    options.machine.prompt = Some(PromptText {
        bytes: text_bytes + longest.unwrap_or(0),
        prompts: questions.len().max(1),
    });
    options.machine.sequences = questions.len().clamp(1, 2);
    options.cache.keeps_beginnings = prefix_cache;
}

/// Bytes of a file; 0 if unknown before reading.
pub(super) fn text_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Generation options: the typed value, or else the model's recommendation, or else the most likely token.
pub(super) fn generate_options(engine: &Engine, arguments: &GenerateArguments) -> GenerateOptions {
    let model = SamplingOptions::recommended(engine.generation_defaults());
    GenerateOptions {
        max_tokens: arguments.tokens,
        sampling: SamplingOptions {
            temperature: arguments.temperature.unwrap_or(model.temperature),
            top_k: arguments.top_k.unwrap_or(model.top_k),
            top_p: arguments.top_p.unwrap_or(model.top_p),
            min_p: arguments.min_p.unwrap_or(model.min_p),
            repeat_penalty: arguments.repeat_penalty.unwrap_or(model.repeat_penalty),
            seed: arguments.seed,
            ..model
        },
        stops: arguments.stop.clone(),
        ends_loops: !arguments.allow_loops,
        draft: arguments.draft.clone(),
        ..GenerateOptions::default()
    }
}

/// The number of accepted draft tokens; empty without drafts.
fn how_drafted(drafts: DraftCount) -> String {
    match drafts.drafted {
        0 => String::new(),
        drafted => format!(
            " ({} of {} drafted tokens agreed)",
            grouped(drafts.accepted),
            grouped(drafted)
        ),
    }
}

/// The final summary, on standard error, so that standard output has only the answer.
fn summarise(report: &RunReport) {
    let kv = &report.kv;
    // Shows the length from which a sparse policy is sparse.
    let guard = |tokens: usize| match tokens {
        0 => String::new(),
        tokens => format!(" (from {} tokens on)", grouped(tokens)),
    };
    console::note(format!(
        "
prompt    {prompt} tokens{read}, first token after {first:.2} s
answer    {generated} tokens at {decode:.1} tokens/s{drafted}, ended by {stop}
KV cache  {tokens} tokens in {pages} pages of {page} ({format}): device {device}, RAM {ram}, disk {disk}
policies  prefill {prefill_policy}{prefill_guard}, decode {decode_policy}{decode_guard}: {density:.1}% of the query-key pairs read
memory    weights {weights}, scratch {scratch}, KV at most {kv_ceiling} for {context} tokens; {threads} threads",
        prompt = grouped(report.prompt_tokens),
        read = how_read(report),
        first = report.time_to_first_token_ms / 1e3,
        generated = grouped(report.generated_tokens),
        decode = report.decode_tokens_per_s,
        drafted = how_drafted(report.drafts),
        stop = flags::typed(&report.stop.to_string()),
        tokens = grouped(kv.tokens),
        pages = grouped(kv.pages),
        page = kv.page_tokens,
        format = kv.format,
        device = human_bytes(kv.device_bytes),
        ram = human_bytes(kv.ram_bytes),
        disk = human_bytes(kv.disk_bytes),
        prefill_policy = report.prefill_policy,
        decode_policy = report.decode_policy,
        prefill_guard = guard(report.prefill_dense_below),
        decode_guard = guard(report.decode_dense_below),
        density = report.density * 100.0,
        weights = human_bytes(report.plan.weights_bytes),
        scratch = human_bytes(report.plan.scratch_bytes),
        kv_ceiling = human_bytes(report.plan.kv_bytes),
        context = grouped(report.plan.context_tokens),
        threads = report.threads,
    ));
    if report.turned_tokens > 0 {
        console::note(format!(
            "positions {} tokens were read again: this model turns positions otherwise in longer texts",
            grouped(report.turned_tokens)
        ));
    }
    console::note(format!("inputs    of linear layers {}", report.activations));
    report.experts.iter().for_each(note_experts);
    report.prefix_cache.iter().for_each(note_prefixes);
    report.shared_store.iter().for_each(note_shared);
    report.session.iter().for_each(note_session);
    if let Some(audit) = &report.audit {
        console::note(audit_text(audit));
    }
}

/// Reports problems of the prefix cache.
fn note_lost_prefixes(report: &RunReport) {
    let prefixes = report.prefix_cache.iter();
    prefixes.flat_map(|prefix| &prefix.notices).for_each(console::note);
}

/// Experts that stay in the model's files.
fn note_experts(experts: &ExpertStatistics) {
    console::note(format!(
        "experts   {:.1}% of {} choices in memory, {:.1}% read early; {} read, {:.1} s waited for",
        percent(experts.hits, experts),
        grouped((experts.hits + experts.early + experts.misses) as usize),
        percent(experts.early, experts),
        human_bytes(experts.read_bytes),
        experts.waited_ns as f64 / 1e9,
    ));
}

fn percent(count: u64, experts: &ExpertStatistics) -> f64 {
    100.0 * count as f64 / (experts.hits + experts.early + experts.misses).max(1) as f64
}

fn note_prefixes(prefix: &PrefixReport) {
    prefix.notices.iter().for_each(console::note);
    console::note(format!(
        "prefixes  {folder}: {found} tokens found in {load:.2} s, {kept} kept in {store:.2} s, {bytes} in all",
        folder = prefix.folder,
        found = grouped(prefix.found_tokens),
        load = prefix.load_ms / 1e3,
        kept = grouped(prefix.kept_tokens),
        store = prefix.store_ms / 1e3,
        bytes = human_bytes(prefix.bytes),
    ));
    if prefix.damaged_blocks > 0 {
        console::note("          a damaged page there was removed, and its tokens were read from the prompt");
    }
}

fn note_shared(shared: &SharedReport) {
    shared.notices.iter().for_each(console::note);
    console::note(format!(
        "shared    {address}: {found} tokens found in {load:.2} s, {fetched} fetched, {published} written",
        address = shared.address,
        found = grouped(shared.found_tokens),
        load = shared.load_ms / 1e3,
        fetched = human_bytes(shared.fetched_bytes),
        published = human_bytes(shared.published_bytes),
    ));
    if shared.bad_blocks + shared.dropped_blocks > 0 {
        console::note(format!(
            "          {} damaged blocks were not used, {} could not be written",
            shared.bad_blocks, shared.dropped_blocks
        ));
    }
}

fn note_session(session: &SessionReport) {
    console::note(format!(
        "session   {path}: {restored} tokens restored in {restore:.2} s, {size} saved in {save:.2} s",
        path = session.path,
        restored = grouped(session.restored_tokens),
        restore = session.restore_ms / 1e3,
        size = human_bytes(session.file_bytes),
        save = session.save_ms / 1e3,
    ));
}

fn how_read(report: &RunReport) -> String {
    let rate = format!(" at {:.0} tokens/s", report.prefill_tokens_per_s);
    match report.prompt_tokens - report.reused_tokens {
        0 => ", none read again".to_owned(),
        _ if report.reused_tokens == 0 => rate,
        read => format!(", {} of them read{rate}", grouped(read)),
    }
}

/// Describes an audit's result in a few lines.
pub(super) fn audit_text(audit: &AuditReport) -> String {
    let worst = audit.worst_head.map_or(String::new(), |head| {
        format!(
            ", worst head {:.4} (layer {}, head {})",
            head.mean_mass, head.layer, head.head
        )
    });
    format!(
        "audit     true mass kept: mean {:.4}, first percentile {:.3}{worst}\n          output error: mean {:.4}, largest {:.3}; {:.1}% of the pairs read; {} samples",
        audit.mean_mass,
        audit.first_percentile_mass,
        audit.mean_output_error,
        audit.largest_output_error,
        audit.density * 100.0,
        audit.samples
    )
}
