//! `riffle plan`: the memory of a run.

use riffle_engine::{DevicePlan, EngineOptions, ExpertPlan, MemoryPlan, described_activations, human_bytes};
use riffle_server::{Limits, RequestsBytes, requests_bytes};
use serde::Serialize;

use super::run::{plan_text, text_bytes};
use super::{engine_options, grouped, note_activations, print, print_json};
use crate::args::PlanArguments;
use crate::failure::Failure;
use crate::flags;

/// A plan and, with --parallel, its requests.
#[derive(Serialize)]
struct WithRequests<'a> {
    #[serde(flatten)]
    plan: &'a MemoryPlan,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a RequestsPlan>,
}

/// The server requests of a plan.
#[derive(Serialize)]
struct RequestsPlan {
    /// Requests that run at the same time.
    parallel: usize,
    /// Limit on the tokens of all requests, if above one context.
    pool_tokens: Option<usize>,
    /// Memory limit of the requests' bodies and texts, included in the plan's total.
    #[serde(flatten)]
    bytes: RequestsBytes,
}

impl RequestsPlan {
    /// Plans the requests of a server, and adds them to its engine's plan.
    fn new(parallel: usize, options: &EngineOptions, plan: &mut MemoryPlan) -> Self {
        let bytes = requests_bytes(plan, Limits::default().bodies_bytes as u64);
        plan.total_bytes = plan.total_bytes.saturating_add(bytes.total_bytes());
        if !plan.fits() && plan.advice.is_empty() {
            plan.advice = format!(
                "the requests take {} of what is needed; use a larger --memory, or a shorter --ctx",
                human_bytes(bytes.total_bytes())
            );
        }
        Self {
            parallel,
            pool_tokens: options.cache.pool_tokens,
            bytes,
        }
    }

    fn line(&self, plan: &MemoryPlan) -> String {
        format!(
            "requests   {} at a time with room for {} tokens together; of the total, {} for their bodies and {} for a second text that is tokenised\n",
            self.parallel,
            grouped(self.pool_tokens.unwrap_or(plan.context_tokens)),
            human_bytes(self.bytes.bodies_bytes),
            human_bytes(self.bytes.tokenising_bytes),
        )
    }
}

pub(crate) fn plan(arguments: &PlanArguments) -> Result<(), Failure> {
    let model = arguments.model.path()?;
    let mut options = engine_options(&arguments.engine)?;
    match &arguments.file {
        Some(path) => plan_text(
            &mut options,
            text_bytes(path),
            &arguments.question,
            arguments.prefix_cache,
        ),
        None => {
            options.machine.sequences = arguments.question.len().clamp(1, 2);
            options.cache.keeps_beginnings = arguments.prefix_cache;
        }
    }
    if let Some(parallel) = arguments.parallel {
        let bodies = Limits::default().bodies_bytes as u64;
        options = riffle_server::engine_options(model, options, parallel, bodies)?;
    }
    let info = options.model.inspect(model)?;
    let mut plan = riffle_engine::plan_questions(&info, &options, arguments.question.len())?;
    let requests = arguments
        .parallel
        .map(|parallel| RequestsPlan::new(parallel, &options, &mut plan));
    plan.advice = flags::typed(&plan.advice).into_owned();
    for option in &mut plan.options_for_context {
        *option = flags::typed(option).into_owned();
    }
    note_activations(&arguments.engine, &info.config, plan.device.is_some());
    if arguments.json {
        let printed = print_json(&WithRequests {
            plan: &plan,
            requests: requests.as_ref(),
        });
        plan.check()?;
        return printed;
    }
    let inputs = described_activations(&info.config, options.model.activations, plan.device.is_some());
    let bytes_per_s = match &plan.experts {
        Some(_) => options.model.expert_read_rate(model)?,
        None => None,
    };
    let mut text = table(&plan, &arguments.engine.kv_formats(), &inputs, bytes_per_s);
    if let Some(requests) = &requests {
        text += &requests.line(&plan);
    }
    let printed = print(&text);
    // A plan that does not fit is a failure, even if the table was not written.
    plan.check()?;
    printed
}

/// The plan by part; `inputs` describes the input rounding of linear layers.
fn table(plan: &MemoryPlan, kv_formats: &str, inputs: &str, bytes_per_s: Option<f64>) -> String {
    let tiers = &plan.kv_tiers;
    let windows = match plan.window_layers {
        0 => String::new(),
        layers => format!(
            "windows    {layers} layers hold {} tokens each at most\n",
            grouped(plan.window_tokens)
        ),
    };
    let recurrent = match plan.recurrent_bytes {
        0 => String::new(),
        bytes => format!("recurrent  {} for any context\n", human_bytes(bytes)),
    };
    let device = plan.device.as_ref().map_or_else(String::new, device_table);
    let experts = plan
        .experts
        .as_ref()
        .map_or_else(String::new, |experts| experts_table(experts, bytes_per_s));
    format!(
        "context    {} tokens\nweights    {}\n{experts}KV cache   {} ({} a token, {kv_formats}): device {}, RAM {}, disk {}\n{windows}{recurrent}scratch    {}\ntokenizer  {}\nprompt     {} for text and token ids\nprogram    {}\ntotal      {}\navailable  {}\n{device}inputs     of linear layers {inputs}\nplan       {}\n",
        grouped(plan.context_tokens),
        human_bytes(plan.weights_bytes),
        human_bytes(plan.kv_bytes),
        human_bytes(plan.kv_bytes_per_token),
        human_bytes(tiers.device_bytes),
        human_bytes(tiers.ram_bytes),
        human_bytes(tiers.disk_bytes),
        human_bytes(plan.scratch_bytes),
        human_bytes(plan.process.tokenizer_bytes),
        human_bytes(plan.process.prompt_bytes),
        human_bytes(plan.process.program_bytes),
        human_bytes(plan.total_bytes),
        human_bytes(plan.available_bytes),
        verdict(plan),
    )
}

/// Experts that stay in the files; `bytes_per_s` is their read rate.
fn experts_table(experts: &ExpertPlan, bytes_per_s: Option<f64>) -> String {
    let mut text = format!(
        "  resident {}\n  experts  {} for {} of {} at a time; the others are read from the model's files\n  reading  {} of {} a token, {} a batch of {} tokens of a prompt\n",
        human_bytes(experts.resident_bytes),
        human_bytes(experts.cache_bytes),
        grouped(experts.held),
        grouped(experts.experts),
        human_bytes(experts.token_read_bytes),
        human_bytes(experts.token_bytes),
        human_bytes(experts.batch_read_bytes),
        grouped(experts.batch_tokens),
    );
    if let Some(bytes_per_s) = bytes_per_s {
        let [answer, prompt] = experts.rates(bytes_per_s);
        let rate = |rate: Option<f64>| rate.map_or("any number of".to_owned(), |rate| format!("{rate:.1}"));
        text += &format!(
            "  disk     {}/s measured: at most {} tokens/s of answers, {} of prompts\n",
            human_bytes(bytes_per_s as u64),
            rate(answer),
            rate(prompt)
        );
    }
    text
}

fn device_table(device: &DevicePlan) -> String {
    format!(
        "on {}\n  weights  {}\n  KV pages {} of those in RAM\n  scratch  {}\n  total    {}\n  free     {}{}\n  products {} for 16-bit weights\n  prefill  {}\n",
        device.name,
        human_bytes(device.weights_bytes),
        human_bytes(device.kv_bytes),
        human_bytes(device.scratch_bytes),
        human_bytes(device.total_bytes),
        human_bytes(device.available_bytes),
        if device.fits() { "" } else { ": does not fit" },
        device.products,
        device.prefill,
    )
}

fn verdict(plan: &MemoryPlan) -> String {
    if let Some(refusal) = &plan.kv_tiers.refusal {
        format!("does not fit: {refusal}; {}", plan.advice)
    } else if plan.fits() {
        "fits".to_owned()
    } else if plan.device.as_ref().is_some_and(|device| !device.fits()) {
        "does not fit on the device".to_owned()
    } else {
        format!("does not fit; {}", plan.advice)
    }
}
