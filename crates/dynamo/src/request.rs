//! Converts Dynamo's request to one of Riffle's scheduler.

use std::sync::Arc;

use dynamo_backend_common::{
    DynamoError, GuidedDecodingOptions, PreprocessedRequest, SamplingOptions as DynamoSampling, StopConditions,
};
use riffle_engine::{AnswerForm, Engine, GenerateOptions, Request, SamplingOptions};
use riffle_server::{Form, ServerOptions, Worker};

use crate::failure::{of_request, refused};

/// Allowed priorities of requests.
const PRIORITIES: std::ops::RangeInclusive<i32> = -1000..=1000;

/// The request in Riffle's form.
///
/// # Errors
/// Unsupported features, by name, and values out of range.
pub(crate) async fn asked(
    request: PreprocessedRequest,
    engine: &Engine,
    worker: &Worker,
    options: &ServerOptions,
) -> Result<Request, DynamoError> {
    refuse(&request)?;
    let vocabulary = engine.model().config().vocab_size;
    check_tokens("token_ids", &request.token_ids, vocabulary)?;
    let stop_tokens = stop_tokens(&request.stop_conditions);
    check_tokens("stop_token_ids", &stop_tokens, vocabulary)?;
    let sampling = sampling(&request.sampling_options, engine);
    let form = match request.sampling_options.guided_decoding {
        Some(guided) if guides(&guided) => Some(form(guided, worker).await?),
        _ => None,
    };
    let tokens = Arc::unwrap_or_clone(request.token_ids);
    let stops = request.stop_conditions;
    let room = engine.plan().context_tokens.saturating_sub(tokens.len()) + 1;
    let generate = GenerateOptions {
        max_tokens: match stops.max_tokens {
            Some(most) => most as usize,
            None => options.default_max_tokens.min(room),
        },
        sampling,
        stops: stops.stop.unwrap_or_default(),
        stop_tokens,
        min_tokens: stops.min_tokens.unwrap_or(0) as usize,
        ignores_end: stops.ignore_eos.unwrap_or(false),
        ends_loops: options.ends_loops,
        probabilities: request.output_options.logprobs.map(|most| most as usize),
        form,
        draft: options.draft.clone().where_possible(),
    };
    let priority = request.routing.and_then(|routing| routing.priority).unwrap_or(0);
    Ok(Request {
        tokens,
        generate,
        priority: priority.clamp(*PRIORITIES.start(), *PRIORITIES.end()),
        ..Request::default()
    })
}

/// Refuses unsupported features.
fn refuse(request: &PreprocessedRequest) -> Result<(), DynamoError> {
    let (sampling, stops) = (&request.sampling_options, &request.stop_conditions);
    let routing = request.routing.as_ref();
    let several = |number: Option<u8>| number.is_some_and(|number| number > 1);
    let is_guided = sampling.guided_decoding.as_ref().is_some_and(guides);
    let refusals = [
        (
            several(sampling.n),
            "n: several answers to a prompt: send the request several times",
        ),
        (
            several(sampling.best_of),
            "best_of: answers are not compared: send the request once",
        ),
        (
            sampling.use_beam_search == Some(true),
            "use_beam_search: answers are drawn token by token: leave it out",
        ),
        (
            sampling.length_penalty.is_some_and(|penalty| penalty != 1.0),
            "length_penalty: it belongs to a beam search, which is not done: leave it out",
        ),
        (
            stops.max_thinking_tokens.is_some(),
            "max_thinking_tokens: thoughts are not told from answers here: leave it out, and set max_tokens",
        ),
        (
            request.output_options.prompt_logprobs.is_some(),
            "prompt_logprobs: Dynamo has no place for them in an answer: ask a riffle serve directly",
        ),
        (
            request.prompt_embeds.is_some(),
            "prompt_embeds: a prompt is tokens: send text",
        ),
        (
            request.multi_modal_data.is_some() || request.encoder_result.is_some(),
            "multi_modal_data: the model reads text alone: leave pictures and sounds out",
        ),
        (
            request.prefill_result.is_some() || request.bootstrap_info.is_some(),
            "prefill_result: a worker of Riffle reads prompts itself: start the others with --disaggregation-mode agg",
        ),
        (
            routing.is_some_and(|routing| routing.lora_name.is_some()),
            "lora_name: the model has no adapters: ask for the model itself",
        ),
        (
            routing.is_some_and(|routing| routing.cache_namespace.is_some()),
            "cache_salt: all requests share one cache: leave it out, or start a worker for each group of users",
        ),
        (
            is_guided && request.require_reasoning,
            "guided_decoding after a thought: the form holds from the first token on: turn thinking off",
        ),
    ];
    match refusals.into_iter().find(|(is_asked, _)| *is_asked) {
        Some((_, what)) => Err(refused(what)),
        None => Ok(()),
    }
}

fn check_tokens(field: &str, tokens: &[u32], vocabulary: usize) -> Result<(), DynamoError> {
    match tokens.iter().find(|token| **token as usize >= vocabulary) {
        Some(token) => Err(refused(format!(
            "{field}: token {token} is not one of the model's {vocabulary}: the frontend has to use the model's own tokenizer"
        ))),
        None => Ok(()),
    }
}

/// Tokens that end an answer, shown or hidden; the frontend decides which of them clients see.
fn stop_tokens(stops: &StopConditions) -> Vec<u32> {
    let lists = [
        &stops.stop_token_ids,
        &stops.stop_token_ids_visible,
        &stops.stop_token_ids_hidden,
    ];
    let mut tokens: Vec<u32> = lists.into_iter().flatten().flatten().copied().collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// Sampling options; missing ones follow the model's files.
fn sampling(asked: &DynamoSampling, engine: &Engine) -> SamplingOptions {
    let own = SamplingOptions::recommended(engine.generation_defaults());
    SamplingOptions {
        temperature: asked.temperature.unwrap_or(own.temperature),
        top_p: asked.top_p.unwrap_or(own.top_p),
        // -1 means no limit.
        top_k: asked
            .top_k
            .map_or(own.top_k, |top_k| usize::try_from(top_k).unwrap_or(0)),
        min_p: asked.min_p.unwrap_or(own.min_p),
        repeat_penalty: asked.repetition_penalty.unwrap_or(own.repeat_penalty),
        presence_penalty: asked.presence_penalty.unwrap_or(0.0),
        frequency_penalty: asked.frequency_penalty.unwrap_or(0.0),
        seed: asked.seed.map_or_else(rand::random, |seed| seed as u64),
        ..own
    }
}

/// True if the answer must have a form.
fn guides(guided: &GuidedDecodingOptions) -> bool {
    let GuidedDecodingOptions {
        json,
        regex,
        choice,
        grammar,
        backend,
        whitespace_pattern,
        structural_tag,
    } = guided;
    json.is_some()
        || regex.is_some()
        || choice.is_some()
        || grammar.is_some()
        || backend.is_some()
        || whitespace_pattern.is_some()
        || structural_tag.is_some()
}

/// The prepared form of the answer.
async fn form(guided: GuidedDecodingOptions, worker: &Worker) -> Result<Arc<dyn AnswerForm>, DynamoError> {
    let refusals = [
        (
            guided.structural_tag.is_some(),
            "guided_decoding.structural_tag: send a JSON schema, a pattern or a grammar",
        ),
        (
            guided.backend.is_some(),
            "guided_decoding.backend: forms are held by llguidance alone: leave it out",
        ),
        (
            guided.whitespace_pattern.is_some(),
            "guided_decoding.whitespace_pattern: what may stand between parts of JSON is fixed: leave it out",
        ),
    ];
    if let Some((_, what)) = refusals.into_iter().find(|(is_asked, _)| *is_asked) {
        return Err(refused(what));
    }
    let mut forms = Vec::new();
    if let Some(schema) = guided.json {
        let place = "guided_decoding.json";
        forms.push((Form::schema(schema, place), place));
    }
    if let Some(pattern) = guided.regex {
        forms.push((Ok(Form::Pattern(pattern)), "guided_decoding.regex"));
    }
    if let Some(grammar) = guided.grammar {
        forms.push((Ok(Form::Grammar(grammar)), "guided_decoding.grammar"));
    }
    if let Some(texts) = guided.choice {
        let place = "guided_decoding.choice";
        forms.push((Form::choice(&texts, place), place));
    }
    match (forms.pop(), forms.is_empty()) {
        (Some((form, place)), true) => {
            let form = form.map_err(|failure| of_request(&failure))?;
            let prepared = worker.prepare_form(form, place).await;
            prepared.map_err(|failure| of_request(&failure))
        }
        _ => Err(refused(
            "guided_decoding: an answer has one form: send json, regex, grammar or choice",
        )),
    }
}
