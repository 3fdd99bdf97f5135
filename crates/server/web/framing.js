// The form of a document in a prompt.

/**
 * The text of a document under its name, in the words of `framed` in the crate riffle-documents. The page, `riffle ask`
 * and `riffle chat` can then use each other's kept pages.
 */
export function framed(name, text, hasTemplate) {
    const label = hasTemplate ? "Document: " : "";
    const plainName = name.replace(/\p{Cc}/gu, " ");
    return `${label}${plainName}\n\n${text.trimEnd()}\n\n`;
}
