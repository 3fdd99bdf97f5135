//! Folders of this user, as the environment names them.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::platform;

/// Folder for caches: `$XDG_CACHE_HOME`, else the system's. `None` if there is no such place.
pub fn caches() -> Option<PathBuf> {
    absolute("XDG_CACHE_HOME").or_else(platform::cache_folder)
}

/// Folder for what programs keep between runs: `$XDG_STATE_HOME`, else `~/.local/state`; `%LOCALAPPDATA%` on Windows. `None` if
/// there is no such place.
pub fn state() -> Option<PathBuf> {
    platform::state_folder()
}

/// Names of the variables that hold the user's home folder, the first that is set counts: `HOME`; `USERPROFILE` before it on Windows.
pub const HOME_VARIABLES: &[&str] = platform::HOME_VARIABLES;

/// The user's home folder, as `variable` gives the values of variables. `None` where none of [`HOME_VARIABLES`] is set.
pub fn home(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let given = HOME_VARIABLES.iter().filter_map(|name| variable(name));
    given.filter(|value| !value.is_empty()).map(PathBuf::from).next()
}

/// A path that the environment names, if it is absolute.
pub(crate) fn absolute(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
