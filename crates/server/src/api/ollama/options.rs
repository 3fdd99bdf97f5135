//! The common fields of Ollama's requests: the model, `options`, `format`, `keep_alive` and log probabilities.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::app::App;
use crate::asking::options::take_wishes;
use crate::asking::{Wishes, passing, warn_of_context};
use crate::failure::Failure;
use crate::fields::{Fields, unexpected};
use crate::forms::Form;
use crate::models::keep_alive::{self, KeepAlive};

/// Maximum number of likeliest tokens per request.
const MOST_LIKELIEST: i64 = 20;

/// Tag of a model name without one.
const LATEST: &str = ":latest";

/// Options for sampling and for the end of an answer.
const SAMPLING: &[&str] = &[
    "seed",
    "n_predict",
    "top_k",
    "top_p",
    "min_p",
    "temperature",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
];

/// Options of memory and threads, which only the server sets.
const MACHINE: &[&str] = &[
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_keep",
    "numa",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "use_mmap",
    "use_mlock",
    "embedding_only",
    "penalize_newline",
];

/// Common fields of requests to `/api/chat` and `/api/generate`.
pub(super) struct Shared {
    pub(super) wishes: Wishes,
    /// The form of the answer, and its field.
    pub(super) form: Option<(Form, String)>,
    pub(super) is_streamed: bool,
    /// True if the model is unloaded after the request.
    pub(super) leaves: bool,
}

impl Shared {
    pub(super) fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Self, Failure> {
        take_model_name(app, fields)?;
        take_options(app, fields)?;
        let mut wishes = take_wishes(app, fields, &["n_predict"])?;
        let shows_logs = fields.flag("logprobs")?.unwrap_or(false);
        let likeliest = fields.count("top_logprobs", 0..=MOST_LIKELIEST)?;
        wishes.generate.probabilities = shows_logs.then_some(likeliest.unwrap_or(0));
        let keep_alive = fields.value(keep_alive::FIELD);
        let leaves = keep_alive.is_some_and(|time| KeepAlive::of(&time) == Ok(KeepAlive::For(Duration::ZERO)));
        if leaves && app.stays_loaded {
            wishes
                .warnings
                .add(keep_alive::FIELD, "the server has one model, which stays loaded");
        }
        // A prompt beyond the context is refused and never cut.
        fields.pass_over(&["truncate", "shift"]);
        Ok(Self {
            wishes,
            form: take_format(fields)?,
            is_streamed: fields.flag("stream")?.unwrap_or(true),
            leaves: leaves && !app.stays_loaded,
        })
    }
}

/// Requires the field `model`, which stays. The tag `latest` is removed, because a name without a tag means it.
pub(super) fn take_model_name(app: &App, fields: &mut Fields) -> Result<(), Failure> {
    let Some(name) = fields.text("model")?.filter(|name| !name.is_empty()) else {
        return Err(Failure::field("model", "this field is required"));
    };
    let is_known = app.find_model(Some(&name)).is_ok();
    let name = match name.strip_suffix(LATEST) {
        Some(bare) if !is_known => bare.to_owned(),
        _ => name,
    };
    fields.add_missing(Map::from_iter([("model".to_owned(), json!(name))]));
    Ok(())
}

/// Takes the fields of `options` like fields of the request. Unknown options become warnings, as with Ollama.
fn take_options(app: &App, fields: &mut Fields) -> Result<(), Failure> {
    let Some(mut options) = fields.object("options")? else {
        return Ok(());
    };
    options.rename("num_predict", "n_predict")?;
    // Ollama's values for a random seed, and for an answer up to the end of the context.
    for (name, default) in [("seed", json!(-1)), ("n_predict", json!(-2))] {
        if options.peek(name) == Some(&default) {
            options.pass_over(&[name]);
        }
    }
    warn_of_context(app, &mut options);
    options.pass_over(MACHINE);
    let warnings = options.warnings().clone();
    let is_taken = |name: &str| SAMPLING.contains(&name) || passing::is_known(name);
    let (taken, unknown): (Map<_, _>, Map<_, _>) = options.rest().into_iter().partition(|(name, _)| is_taken(name));
    Fields::from_value(Value::Object(unknown), "options", &warnings)?.ignore_rest();
    fields.add_missing(taken);
    Ok(())
}

/// Takes `format`: `"json"` or a schema.
fn take_format(fields: &mut Fields) -> Result<Option<(Form, String)>, Failure> {
    const PLACE: &str = "format";
    let form = match fields.value(PLACE) {
        None => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) if text == "json" => Form::JsonObject,
        Some(schema @ Value::Object(_)) => Form::Schema(schema),
        Some(other) => return Err(unexpected(PLACE, "\"json\" or a JSON schema", &other)),
    };
    Ok(Some((form, PLACE.to_owned())))
}
