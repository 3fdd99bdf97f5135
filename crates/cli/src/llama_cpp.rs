//! Spellings of llama.cpp. Some options exist here too; for the others the error names the remedy.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options of several letters after one dash, which clap would read as bundles, and their long spellings. Options
/// that exist here keep their meaning; the others are refused with a [`REFUSED`] line.
const LONG_SPELLINGS: [(&str, &str); 24] = [
    ("-ub", "--ub"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sys", "--system"),
    ("-dev", "--device"),
    ("-ngl", "--n-gpu-layers"),
    ("-fa", "--flash-attn"),
    ("-nkvo", "--no-kv-offload"),
    ("-cnv", "--conversation"),
    ("-no-cnv", "--no-conversation"),
    ("-tb", "--threads-batch"),
    ("-ts", "--tensor-split"),
    ("-sm", "--split-mode"),
    ("-mg", "--main-gpu"),
    ("-md", "--model-draft"),
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-mu", "--model-url"),
    ("-np", "--parallel"),
    ("-cb", "--cont-batching"),
    ("-sp", "--special"),
    ("-ot", "--override-tensor"),
    ("-i", "--interactive"),
    ("-e", "--escape"),
];

/// Options that riffle lacks, with their replacements.
const REFUSED: [(&[&str], &str); 21] = [
    (
        &["--n-gpu-layers", "--gpu-layers"],
        "one device computes all layers: choose it with --device cpu or --device cuda",
    ),
    (
        &["--tensor-split", "--split-mode", "--main-gpu", "--override-tensor"],
        "one device computes the whole model: choose it with --device cuda:N",
    ),
    (
        &["--no-kv-offload"],
        "KV pages lie in main memory as well: --kv-device-budget says what they may take on the device",
    ),
    (
        &["--mlock", "--mmap", "--no-mmap", "--no-repack"],
        "weights are packed into memory once and held there: leave it out; --memory sets a limit",
    ),
    (
        &["--flash-attn"],
        "attention never stores the matrix of scores, on no device: leave it out",
    ),
    (
        &["--conversation", "--interactive", "--interactive-first"],
        "riffle run answers one prompt: riffle chat holds a conversation",
    ),
    (
        &["--no-conversation"],
        "riffle run answers one prompt: leave it out, or give --raw to do without the chat template",
    ),
    (
        &["--threads-batch"],
        "prompts and answers are computed by the same threads: use --threads",
    ),
    (
        &[
            "--rope-freq-base",
            "--rope-freq-scale",
            "--rope-scale",
            "--yarn-orig-ctx",
            "--yarn-ext-factor",
        ],
        "use --rope-scaling METHOD:factor=F, such as --rope-scaling yarn:factor=4",
    ),
    (
        &["--keep", "--context-shift", "--no-context-shift"],
        "a context never shifts by itself: --window-size N --sink-tokens M keeps the first M and the latest N tokens",
    ),
    (
        &["--prompt-cache", "--prompt-cache-all", "--slot-save-path"],
        "use --session FILE for one conversation, or --prefix-cache DIR for beginnings of many prompts",
    ),
    (
        &["--hf-repo", "--hf-file", "--hf-token", "--model-url", "--docker-repo"],
        "riffle pull NAME downloads a model, --model NAME runs it",
    ),
    (
        &["--escape", "--no-escape"],
        "backslashes in a prompt stand for themselves: put such a prompt into a file and give --file",
    ),
    (
        &["--grammar", "--grammar-file", "--json-schema", "--json-schema-file"],
        "answers cannot be bound to a grammar",
    ),
    (
        &["--lora-scaled"],
        "give an adapter's scale behind its path: --lora PATH=SCALE",
    ),
    (
        &["--control-vector", "--control-vector-scaled"],
        "control vectors are not read",
    ),
    (
        &["--model-draft", "--draft-max"],
        "use --draft model:PATH, with @N behind it for drafts of N tokens; --draft ngram, --draft sparse and, where the file holds that layer, --draft mtp need no second model",
    ),
    (
        &[
            "--jinja",
            "--no-display-prompt",
            "--no-warmup",
            "--simple-io",
            "--log-disable",
            "--no-perf",
        ],
        "riffle does so in any case: leave it out",
    ),
    (
        &["--special"],
        "special tokens are never shown in an answer: riffle tokenize --decode shows them",
    ),
    (
        &["--parallel", "--cont-batching"],
        "give --question several times to ask several things about one text, or use riffle serve --parallel N",
    ),
    (
        &[
            "--samplers",
            "--mirostat",
            "--typical",
            "--dynatemp-range",
            "--xtc-probability",
            "--dry-multiplier",
        ],
        "samplers are --temperature, --top-k, --top-p, --min-p and --repeat-penalty",
    ),
];

/// Options whose value may begin with a dash.
const TEXTS: [&str; 7] = [
    "-p",
    "--prompt",
    "--question",
    "-sys",
    "--system",
    "--system-prompt",
    "--stop",
];

/// The arguments, with options of several letters after one dash in their long spelling.
pub(crate) fn spelled_for_clap(arguments: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut is_value = false;
    arguments.into_iter().map(move |argument| {
        let Some(text) = argument.to_str().filter(|_| !is_value) else {
            is_value = false;
            return argument;
        };
        is_value = TEXTS.contains(&text);
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let known = LONG_SPELLINGS.iter().find(|(spelling, _)| *spelling == name);
        match (known, value) {
            (None, _) => argument,
            (Some((_, long)), None) => long.into(),
            (Some((_, long)), Some(value)) => format!("{long}={value}").into(),
        }
    })
}

/// The remedy for an option that riffle lacks; `None` if none is known.
pub(crate) fn refusal(error: &clap::Error) -> Option<String> {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(argument))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let name = argument.split(['=', ' ']).next().unwrap_or(argument);
    let (_, instead) = REFUSED.iter().find(|(names, _)| names.contains(&name))?;
    let short = LONG_SPELLINGS.iter().find(|(_, long)| *long == name);
    let short = short.map_or(String::new(), |(short, _)| format!(" ({short})"));
    Some(format!("{name}{short} is no option of riffle; {instead}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(arguments: &str) -> Option<String> {
        let words = arguments.split(' ').map(|word| word.replace('_', " ").into());
        crate::refusal(words)
    }

    #[test]
    fn spellings_of_llama_cpp_that_mean_the_same_are_taken() {
        for arguments in [
            "riffle run -m model -p In_the_beginning -n -1 -t 2 -c 4096 -s 7 --temp 0.5 -b 64 -ub 32",
            "riffle run -m model -f book.txt --ctx-size 4096 --n-predict 5 --batch-size 64 --ubatch-size 32",
            "riffle run -m model -p x -ctk Q8_0 -ctv=q4_0 -sys Be_brief. --repeat-penalty 1.1 --top-k 40",
            "riffle plan -m model -c 4096 --cache-type-k q8_0 --cache-type-v q8_0 -t 2",
            "riffle bench model -m model -p 64 -n 8 -t 2",
            "riffle run -m model -p -ngl",
            "riffle run -m model --prompt -5_degrees",
        ] {
            assert_eq!(refused(arguments), None, "{arguments}");
        }
    }

    #[test]
    fn options_of_llama_cpp_that_riffle_lacks_are_refused_with_what_to_do() {
        for (arguments, part) in [
            ("riffle run -m model -p x -ngl 99", "--device cuda"),
            ("riffle run -m model -p x --n-gpu-layers=99", "(-ngl)"),
            ("riffle run -m model -p x --mlock", "leave it out"),
            ("riffle run -m model -p x -fa on", "leave it out"),
            ("riffle run -m model -cnv", "riffle chat"),
            ("riffle run -hf someone/model", "--model"),
            ("riffle plan -m model --rope-freq-base 10000", "--rope-scaling"),
            (
                "riffle run -m model -p x --lora-scaled adapter 0.5",
                "--lora PATH=SCALE",
            ),
        ] {
            let line = refused(arguments).expect("refused");
            assert!(line.contains("is no option of riffle") && line.contains(part), "{line}");
        }
    }

    #[test]
    fn no_option_is_both_had_and_refused() {
        fn check(command: &clap::Command) {
            for long in command
                .get_arguments()
                .filter_map(clap::Arg::get_long_and_visible_aliases)
                .flatten()
            {
                let known = REFUSED.iter().any(|(names, _)| names.contains(&&*format!("--{long}")));
                assert!(!known, "--{long} of {}", command.get_name());
            }
            // --keep of ask, chat and session differs from llama.cpp's. `riffle serve` supports --parallel like
            // llama.cpp's server, and `riffle plan` plans for it; the other commands refuse it.
            let alike = command
                .get_subcommands()
                .filter(|command| !["ask", "chat", "session", "serve", "plan"].contains(&command.get_name()));
            alike.for_each(check);
        }
        check(&crate::command());
    }
}
