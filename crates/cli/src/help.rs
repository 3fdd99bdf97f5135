//! Layout of the help: `-h` fits on a screen with common options, `--help` has every option in groups.

use clap::{Arg, Command};

/// The commands in groups, for the help of riffle itself.
const GROUPS: [(&str, &[&str]); 3] = [
    ("Use a model", &["ask", "chat", "run", "serve", "launch"]),
    (
        "Get and inspect models",
        &["pull", "list", "rm", "inspect", "plan", "tokenize", "quantize"],
    ),
    (
        "Read less, keep more, measure",
        &["policies", "calibrate", "session", "eval", "bench", "completions"],
    ),
];

/// Common options that the short help of measurements and the server omits.
const OF_ANY_RUN: [&str; 4] = ["memory", "ctx", "kv_type", "temperature"];

/// Options that the short help of the server omits.
const OF_FEW_SERVERS: [&str; 5] = ["alias", "allow_origin", "allow_host", "sessions", "keep_alive"];

/// The command with its help in groups.
pub(crate) fn laid_out(command: Command) -> Command {
    let template = template(&command);
    let command = command.help_template(template);
    ["eval", "bench"]
        .into_iter()
        .fold(command, |command, name| {
            command.mut_subcommand(name, |measurements| {
                measurements.mut_subcommands(|measurement| without(measurement, &OF_ANY_RUN))
            })
        })
        .mut_subcommand("calibrate", |calibrate| without(calibrate, &OF_ANY_RUN))
        .mut_subcommand("session", |session| {
            session.mut_subcommands(|command| without(command, &OF_ANY_RUN))
        })
        .mut_subcommand("serve", |serve| without(serve, &OF_FEW_SERVERS))
}

/// Hides options in the short help.
fn without(command: Command, names: &[&str]) -> Command {
    command.mut_args(|argument: Arg| {
        if names.contains(&argument.get_id().as_str()) {
            argument.hide_short_help(true)
        } else {
            argument
        }
    })
}

/// The help of riffle itself, with its commands in groups.
fn template(command: &Command) -> String {
    let mut groups = String::new();
    for (title, names) in GROUPS {
        groups += &format!("{title}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            groups += &format!("  {name:<13}{}\n", about.map(ToString::to_string).unwrap_or_default());
        }
    }
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}\nriffle COMMAND -h shows what is common, riffle COMMAND --help every option."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_shown_is_in_one_group_and_has_a_line() {
        let command = crate::command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut shown: Vec<&str> = shown.map(Command::get_name).collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, shown);
        let abouts = command.get_subcommands().map(|command| command.get_about().is_some());
        assert!(abouts.into_iter().all(|has| has));
    }

    #[test]
    fn options_that_short_help_leaves_out_are_there() {
        let command = crate::command();
        let serve = command.find_subcommand("serve").expect("a command");
        let names: Vec<&str> = serve
            .get_arguments()
            .map(|argument| argument.get_id().as_str())
            .collect();
        for name in OF_FEW_SERVERS {
            assert!(names.contains(&name), "{name}");
        }
        let run = command.find_subcommand("run").expect("a command");
        for name in OF_ANY_RUN {
            assert!(run.get_arguments().any(|argument| argument.get_id() == name), "{name}");
        }
    }
}
