//! `riffle bench`: measures speed.

mod context;
mod draft;

use riffle_engine::{Engine, EngineError};
use riffle_eval::{
    AttentionCase, BatchRateOptions, KvRateOptions, ModelRateOptions, PolicyRateOptions, Results, attention_cases,
    device_cases, measure_attention, measure_batch, measure_kv, measure_model, measure_policies,
};
use riffle_policy::{PolicySpec, catalogue};
use serde_json::json;

use super::eval::run::Measured;
use super::{engine_options, heads};
use crate::bench_args::{
    BenchArguments, BenchAttentionArguments, BenchBatchArguments, BenchKvArguments, BenchModelArguments,
    BenchPoliciesArguments, BenchSubject, MachineArguments,
};
use crate::device;
use crate::failure::Failure;

pub(crate) fn bench(arguments: &BenchArguments) -> Result<(), Failure> {
    match &arguments.subject {
        BenchSubject::Attention(arguments) => attention(arguments),
        BenchSubject::Kv(arguments) => kv(arguments),
        BenchSubject::Model(arguments) => model(arguments),
        BenchSubject::Batch(arguments) => batch(arguments),
        BenchSubject::Context(arguments) => context::context(arguments),
        BenchSubject::Draft(arguments) => draft::draft(arguments),
        BenchSubject::Policies(arguments) => policies(arguments),
    }
}

fn of_machine<'a>(name: &'static str, arguments: &'a MachineArguments) -> Measured<'a> {
    Measured::new((name, 0), None, arguments.threads, &arguments.output)
}

fn attention(arguments: &BenchAttentionArguments) -> Result<(), Failure> {
    let wanted = arguments.only.as_deref().unwrap_or("");
    let ordinal = riffle_engine::cuda_ordinal(&arguments.device)?;
    let gpu = ordinal.map(device::gpu).transpose().map_err(EngineError::from)?;
    let all = match gpu {
        Some(_) => device_cases(),
        None => attention_cases(),
    };
    let cases: Vec<AttentionCase> = all
        .iter()
        .copied()
        .filter(|case| case.name().contains(wanted))
        .collect();
    if cases.is_empty() {
        let names: Vec<String> = all.iter().map(AttentionCase::name).collect();
        return Err(Failure::new(format!(
            "no case holds {wanted:?}: there are {}",
            names.join(", ")
        )));
    }
    let measured = of_machine("attention", &arguments.machine);
    measured.keep(|watch| {
        let mut journal = measured.journal(None, json!({ "device": arguments.device }))?;
        let results = match &gpu {
            Some(gpu) => Results::Device(device::measure(gpu, &cases, &mut journal, watch)?),
            None => Results::Attention(measure_attention(&cases, &mut journal, watch)?),
        };
        Ok((results, None))
    })
}

fn policies(arguments: &BenchPoliciesArguments) -> Result<(), Failure> {
    let phase = arguments.phase;
    let specs: Vec<PolicySpec> = if arguments.policy.is_empty() {
        let known = catalogue()
            .iter()
            .filter(|info| info.supports(phase) && !info.traits.two_phases);
        known.map(|info| policy_spec(info.name)).collect::<Result<_, _>>()?
    } else {
        arguments
            .policy
            .iter()
            .map(|text| policy_spec(text))
            .collect::<Result<_, _>>()?
    };
    let [heads, kv_heads, head_dim] = heads(&arguments.heads)?;
    let options = PolicyRateOptions {
        tokens: arguments.tokens,
        layers: arguments.layers,
        heads,
        kv_heads,
        head_dim,
        formats: riffle_engine::parse_kv_type(&arguments.kv_type)?,
        keys: arguments.keys,
        chunk_tokens: arguments.ub,
    };
    let measured = of_machine("policies", &arguments.machine);
    measured.keep(|watch| {
        let about = json!({
            "phase": phase.to_string(),
            "tokens": arguments.tokens,
            "layers": arguments.layers,
            "shape": arguments.heads.shape,
            "kv_type": arguments.kv_type,
            "keys": arguments.keys,
            "chunk": arguments.ub,
        });
        let mut journal = measured.journal(None, about)?;
        let rates = measure_policies(&specs, phase, &options, &mut journal, watch)?;
        Ok((Results::Policies(rates), None))
    })
}

fn policy_spec(text: &str) -> Result<PolicySpec, Failure> {
    text.parse::<PolicySpec>()
        .map_err(|error| Failure::new(error.to_string()))
}

fn kv(arguments: &BenchKvArguments) -> Result<(), Failure> {
    let options = KvRateOptions {
        folder: arguments.kv_disk.clone().unwrap_or_else(std::env::temp_dir),
        tokens: arguments.tokens,
        hot_tokens: arguments.hot_tokens,
        page_tokens: arguments.page_tokens,
        format: riffle_engine::parse_kv_type(&arguments.kv_type)?.0,
    };
    let measured = of_machine("kv", &arguments.machine);
    measured.keep(|watch| {
        let about = json!({
            "tokens": options.tokens,
            "hot_tokens": options.hot_tokens,
            "page_tokens": options.page_tokens,
            "kv_type": options.format.name(),
            "folder": &options.folder,
        });
        let mut journal = measured.journal(None, about)?;
        Ok((Results::Kv(measure_kv(&options, &mut journal, watch)?), None))
    })
}

fn model(arguments: &BenchModelArguments) -> Result<(), Failure> {
    let engine_options = engine_options(&arguments.engine)?;
    let options = ModelRateOptions {
        prompt_tokens: arguments.prompt_tokens,
        generated_tokens: arguments.tokens,
        depths: arguments.depth.clone(),
        repeats: arguments.repeats,
    };
    let measured = Measured::new(
        ("model", 0),
        Some(&engine_options),
        arguments.engine.threads,
        &arguments.output,
    );
    measured.keep(|watch| {
        let engine = Engine::load(arguments.model.path()?, engine_options)?;
        let about = json!({
            "prompt_tokens": options.prompt_tokens,
            "generated_tokens": options.generated_tokens,
            "repeats": options.repeats,
        });
        let mut journal = measured.journal(Some(&engine), about)?;
        let rates = measure_model(&engine, &options, &mut journal, watch)?;
        Ok((Results::Model(rates), Some(engine)))
    })
}

fn batch(arguments: &BenchBatchArguments) -> Result<(), Failure> {
    let options = BatchRateOptions {
        sequences: arguments.sequences.clone(),
        prompt_tokens: arguments.prompt_tokens,
        shared_tokens: arguments.shared,
        generated_tokens: arguments.tokens,
        beside_tokens: arguments.beside,
        repeats: arguments.repeats,
    };
    let engine_options = options.with_room(engine_options(&arguments.engine)?);
    let measured = Measured::new(
        ("batch", 0),
        Some(&engine_options),
        arguments.engine.threads,
        &arguments.output,
    );
    measured.keep(|watch| {
        let engine = Engine::load(arguments.model.path()?, engine_options)?;
        let about = json!({
            "prompt_tokens": options.prompt_tokens,
            "shared_tokens": options.shared_tokens,
            "generated_tokens": options.generated_tokens,
            "repeats": options.repeats,
        });
        let mut journal = measured.journal(Some(&engine), about)?;
        let table = measure_batch(&engine, &options, &mut journal, watch)?;
        Ok((Results::Batch(table), Some(engine)))
    })
}
