//! This user's folders, from the environment.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::platform;

/// Folder for caches: `$XDG_CACHE_HOME`, otherwise the system's. `None` if there is no such place.
pub fn caches() -> Option<PathBuf> {
    caches_of(&|name| env::var_os(name))
}

/// As [`caches`], with the values of variables from `variable`.
pub fn caches_of(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| absolute(variable(name)?);
    absolute("XDG_CACHE_HOME").or_else(|| platform::cache_folder(&absolute))
}

/// Folder for data that programs keep between runs: `$XDG_STATE_HOME`, otherwise `~/.local/state`, or
/// `%LOCALAPPDATA%` on Windows. `None` if there is no such place.
pub fn state() -> Option<PathBuf> {
    let absolute = |name: &str| absolute(env::var_os(name)?);
    absolute("XDG_STATE_HOME").or_else(|| platform::state_folder(&absolute))
}

/// Names of the variables for the user's home folder; the first one set is used: `HOME`, and before it on Windows
/// `USERPROFILE`.
pub const HOME_VARIABLES: &[&str] = platform::HOME_VARIABLES;

/// The user's home folder; `variable` returns the values of variables. `None` if none of [`HOME_VARIABLES`] is set.
pub fn home(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let given = HOME_VARIABLES.iter().filter_map(|name| variable(name));
    given.filter(|value| !value.is_empty()).map(PathBuf::from).next()
}

/// A variable's value, if it is an absolute path.
fn absolute(value: OsString) -> Option<PathBuf> {
    Some(PathBuf::from(value)).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_for_caches_is_absolute_and_the_variable_of_all_systems_comes_first() {
        let (here, other) = (env::temp_dir(), env::temp_dir().join("other"));
        let with = |cache: &str| {
            caches_of(&|name| match name {
                "XDG_CACHE_HOME" => Some(cache.into()),
                "HOME" | "LOCALAPPDATA" => Some(other.clone().into()),
                _ => None,
            })
        };
        assert_eq!(with(here.to_str().unwrap()), Some(here));
        assert!(with("relative").unwrap().starts_with(&other));
        assert_eq!(caches_of(&|_| None), None);
    }
}
