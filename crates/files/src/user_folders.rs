//! Folders of this user for files of programs.

use std::env;
use std::path::PathBuf;

/// The folder for caches of programs: `$XDG_CACHE_HOME`, else the platform's: `~/.cache`, `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on
/// Windows. `None` where the environment names no such folder.
pub fn user_cache_folder() -> Option<PathBuf> {
    let platform = || {
        if cfg!(target_os = "windows") {
            absolute("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            absolute("HOME").map(|home| home.join("Library/Caches"))
        } else {
            absolute("HOME").map(|home| home.join(".cache"))
        }
    };
    absolute("XDG_CACHE_HOME").or_else(platform)
}

/// The folder for the state of programs: `$XDG_STATE_HOME`, else `~/.local/state`; `%LOCALAPPDATA%` on Windows. `None` where the environment
/// names no such folder.
pub fn user_state_folder() -> Option<PathBuf> {
    if cfg!(target_os = "windows") {
        return absolute("LOCALAPPDATA");
    }
    absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))
}

/// The absolute path in a variable.
fn absolute(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
