//! Fields of clients that do not change an answer here.

use serde_json::{Value, json};

use crate::app::App;
use crate::failure::Failure;
use crate::fields::Fields;

/// Notes of clients, and hints to other servers about caches, locations and billing.
const NOTES: &[&str] = &[
    "user",
    "metadata",
    "client_metadata",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "safety_identifier",
    "cache_prompt",
    "cache_control",
    "cache_salt",
    "betas",
    "anthropic_beta",
    "anthropic_version",
    "inference_geo",
    "keep_alive",
    "ttl",
    "id_slot",
    "n_keep",
    "timings_per_token",
    "request_id",
    "provider",
    "usage",
    "models",
    "route",
    "prediction",
    "num_ctx",
    // There is only one implementation of forms.
    "guided_decoding_backend",
];

/// Unsupported samplers and modes, with the value that switches each off.
const OFF: &[(&str, &str)] = &[
    ("best_of", "1"),
    ("top_a", "0"),
    ("typical_p", "1"),
    ("typical", "1"),
    ("tfs_z", "1"),
    ("tfs", "1"),
    ("mirostat", "0"),
    ("mirostat_mode", "0"),
    ("dry_multiplier", "0"),
    ("xtc_probability", "0"),
    ("smoothing_factor", "0"),
    ("dynatemp_range", "0"),
    ("dynamic_temperature", "false"),
    ("epsilon_cutoff", "0"),
    ("eta_cutoff", "0"),
    ("no_repeat_ngram_size", "0"),
    ("encoder_repetition_penalty", "1"),
    ("penalty_alpha", "0"),
    ("guidance_scale", "1"),
    ("cfg_scale", "1"),
    ("num_beams", "1"),
    ("use_beam_search", "false"),
    ("length_penalty", "1"),
    ("early_stopping", "false"),
    ("top_n_sigma", "-1"),
    ("n_probs", "0"),
    ("min_keep", "0"),
    ("n_indent", "0"),
    ("temperature_last", "false"),
    ("do_sample", "true"),
    ("skip_special_tokens", "true"),
    ("spaces_between_special_tokens", "true"),
    ("include_stop_str_in_output", "false"),
    ("return_tokens_as_token_ids", "false"),
    ("return_tokens", "false"),
    ("echo", "false"),
    ("format", "\"\""),
    ("extra_body", "{}"),
    ("functions", "[]"),
    ("plugins", "[]"),
    ("transforms", "[]"),
];

/// Settings of samplers that are switched off.
const SETTINGS_OF_OFF: &[&str] = &[
    "mirostat_tau",
    "mirostat_eta",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "xtc_threshold",
    "smoothing_curve",
    "dynatemp_exponent",
    "dynatemp_low",
    "dynatemp_high",
];

/// Takes the fields without effect on an answer. Unsupported samplers are refused by name if they are on.
pub(crate) fn take_without_effect(fields: &mut Fields) -> Result<(), Failure> {
    fields.pass_over(NOTES);
    for (name, off) in OFF {
        let is_off = |value: &Value| {
            let off: Value = off.parse().unwrap_or(Value::Null);
            *value == off || value.as_f64().zip(off.as_f64()).is_some_and(|(own, off)| own == off)
        };
        if let Some(value) = fields.value(name)
            && !is_off(&value)
        {
            let reason = format!("this server does not do that: leave it out, or set it to {off}");
            return Err(Failure::field(fields.name(name), reason).with_code("unsupported_parameter"));
        }
    }
    fields.pass_over(SETTINGS_OF_OFF);
    for name in ["samplers", "sampler_order", "sampler_priority"] {
        fields.ignore(name, &[json!([])], "samplers have one order here");
    }
    fields.ignore("store", &[json!(false)], "answers are not kept");
    fields.ignore(
        "verbosity",
        &[json!("medium")],
        "how much a model writes is up to the prompt",
    );
    fields.ignore("web_search_options", &[], "this server does not search the web");
    fields.refuse("modalities", &[json!(["text"])], "this model writes text alone")?;
    fields.refuse(
        "function_call",
        &[json!("none"), json!("auto")],
        "functions are called as tools here: send tools and tool_choice",
    )?;
    fields.refuse("audio", &[], "this model writes text alone")
}

/// True if the field is an unsupported sampler or mode, or a setting of one.
pub(crate) fn is_known(name: &str) -> bool {
    OFF.iter().any(|(own, _)| *own == name) || SETTINGS_OF_OFF.contains(&name)
}

/// Takes the fields of `options`, in which Ollama's clients send samplers and lengths, like fields of the request.
pub(crate) fn take_options(app: &App, fields: &mut Fields) -> Result<(), Failure> {
    let Some(mut options) = fields.object("options")? else {
        return Ok(());
    };
    options.rename("num_predict", "n_predict")?;
    warn_of_context(app, &mut options);
    options.pass_over(&[
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "use_mmap",
        "numa",
        "num_keep",
    ]);
    fields.add_missing(options.rest());
    Ok(())
}

/// Takes `num_ctx`. The server sets the context, so a larger value becomes a warning.
pub(crate) fn warn_of_context(app: &App, options: &mut Fields) {
    let context = app.engine.plan().context_tokens;
    let asked = options.value("num_ctx").and_then(|tokens| tokens.as_u64());
    if asked.is_some_and(|tokens| tokens > context as u64) {
        let reason = format!("the server's context holds {context} tokens: start it with a larger --ctx");
        options.warnings().add(&options.name("num_ctx"), &reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(body: Value) -> Result<(), Failure> {
        let mut fields = Fields::of_body(body.to_string().as_bytes()).unwrap();
        take_without_effect(&mut fields)?;
        fields.finish()
    }

    #[test]
    fn a_sampler_that_is_switched_off_is_taken_and_one_that_is_on_is_refused_by_name() {
        assert_eq!(
            outcome(
                json!({"mirostat": 0, "mirostat_tau": 5.0, "typical_p": 1.0, "best_of": 1, "functions": [], "user": "a"})
            ),
            Ok(())
        );
        let message = outcome(json!({"mirostat": 2})).unwrap_err().message;
        assert!(
            message.starts_with("mirostat: ") && message.ends_with("set it to 0"),
            "{message}"
        );
        assert!(outcome(json!({"xtc_probability": 0.5, "xtc_threshold": 0.1})).is_err());
    }
}
