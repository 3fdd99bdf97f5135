//! The form of a document in a prompt.

/// The text of a document under its name, in the form of all prompts: `Document: NAME`, an empty line, the text, an
/// empty line. Without a chat template the first line is only the name.
///
/// Cached keys and values are found by the prompt's tokens, so all programs must use the same words. The web page has
/// them in `web/framing.js` of `riffle-server`.
///
/// ```
/// use riffle_documents::framed;
///
/// assert_eq!(framed("notes.md", "# Ships\n", true), "Document: notes.md\n\n# Ships\n\n");
/// assert_eq!(framed("notes.md", "# Ships\n", false), "notes.md\n\n# Ships\n\n");
/// ```
pub fn framed(name: &str, text: &str, has_template: bool) -> String {
    let label = if has_template { "Document: " } else { "" };
    let name = name.replace(char::is_control, " ");
    format!("{label}{name}\n\n{}\n\n", text.trim_end())
}
