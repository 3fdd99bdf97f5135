//! `riffle completions` and `riffle man`: files for shells and `man`.

use super::print;
use crate::command_line;
use crate::failure::Failure;
use crate::hub_args::{CompletionsArguments, ManArguments};

pub(crate) fn completions(arguments: &CompletionsArguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command_line::command(), "riffle", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes a manual page for each command.
pub(crate) fn man(arguments: &ManArguments) -> Result<(), Failure> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command_line::command(), folder))
        .map_err(|error| Failure::new(format!("{}: {error}", folder.display())))
}
