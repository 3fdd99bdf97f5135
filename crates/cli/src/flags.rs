//! Maps options of the libraries to flags of the command line.

use std::borrow::Cow;

/// Field names in messages of the libraries, and their flags. A field has the same flag in every command.
const FLAGS: [(&str, &str); 57] = [
    ("activations", "--activations"),
    ("adapters", "--lora"),
    ("api_keys", "--api-key-file"),
    ("attention", "--attention"),
    ("audit", "--audit"),
    ("auto_target", "--auto"),
    ("base_path", "--base-path"),
    ("batch_tokens", "-b"),
    ("chunk_tokens", "-ub"),
    ("compress", "--compress"),
    ("context_tokens", "--ctx"),
    ("decode", "--decode"),
    ("device", "--device"),
    ("device_budget_bytes", "--kv-device-budget"),
    ("disk.budget_bytes", "--kv-disk-budget"),
    ("disk.folder", "--kv-disk"),
    ("draft", "--draft"),
    ("draft_model", "--draft"),
    ("draft_predictor", "--draft"),
    ("embeddings", "--embeddings"),
    ("ends_loops", "--allow-loops"),
    ("host", "--host"),
    ("keep", "--keep"),
    ("kv_events", "--kv-events"),
    ("kv_type", "--kv-type"),
    ("limits.body_bytes", "--max-body"),
    ("limits.connections", "--max-connections"),
    ("limits.requests", "--max-requests"),
    ("max_tokens", "-n"),
    ("memory_budget_bytes", "--memory"),
    ("method", "--method"),
    ("min_p", "--min-p"),
    ("model", "--model"),
    // Only `riffle serve` and `riffle plan` set the number of sequences.
    ("most_running", "--parallel"),
    ("overwrite", "--force"),
    ("page_tokens", "--page-tokens"),
    ("port", "--port"),
    ("prefill", "--prefill"),
    ("prefix_cache", "--prefix-cache"),
    ("ram_budget_bytes", "--kv-ram-budget"),
    ("repeat_penalty", "--repeat-penalty"),
    ("rope_scaling", "--rope-scaling"),
    ("rotate", "--kv-rotate"),
    ("score_pairs", "--score-pairs"),
    ("sequences", "--parallel"),
    ("session", "--session"),
    ("session_folder", "--sessions"),
    ("sink_tokens", "--sink-tokens"),
    ("slots", "--kv-slots"),
    ("system", "--system"),
    ("temperature", "--temperature"),
    ("threads", "--threads"),
    ("token_selection", "--select-tokens"),
    ("top_p", "--top-p"),
    ("window", "--window-size"),
    ("weights_budget_bytes", "--weights-ram"),
    ("window_tokens", "--window-size"),
];

/// A message of the libraries with the command line's flags.
pub(crate) fn typed(message: &str) -> Cow<'_, str> {
    riffle_engine::rename_options(message, |field, value| {
        let (_, flag) = FLAGS.iter().find(|(name, _)| *name == field)?;
        Some(match value {
            Some(value) => format!("{flag} {value}"),
            None => (*flag).to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use riffle_engine::{EngineError, EngineOptions, StreamWindow};
    use riffle_testing::source_files;

    use super::*;
    use crate::Failure;

    /// Options that only other programs can set.
    const OF_LIBRARIES: [&str; 7] = [
        "frequency_penalty",
        "heads",
        "logit_bias",
        "presence_penalty",
        "prompt_probabilities",
        "prompt_share",
        "tokens",
    ];

    fn flags_of(command: &clap::Command, flags: &mut BTreeSet<String>) {
        for argument in command.get_arguments() {
            flags.extend(argument.get_long().map(str::to_owned));
            flags.extend(argument.get_short().map(String::from));
        }
        command.get_subcommands().for_each(|command| flags_of(command, flags));
    }

    #[test]
    fn every_flag_that_messages_name_is_one_of_a_command() {
        let mut flags = BTreeSet::new();
        flags_of(&crate::command(), &mut flags);
        for (field, flag) in FLAGS {
            assert!(flags.contains(flag.trim_start_matches('-')), "{field}: {flag}");
        }
    }

    #[test]
    fn a_message_has_flags_in_place_of_fields() {
        let refused = |options: EngineOptions| Failure::from(options.validate().unwrap_err()).message().to_owned();
        let options = EngineOptions::default;
        let message = refused(options().with_chunk_tokens(8192));
        assert_eq!(
            message,
            "-ub is 8192, but a chunk cannot be larger than the logical batch (-b 4096)"
        );
        let message = refused(options().with_sequences(0));
        assert_eq!(message, "--parallel is 0, but it must be at least 1 sequence");
        let window = StreamWindow {
            window_tokens: 0,
            sink_tokens: 4,
        };
        let error: EngineError = options().with_window(window).unwrap_err();
        let message = Failure::from(error).message().to_owned();
        assert!(
            message.starts_with("--window-size is 0 with --sink-tokens 4, but "),
            "{message}"
        );
    }

    /// Field names in backticks in the strings of a source file, without comments and tests.
    fn named_fields(source: &str) -> Vec<String> {
        let is_name = |text: &str| {
            let mut letters = text.chars();
            letters.next().is_some_and(|first| first.is_ascii_lowercase())
                && letters.all(|letter| letter.is_ascii_lowercase() || matches!(letter, '_' | '.'))
        };
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let pieces = lines.flat_map(|line| line.split('`').skip(1).step_by(2));
        let mut fields: Vec<String> = pieces
            .map(|piece| piece.split('=').next().unwrap_or_default().to_owned())
            .filter(|field| is_name(field))
            .collect();
        for call in code.split("EngineError::option(").skip(1) {
            let name = call
                .trim_start()
                .strip_prefix('"')
                .and_then(|rest| rest.split('"').next());
            fields.extend(name.map(str::to_owned));
        }
        fields
    }

    #[test]
    fn every_field_that_messages_name_has_a_flag_or_is_of_libraries_alone() {
        let mut known = 0;
        for name in ["ask", "chat", "engine", "kv", "policy"] {
            for path in source_files(name) {
                for field in named_fields(&fs::read_to_string(&path).expect("a source file")) {
                    let has_flag = FLAGS.iter().any(|(name, _)| *name == field);
                    let is_known = has_flag || OF_LIBRARIES.contains(&&*field);
                    assert!(is_known, "{}: {field} has no flag", path.display());
                    known += 1;
                }
            }
        }
        assert!(known > 50, "{known}");
    }
}
