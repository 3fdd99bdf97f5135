//! Folders of this user.

use std::path::PathBuf;

/// Riffle's folder for what it keeps between runs: `riffle` in `$XDG_STATE_HOME`, else in `~/.local/state`; in `%LOCALAPPDATA%` on Windows.
/// `None` where the environment names no such place.
pub(crate) fn state_folder() -> Option<PathBuf> {
    Some(riffle_system::folders::state()?.join("riffle"))
}
