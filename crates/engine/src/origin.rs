//! The origin of keys and values. Keys and values of different origins cannot be mixed.

use riffle_model::Activations;
use riffle_policy::PolicyRules;

use crate::{AttentionPrecision, Engine, EngineError, SequenceOptions};

/// Names of parts in files, and their options. The names never change, so that older files are readable.
const STORED: [(&str, &str); 11] = [
    ("--lora", "adapters"),
    ("--decode", "decode"),
    ("--rope-scaling", "rope_scaling"),
    ("--activations", "activations"),
    ("--attention", "attention"),
    ("--kv-type", "kv_type"),
    ("--page-tokens", "page_tokens"),
    ("--prefill", "prefill"),
    ("--select-tokens", "token_selection"),
    ("--kv-rotate", "rotate"),
    ("--window-size", "window"),
];

/// The file's name for the lengths of batches and chunks.
pub(crate) const CHUNKS: &str = "-b -ub";

/// A part of an origin as named in messages.
fn shown_name(stored: &str) -> String {
    let option = STORED.iter().find(|(name, _)| *name == stored);
    option.map_or(stored.to_owned(), |(_, field)| format!("`{field}`"))
}

/// Everything that determines keys and values besides the tokens, in parts so that a difference can be named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    parts: Vec<(String, String)>,
}

impl Origin {
    /// The origin of the pages of prompts under these options.
    pub(crate) fn of_pages(engine: &Engine, sequence: &SequenceOptions) -> Result<Self, EngineError> {
        let options = engine.options();
        let mut origin = Self { parts: Vec::new() };
        origin.add("model", format!("{:032x}", engine.fingerprint()?));
        if let Some(scaling) = options.model.rope_scaling {
            origin.add("--rope-scaling", scaling.to_string());
        }
        if options.model.activations == Activations::Rounded {
            origin.add("--activations", options.model.activations.to_string());
        }
        let adapters = engine.adapters().iter().enumerate();
        let adapters = adapters.filter_map(|(number, adapter)| match sequence.adapters.get(number) {
            0.0 => None,
            scale => Some(format!("{:032x} by {scale}", adapter.fingerprint)),
        });
        let adapters: Vec<String> = adapters.collect();
        if !adapters.is_empty() {
            origin.add("--lora", adapters.join(", "));
        }
        if options.model.attention == AttentionPrecision::Rounded {
            origin.add("--attention", options.model.attention.to_string());
        }
        let formats = (options.cache.key_format.name(), options.cache.value_format.name());
        origin.add("--kv-type", format!("{}:{}", formats.0, formats.1));
        origin.add("--page-tokens", options.cache.page_tokens.to_string());
        let auto = sequence.auto_target.map(|target| format!("auto {target}"));
        origin.add("--prefill", auto.unwrap_or_else(|| rules_text(&sequence.prefill)));
        if let Some(selection) = options.model.token_selection {
            origin.add("--select-tokens", selection.to_string());
        }
        let rotation = engine.resolved.rotation;
        origin.add(
            "--kv-rotate",
            format!("keys {}, values {}", on(rotation.keys), on(rotation.values)),
        );
        let window = sequence
            .window
            .map_or("none".to_owned(), |window| window.window_tokens.to_string());
        origin.add("--window-size", window);
        Ok(origin)
    }

    /// The origin of a sequence under these options, in files of this version.
    pub(crate) fn of_sequence(engine: &Engine, options: &SequenceOptions, version: &str) -> Result<Self, EngineError> {
        let mut origin = Self::of_pages(engine, options)?;
        origin.add("--decode", rules_text(&options.decode));
        origin.add("version", version.to_owned());
        Ok(origin)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let lines = self.parts.iter().map(|(name, value)| format!("{name}\t{value}\n"));
        lines.collect::<String>().into_bytes()
    }

    /// The first part that differs from an encoded origin: its name for messages, its value here and its value there.
    pub(crate) fn difference(&self, other: &[u8]) -> Option<(String, String, String)> {
        let other = String::from_utf8_lossy(other);
        let other: Vec<(&str, &str)> = other.lines().filter_map(|line| line.split_once('\t')).collect();
        let value_of = |name: &str| other.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
        let none = "not set";
        let changed = self.parts.iter().find_map(|(name, value)| {
            let there = value_of(name).unwrap_or(none);
            (there != value).then(|| (shown_name(name), value.clone(), there.to_owned()))
        });
        let known = |name: &str| self.parts.iter().any(|(part, _)| part == name);
        let more = || other.iter().find(|(name, _)| !known(name));
        changed.or_else(|| more().map(|(name, value)| (shown_name(name), none.to_owned(), (*value).to_owned())))
    }

    pub(crate) fn add(&mut self, name: &str, value: String) {
        self.parts.push((name.to_owned(), value));
    }
}

fn on(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// All rules in full, because their display only counts them.
fn rules_text(rules: &PolicyRules) -> String {
    if rules.rules.is_empty() {
        rules.to_string()
    } else {
        format!("{rules:?}")
    }
}
