//! Help: `-h` fits a screen, `--help` has every option in groups.

use crate::testing::{run, stderr, stdout};

/// Lines of a screen.
const SCREEN: usize = 30;

/// Calls `check` with the names of every command, from the first to the last.
fn every_command(command: &clap::Command, names: &mut Vec<String>, check: &mut impl FnMut(&clap::Command, &[String])) {
    check(command, names);
    for subcommand in command.get_subcommands().filter(|command| command.get_name() != "help") {
        names.push(subcommand.get_name().to_owned());
        every_command(subcommand, names, check);
        names.pop();
    }
}

#[test]
fn the_short_help_of_every_command_fits_a_screen() {
    for width in [80, 100] {
        let mut command = riffle_cli::command().term_width(width);
        command.build();
        let mut long = Vec::new();
        every_command(&command, &mut Vec::new(), &mut |command, names| {
            let help = command.clone().render_help().to_string();
            let lines = help.lines().count();
            let widest = help
                .lines()
                .filter(|line| !line.trim_start().starts_with("Usage:"))
                .map(|line| line.chars().count())
                .max()
                .unwrap_or(0);
            if lines > SCREEN || widest > width {
                long.push(format!("{names:?} at {width}: {lines} lines, {widest} wide\n{help}"));
            }
        });
        assert!(long.is_empty(), "{}", long.join("\n"));
    }
}

#[test]
fn every_option_has_a_short_line_that_says_what_it_is() {
    let mut without = Vec::new();
    every_command(&riffle_cli::command(), &mut Vec::new(), &mut |command, names| {
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let is_sentence = help.replace("e.g. ", "").contains(". ") || help.ends_with('.');
            let begins = help.chars().next();
            if help.chars().count() > 110 || is_sentence || !begins.is_some_and(|c| c.is_uppercase() || c.is_numeric())
            {
                without.push(format!("{names:?} {}: {help}", argument.get_id()));
            }
        }
    });
    assert!(without.is_empty(), "{}", without.join("\n"));
}

#[test]
fn short_help_shows_what_is_common_and_long_help_all_of_it_in_groups() {
    let (short, long) = (stdout(&run(&["run", "-h"])), stdout(&run(&["run", "--help"])));
    for part in [
        "--prompt",
        "--ctx",
        "--memory",
        "Sampling:",
        "Machine and memory:",
        "Attention policies:",
    ] {
        assert!(short.contains(part) && long.contains(part), "{part}");
    }
    for part in [
        "--device",
        "--kv-slots",
        "--select-tokens",
        "--rope-scaling",
        "--repeat-penalty",
        "KV cache:",
        "Longer context:",
        "Speculative decoding:",
    ] {
        assert!(!short.contains(part) && long.contains(part), "{part}");
    }
    // Other options cover these spellings.
    for hidden in ["cache-type-k", "h2o-local"] {
        assert!(!long.contains(hidden), "{hidden}");
    }
    let quantize = stdout(&run(&["quantize", "--help"]));
    assert!(
        quantize.contains("--tensor-type") && !quantize.contains("--output-type"),
        "{quantize}"
    );
}

#[test]
fn help_of_the_server_says_how_a_model_gets_a_name() {
    for argument in ["-h", "--help"] {
        let help = stdout(&run(&["serve", argument]));
        assert!(help.contains("also as NAME=PATH; may be repeated"), "{help}");
    }
    let long = stdout(&run(&["serve", "--help"]));
    assert!(long.contains("NAME is the model's name for clients"), "{long}");
}

#[test]
fn the_help_of_riffle_lists_its_commands_in_groups() {
    for argument in ["-h", "--help"] {
        let output = run(&[argument]);
        let help = stdout(&output);
        for part in [
            "Use a model:",
            "  ask ",
            "  pull ",
            "  completions ",
            "Options:",
            "--dense",
            "--version",
        ] {
            assert!(help.contains(part), "no {part:?} in {help}");
        }
        assert!(!help.contains("  man "), "it is for those who pack riffle: {help}");
        assert!(stderr(&output).is_empty());
    }
}
