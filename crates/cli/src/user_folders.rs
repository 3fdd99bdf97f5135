//! Folders of this user.

use std::path::PathBuf;

/// Riffle's folder for what it keeps between runs: `riffle` in `$XDG_STATE_HOME`, else in `~/.local/state`; in `%LOCALAPPDATA%` on Windows.
/// `None` where the environment names no such place.
pub(crate) fn state_folder() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let state = if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else {
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))
    };
    Some(state?.join("riffle"))
}
