//! A document as it stands in a prompt.

/// The text of a document under its name, as every prompt has it: `Document: NAME`, an empty line, the text, an empty line. A prompt that no
/// chat template makes has the name alone in its first line.
///
/// Keys and values of a prompt are found again by its tokens, so all programs that read documents have to use the same words. The web page
/// has them in `web/framing.js` of `riffle-server`.
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
