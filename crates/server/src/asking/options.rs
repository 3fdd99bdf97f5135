//! Sampling, lengths and policies: common fields of several APIs.

use std::str::FromStr;

use riffle_engine::{DraftSpec, EngineError, GenerateOptions, SamplingOptions};
use riffle_model::AdapterScales;
use riffle_policy::{PolicyError, PolicyRules};
use serde_json::{Value, json};

use super::Wishes;
use super::adapters::take_model_and_adapters;
use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Fields, integer_of};

/// Maximum number of stop texts of a request, and bytes of each.
const MOST_STOPS: usize = 64;
const LONGEST_STOP: usize = 1024;

/// Maximum number of tokens with a bias.
const MOST_BIASES: usize = 4096;

/// Options of this server only, from the field `riffle`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extras {
    pub(crate) prefill: Option<PolicyRules>,
    pub(crate) decode: Option<PolicyRules>,
    pub(crate) audits: bool,
    /// The sources of drafts, instead of the server's `--draft`.
    pub(crate) draft: Option<DraftSpec>,
    /// True if an answer that repeats itself continues, instead of the server's `--allow-loops`.
    pub(crate) allows_loops: Option<bool>,
    /// The session that the prompt continues.
    pub(crate) session: Option<String>,
    pub(crate) priority: i32,
    /// True if a stream reports the progress of reading the prompt.
    pub(crate) shows_progress: bool,
    /// Scales of the adapters, instead of the server's.
    pub(crate) adapters: Option<AdapterScales>,
}

/// Takes the options for sampling and for the end of an answer. `lengths` are the names of the field with its length.
pub(crate) fn take_wishes(app: &App, fields: &mut Fields, lengths: &[&str]) -> Result<Wishes, Failure> {
    let (model, adapters) = take_model_and_adapters(app, fields)?;
    let seed = take_seed(fields)?;
    let max_tokens = take_length(fields, lengths)?;
    let mut generate = GenerateOptions {
        max_tokens: max_tokens.unwrap_or(0),
        sampling: take_sampling(app, fields, seed)?,
        stops: take_stops(fields)?,
        stop_tokens: take_stop_tokens(app, fields)?,
        min_tokens: fields.count("min_tokens", 0..=i64::from(i32::MAX))?.unwrap_or(0),
        ignores_end: fields.flag("ignore_eos")?.unwrap_or(false),
        ends_loops: app.options.ends_loops,
        draft: app.options.draft.clone().where_possible(),
        ..GenerateOptions::default()
    };
    let extras = Extras {
        adapters,
        ..take_extras(fields)?
    };
    if let Some(draft) = &extras.draft {
        generate.draft = draft.clone();
    }
    if let Some(allows_loops) = extras.allows_loops {
        generate.ends_loops = !allows_loops;
    }
    Ok(Wishes {
        model,
        generate,
        has_length: max_tokens.is_some(),
        has_seed: seed.is_some(),
        extras,
        has_thought_first: false,
        warnings: fields.warnings().clone(),
        prompt_probabilities: None,
    })
}

/// A seed of any 64 bits.
fn take_seed(fields: &mut Fields) -> Result<Option<i64>, Failure> {
    let place = fields.name("seed");
    let seed = fields.value("seed").map(|seed| match seed.as_u64() {
        Some(bits) => Ok(bits.cast_signed()),
        None => integer_of(&seed, &place, i64::MIN..=i64::MAX),
    });
    seed.transpose()
}

fn take_length(fields: &mut Fields, names: &[&str]) -> Result<Option<usize>, Failure> {
    let mut length = None;
    for name in names {
        let place = fields.name(name);
        let Some(asked) = fields.value(name) else {
            continue;
        };
        // Every length beyond the context is cut to the context.
        let is_longest = asked.as_f64().is_some_and(|tokens| tokens > f64::from(i32::MAX));
        let asked = if is_longest {
            i64::from(i32::MAX)
        } else {
            integer_of(&asked, &place, -1..=i64::from(i32::MAX))?
        };
        // Some clients write -1 for no limit.
        length = length.or(usize::try_from(asked).ok());
    }
    Ok(length)
}

fn take_sampling(app: &App, fields: &mut Fields, seed: Option<i64>) -> Result<SamplingOptions, Failure> {
    let own = SamplingOptions::recommended(app.engine.generation_defaults());
    let repeat_penalty = match fields.number("repetition_penalty", 0.01..=100.0)? {
        Some(penalty) => Some(penalty),
        None => fields.number("repeat_penalty", 0.01..=100.0)?,
    };
    let repeat_last_n = fields.integer("repeat_last_n", -1..=i64::from(i32::MAX))?;
    // vLLM writes -1 for no limit.
    let top_k = fields.integer("top_k", -1..=i64::from(i32::MAX))?;
    Ok(SamplingOptions {
        logit_bias: take_biases(app, fields)?,
        repeat_penalty: repeat_penalty.unwrap_or(own.repeat_penalty),
        // llama.cpp and Ollama write -1 for the whole text.
        repeat_window: repeat_last_n.map_or(own.repeat_window, |count| usize::try_from(count).unwrap_or(usize::MAX)),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        top_k: top_k.map_or(own.top_k, |top_k| usize::try_from(top_k).unwrap_or(0)),
        temperature: fields.number("temperature", 0.0..=100.0)?.unwrap_or(own.temperature),
        top_p: positive(fields, "top_p")?.unwrap_or(own.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(own.min_p),
        seed: seed.unwrap_or(0) as u64,
    })
}

/// A share above 0.
fn positive(fields: &mut Fields, name: &str) -> Result<Option<f32>, Failure> {
    match fields.number(name, 0.0..=1.0)? {
        Some(0.0) => Err(Failure::field(
            fields.name(name),
            "it must be above 0: for the likeliest token set temperature to 0",
        )),
        share => Ok(share),
    }
}

fn take_stops(fields: &mut Fields) -> Result<Vec<String>, Failure> {
    let name = fields.name("stop");
    let stops = fields.texts("stop")?;
    if stops.len() > MOST_STOPS || stops.iter().any(|stop| stop.len() > LONGEST_STOP) {
        return Err(Failure::field(
            name,
            format!("at most {MOST_STOPS} texts of {LONGEST_STOP} bytes are taken"),
        ));
    }
    if stops.iter().any(String::is_empty) {
        return Err(Failure::field(name, "an empty text ends nothing: leave it out"));
    }
    Ok(stops)
}

fn take_stop_tokens(app: &App, fields: &mut Fields) -> Result<Vec<u32>, Failure> {
    let name = fields.name("stop_token_ids");
    let ids = fields.list("stop_token_ids")?.unwrap_or_default();
    ids.iter().map(|id| token_of(app, id, &name)).collect()
}

/// The token with this id.
pub(crate) fn token_of(app: &App, value: &Value, place: &str) -> Result<u32, Failure> {
    let last = app.engine.model().config().vocab_size as i64 - 1;
    let id = integer_of(value, place, 0..=last)?;
    Ok(u32::try_from(id).unwrap_or(0))
}

/// `{"TOKEN": BIAS}`, or llama.cpp's `[[TOKEN, BIAS]]`.
fn take_biases(app: &App, fields: &mut Fields) -> Result<Vec<(u32, f32)>, Failure> {
    let name = fields.name("logit_bias");
    let pairs: Vec<(Value, Value)> = match fields.value("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(biases)) => {
            let number = |text: &str| {
                text.parse::<i64>()
                    .map_or(Value::String(text.to_owned()), |id| json!(id))
            };
            biases
                .iter()
                .map(|(token, bias)| (number(token), bias.clone()))
                .collect()
        }
        Some(Value::Array(biases)) => {
            let pair = |value: &Value| match value.as_array().map(Vec::as_slice) {
                Some([token, bias]) => Ok((token.clone(), bias.clone())),
                _ => Err(Failure::field(&name, "each item must be a token and its bias")),
            };
            biases.iter().map(pair).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(crate::fields::unexpected(&name, "an object", &other)),
    };
    if pairs.len() > MOST_BIASES {
        return Err(Failure::field(name, format!("at most {MOST_BIASES} tokens are taken")));
    }
    let bias_of = |bias: &Value| match bias {
        // llama.cpp's "never".
        Value::Bool(false) => Ok(-1e9),
        bias => match bias.as_f64() {
            Some(bias) if bias.abs() <= 1e9 => Ok(bias as f32),
            _ => Err(Failure::field(&name, "a bias must be a number from -100 to 100")),
        },
    };
    let pairs = pairs.into_iter();
    pairs
        .map(|(token, bias)| Ok((token_of(app, &token, &name)?, bias_of(&bias)?)))
        .collect()
}

fn take_extras(fields: &mut Fields) -> Result<Extras, Failure> {
    let shows_progress = fields.flag("return_progress")?.unwrap_or(false);
    let Some(mut own) = fields.object("riffle")? else {
        return Ok(Extras {
            shows_progress,
            ..Extras::default()
        });
    };
    let extras = Extras {
        prefill: take_parsed(&mut own, "prefill", |error: &PolicyError| error.to_string())?,
        decode: take_parsed(&mut own, "decode", |error: &PolicyError| error.to_string())?,
        audits: own.flag("audit")?.unwrap_or(false),
        draft: take_parsed(&mut own, "draft", requirement)?,
        allows_loops: own.flag("allow_loops")?,
        session: own.text("session")?,
        priority: own.integer("priority", -1000..=1000)?.unwrap_or(0) as i32,
        shows_progress: own.flag("progress")?.unwrap_or(shows_progress),
        adapters: None,
    };
    own.finish()?;
    Ok(extras)
}

/// A parsed text field; `reason` explains the refusal of a text.
fn take_parsed<T: FromStr>(
    fields: &mut Fields,
    name: &str,
    reason: impl Fn(&T::Err) -> String,
) -> Result<Option<T>, Failure> {
    let place = fields.name(name);
    let Some(text) = fields.text(name)? else {
        return Ok(None);
    };
    let refused = |error| Failure::field(place, reason(&error));
    text.parse().map(Some).map_err(refused)
}

/// The requirement of an option, without the option's name.
fn requirement(error: &EngineError) -> String {
    match error {
        EngineError::Option { requirement, .. } => requirement.clone(),
        error => error.to_string(),
    }
}
