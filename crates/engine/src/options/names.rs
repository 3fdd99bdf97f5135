//! Options in messages: `` `field` `` or `` `field=value` ``.

use std::borrow::Cow;

/// Replaces the options in a message by a program's names. `rename` gets a field and its value; options without a
/// name stay unchanged.
///
/// ```
/// let text = "raise `context_tokens` or use `kv_type=q8_0`";
/// let flags = riffle_engine::rename_options(text, |field, value| match (field, value) {
///     ("context_tokens", None) => Some("--ctx".to_owned()),
///     ("kv_type", Some(value)) => Some(format!("--kv-type {value}")),
///     _ => None,
/// });
/// assert_eq!(flags, "raise --ctx or use --kv-type q8_0");
/// ```
pub fn rename_options(text: &str, rename: impl Fn(&str, Option<&str>) -> Option<String>) -> Cow<'_, str> {
    if !text.contains('`') {
        return Cow::Borrowed(text);
    }
    let mut renamed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('`') {
        renamed.push_str(before);
        let named = behind.split_once('`').and_then(|(quoted, behind)| {
            let (field, value) = match quoted.split_once('=') {
                Some((field, value)) => (field, Some(value)),
                None => (quoted, None),
            };
            Some((rename(field, value)?, behind))
        });
        rest = match named {
            Some((name, behind)) => {
                renamed.push_str(&name);
                behind
            }
            // The backtick may end something else, and the next one may begin an option.
            None => {
                renamed.push('`');
                behind
            }
        };
    }
    renamed.push_str(rest);
    Cow::Owned(renamed)
}
