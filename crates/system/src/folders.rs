//! This user's folders, from the environment.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::platform;

/// Folder for caches: `$XDG_CACHE_HOME`, otherwise the system's. `None` if there is no such place.
pub fn caches() -> Option<PathBuf> {
    absolute("XDG_CACHE_HOME").or_else(platform::cache_folder)
}

/// Folder for data that programs keep between runs: `$XDG_STATE_HOME`, otherwise `~/.local/state`; `%LOCALAPPDATA%`
/// on Windows. `None` if there is no such place.
pub fn state() -> Option<PathBuf> {
    platform::state_folder()
}

/// Names of the variables for the user's home folder; the first one set is used: `HOME`, and before it on Windows
/// `USERPROFILE`.
pub const HOME_VARIABLES: &[&str] = platform::HOME_VARIABLES;

/// The user's home folder; `variable` returns the values of variables. `None` if none of [`HOME_VARIABLES`] is set.
pub fn home(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let given = HOME_VARIABLES.iter().filter_map(|name| variable(name));
    given.filter(|value| !value.is_empty()).map(PathBuf::from).next()
}

/// A path from the environment, if it is absolute.
pub(crate) fn absolute(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
