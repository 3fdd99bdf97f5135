//! Settings from the environment: the hub, the cache, the token.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use riffle_system::folders;

use crate::HubError;

/// Addresses and folders of models, and the rules for reaching the hub.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The hub's address without a final slash: `HF_ENDPOINT`, or `https://huggingface.co`.
    pub endpoint: String,
    /// The folder with the repositories' folders `models--owner--name`.
    pub cache: PathBuf,
    /// Token that proves the user's identity to the hub, if one was given.
    pub token: Option<Token>,
    /// True if downloads are disabled.
    pub offline: bool,
    /// Bytes of a GGUF file to download before its inspection: enough for its settings, vocabulary and tensor list.
    pub head_bytes: u64,
    /// Delays and timeouts.
    pub waits: Waits,
}

/// Default of [`Settings::head_bytes`].
const HEAD_BYTES: u64 = 32 << 20;

/// A secret that identifies the user to the hub. Only the hub's own host receives it, and it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: String,
    source: String,
}

/// Delays, timeouts and attempts of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// Delay before the second attempt; each further delay is twice as long.
    pub first: Duration,
    /// The longest delay between two attempts.
    pub longest: Duration,
    /// Successive attempts with almost no bytes before a download fails.
    pub attempts: u32,
    /// Silence after which a connection counts as lost.
    pub silence: Duration,
    /// Limit on the delay that a server requests.
    pub asked: Duration,
    /// Waiting time in which at least [`window_bytes`](Self::window_bytes) must arrive.
    pub window: Duration,
    /// Minimum bytes of a window. An attempt with fewer bytes counts as empty.
    pub window_bytes: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(30),
            attempts: 6,
            silence: Duration::from_secs(60),
            asked: Duration::from_secs(300),
            window: Duration::from_secs(60),
            window_bytes: 64 << 10,
        }
    }
}

impl Token {
    /// A token with its origin, as text.
    ///
    /// # Errors
    /// [`HubError::Variable`] for an empty text, or characters that a header cannot contain.
    pub fn new(secret: &str, source: impl Into<String>) -> Result<Self, HubError> {
        let (secret, source) = (secret.trim().to_owned(), source.into());
        if !secret.is_empty() && secret.chars().all(|c| c.is_ascii_graphic()) {
            Ok(Self { secret, source })
        } else {
            Err(HubError::Variable {
                variable: source,
                problem: "does not hold a token: one word that begins with hf_".to_owned(),
            })
        }
    }

    /// The origin of the token: a variable or a file.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The secret itself.
    #[cfg(feature = "download")]
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }
}

#[cfg(feature = "download")]
impl Token {
    /// True if a server's name contains the secret. Very short secrets do not count, because names contain them by
    /// chance.
    pub(crate) fn is_in_name(&self, name: &str) -> bool {
        const LEAST_CHARACTERS: usize = 8;
        self.secret.len() >= LEAST_CHARACTERS && self.is_in(name)
    }

    /// True if a text contains the secret: plain, percent-encoded once or twice, or in base64 at any offset.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        let once = percent_decoded(text.as_bytes());
        let twice = percent_decoded(&once);
        let holds = |text: &[u8], part: &[u8]| {
            !part.is_empty() && text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
        };
        let secret = self.secret.as_bytes();
        [text.as_bytes(), &once, &twice].iter().any(|text| {
            holds(text, secret) || (0..3).any(|before| holds(text, base64_inside(secret, before).as_bytes()))
        })
    }
}

/// Bytes with each `%XX` decoded.
#[cfg(feature = "download")]
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| (*byte as char).to_digit(16));
    let mut decoded = Vec::new();
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match (byte, digit(text.get(at + 1)), digit(text.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    decoded
}

/// The base64 characters that depend only on `bytes` after `before` bytes modulo 3. Empty for very short texts.
#[cfg(feature = "download")]
fn base64_inside(bytes: &[u8], before: usize) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // Whole groups of three bytes, after the bytes that share a group with the preceding text.
    let whole = bytes.get((3 - before) % 3..).unwrap_or_default();
    let groups = whole.chunks_exact(3).flat_map(|group| {
        let bits = u32::from(group[0]) << 16 | u32::from(group[1]) << 8 | u32::from(group[2]);
        [18, 12, 6, 0].map(|shift| DIGITS[(bits >> shift) as usize & 63] as char)
    });
    let text: String = groups.collect();
    if text.len() < 8 { String::new() } else { text }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(… of {})", self.source)
    }
}

/// Maximum number of bytes of the token's file.
const LARGEST_TOKEN_BYTES: u64 = 4096;

impl Settings {
    /// Reads the settings from this process's variables and from the token file: `HF_ENDPOINT`, `HF_HUB_CACHE`,
    /// `HF_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE` and their older names, like Python's
    /// `huggingface_hub`.
    ///
    /// # Errors
    /// [`HubError::Variable`] for an invalid value; [`HubError::File`] for an unreadable token file.
    pub fn from_environment() -> Result<Self, HubError> {
        Self::from_variables(&|name| std::env::var_os(name))
    }

    /// Like [`from_environment`](Self::from_environment), with variables from `variable`.
    ///
    /// # Errors
    /// The same errors.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| match given(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(_)) => Err(HubError::Variable {
                variable: name.to_owned(),
                problem: "is not UTF-8".to_owned(),
            }),
        };
        let home = folders::home(variable);
        let path = |name: &str| given(name).map(|value| below_home(Path::new(&value), home.as_deref()));
        let hub_home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|folder| folder.join("huggingface")))
            .or_else(|| home.as_ref().map(|home| home.join(".cache/huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| hub_home.as_ref().map(|folder| folder.join("hub")))
            .ok_or_else(|| HubError::Variable {
                variable: folders::HOME_VARIABLES[0].to_owned(),
                problem: "is not set, so that there is no place for models; HF_HUB_CACHE names a folder for them"
                    .to_owned(),
            })?;
        let is_true = |value: Option<String>| {
            value.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_ascii_uppercase().as_str()))
        };
        let token = match text("HF_TOKEN")? {
            Some(token) => Some(Token::new(&token, "HF_TOKEN")?),
            None => match text("HUGGING_FACE_HUB_TOKEN")? {
                Some(token) => Some(Token::new(&token, "HUGGING_FACE_HUB_TOKEN")?),
                None => {
                    let file = path("HF_TOKEN_PATH").or_else(|| hub_home.map(|folder| folder.join("token")));
                    file.map_or(Ok(None), |file| token_of(&file))?
                }
            },
        };
        Ok(Self {
            endpoint: endpoint(text("HF_ENDPOINT")?)?,
            cache,
            token,
            offline: is_true(text("HF_HUB_OFFLINE")?) || is_true(text("TRANSFORMERS_OFFLINE")?),
            head_bytes: HEAD_BYTES,
            waits: Waits::default(),
        })
    }
}

/// A path with `~` replaced by the home folder.
fn below_home(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

fn endpoint(given: Option<String>) -> Result<String, HubError> {
    let endpoint = given.unwrap_or_else(|| "https://huggingface.co".to_owned());
    let rest = endpoint
        .strip_prefix("https://")
        .or_else(|| endpoint.strip_prefix("http://"));
    let is_address = rest.is_some_and(|rest| {
        !rest.is_empty() && !rest.starts_with('/') && rest.chars().all(|c| c.is_ascii_graphic() && !"?#@".contains(c))
    });
    if is_address {
        Ok(endpoint.trim_end_matches('/').to_owned())
    } else {
        Err(HubError::Variable {
            variable: "HF_ENDPOINT".to_owned(),
            problem: format!("is {endpoint:?}; it must be an address such as https://huggingface.co"),
        })
    }
}

/// The token in a file; `None` for a missing or empty file.
fn token_of(file: &Path) -> Result<Option<Token>, HubError> {
    match riffle_files::read_text(file, LARGEST_TOKEN_BYTES) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Token::new(&text, file.display().to_string()).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(HubError::file(file)(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, HubError> {
        Settings::from_variables(&|name| {
            let found = variables.iter().find(|(given, _)| *given == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_cache_is_where_python_keeps_it() {
        for (variables, cache) in [
            (&[("HOME", "/h")][..], "/h/.cache/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/h"), ("HF_HOME", "~/f")], "/h/f/hub"),
            (&[("HF_HOME", "/f"), ("HUGGINGFACE_HUB_CACHE", "/g")], "/g"),
            (
                &[
                    ("HF_HOME", "/f"),
                    ("HUGGINGFACE_HUB_CACHE", "/g"),
                    ("HF_HUB_CACHE", "/c"),
                ],
                "/c",
            ),
            (&[("HOME", "/h"), ("HF_HUB_CACHE", "")], "/h/.cache/huggingface/hub"),
        ] {
            let found = settings(variables).unwrap_or_else(|error| panic!("{variables:?}: {error}"));
            assert_eq!(found.cache, Path::new(cache), "{variables:?}");
        }
        let refused = settings(&[]).expect_err("no place").to_string();
        assert!(refused.contains("HF_HUB_CACHE"), "{refused}");
    }

    #[test]
    fn the_token_of_the_environment_comes_before_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().to_str().expect("UTF-8");
        let token = |variables: &[(&str, &str)]| settings(variables).expect("settings").token;
        assert_eq!(token(&[("HF_HOME", home)]), None);
        fs::write(folder.path().join("token"), "hf_file\n").expect("a file");
        let of_file = token(&[("HF_HOME", home)]).expect("a token");
        assert_eq!(of_file.secret, "hf_file");
        assert!(Path::new(of_file.source()).ends_with("token"));
        let given = token(&[("HF_HOME", home), ("HF_TOKEN", " hf_given ")]).expect("a token");
        assert_eq!((given.secret.as_str(), given.source()), ("hf_given", "HF_TOKEN"));
        assert!(!format!("{given:?}").contains("hf_given"), "a token is never shown");
        let other = folder.path().join("other");
        fs::write(&other, "").expect("a file");
        let path = other.to_str().expect("UTF-8");
        assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN_PATH", path)]), None);
    }

    #[test]
    fn values_that_cannot_be_used_are_refused_by_the_variable_s_name() {
        for (name, value) in [
            ("HF_ENDPOINT", "huggingface.co"),
            ("HF_ENDPOINT", "ftp://huggingface.co"),
            ("HF_ENDPOINT", "https://"),
            ("HF_ENDPOINT", "https://user@host"),
            ("HF_TOKEN", "two words"),
            ("HF_TOKEN", "hf_\u{e9}"),
        ] {
            let error = settings(&[("HOME", "/nowhere"), (name, value)])
                .expect_err(value)
                .to_string();
            assert!(error.starts_with(name), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let secret = settings(&[("HOME", "/nowhere"), ("HF_TOKEN", "se cret")]).expect_err("two words");
        assert!(!secret.to_string().contains("cret"), "a token is never shown");
    }

    #[test]
    fn offline_is_what_python_takes_for_true() {
        for (value, offline) in [
            ("1", true),
            ("true", true),
            ("YES", true),
            ("0", false),
            ("", false),
            ("no", false),
        ] {
            let found = settings(&[("HOME", "/nowhere"), ("HF_HUB_OFFLINE", value)]).expect("settings");
            assert_eq!(found.offline, offline, "{value:?}");
        }
    }
}
