//! Options in messages: `` `field` `` or `` `field=value` ``.

use std::borrow::Cow;

/// The same text with the options in it as a program names them. `rename` gets the field and the value behind it; what it has no name
/// for stays as it is.
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
            // The mark may be the end of something else, and the next one a beginning.
            None => {
                renamed.push('`');
                behind
            }
        };
    }
    renamed.push_str(rest);
    Cow::Owned(renamed)
}
