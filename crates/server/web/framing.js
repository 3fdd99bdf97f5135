// A document as it stands in a prompt.

/**
 * The text of a document under its name. The words are those of `framed` in the crate riffle-documents: `riffle ask` and `riffle chat` then
 * find what was read for the page, and the page what they read.
 */
export function framed(name, text, hasTemplate) {
    const label = hasTemplate ? "Document: " : "";
    const plainName = name.replace(/\p{Cc}/gu, " ");
    return `${label}${plainName}\n\n${text.trimEnd()}\n\n`;
}
