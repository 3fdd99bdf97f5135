//! Folders of the user.

use std::path::PathBuf;

/// Riffle's state folder: `riffle` in `$XDG_STATE_HOME`, or else in `~/.local/state`; on Windows in `%LOCALAPPDATA%`.
/// `None` if the environment names no such folder.
pub(crate) fn state_folder() -> Option<PathBuf> {
    Some(riffle_system::folders::state()?.join("riffle"))
}
