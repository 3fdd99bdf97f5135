// From files to texts.

import { readEpub } from "./epub.js";
import { textOfHtml } from "./html-text.js";
import { countOf } from "./numbers.js";
import { readPdf } from "./pdf.js";

const TAKEN = "text, Markdown, HTML, PDF and EPUB are taken";

/** Endings of files that the dialog for choosing offers first. */
export const OFFERED = ".txt,.md,.markdown,.html,.htm,.xhtml,.pdf,.epub,text/*";

/**
 * A file's text: `{name, kind, text, note}`, where `note` says what the text lacks, or is empty.
 * `show(line)` tells what is being done. An error's message is a whole sentence for the user.
 */
export async function readDocument(file, show) {
    const buffer = await contents(file);
    const head = new Uint8Array(buffer.slice(0, 1024));
    try {
        const found = await textOf(file.name, buffer, head, show);
        if (!found.text.trim()) {
            throw new Error(found.kind === "PDF" ? "has no text: it may hold scanned pictures of pages alone" : "is empty");
        }
        return { name: file.name, note: "", ...found };
    } catch (error) {
        throw new Error(`${file.name} ${error.message}.`);
    }
}

async function contents(file) {
    try {
        return await file.arrayBuffer();
    } catch {
        throw new Error(`${file.name} cannot be read: it may be a folder, or too large for this browser.`);
    }
}

async function textOf(name, buffer, head, show) {
    const start = String.fromCharCode(...head);
    if (start.includes("%PDF-")) {
        return fromPdf(buffer, show);
    }
    if (start.startsWith("PK\x03\x04")) {
        show("Unpacking the book");
        return { kind: "EPUB", ...(await readEpub(buffer)) };
    }
    const { text, note } = decode(buffer, head);
    if (/\.x?html?$/i.test(name) || /^\s*<(!doctype html|html)[\s>]/i.test(text)) {
        return { kind: "HTML", text: textOfHtml(text), note };
    }
    return { kind: /\.(md|markdown)$/i.test(name) ? "Markdown" : "Text", text, note };
}

async function fromPdf(buffer, show) {
    show("Loading the PDF reader");
    const { text, pages, emptyPages } = await readPdf(buffer, (page, count) => {
        show(`Reading page ${page} of ${count}`);
    });
    const note = emptyPages > 0 ? `${countOf(emptyPages, "page")} of ${pages} without text` : "";
    return { kind: "PDF", text, note };
}

/** Text of bytes: UTF-8, UTF-16 with its mark, or else the West European code page of Windows. */
function decode(buffer, head) {
    if ((head[0] === 0xff && head[1] === 0xfe) || (head[0] === 0xfe && head[1] === 0xff)) {
        return { text: new TextDecoder(head[0] === 0xff ? "utf-16le" : "utf-16be").decode(buffer), note: "" };
    }
    if (head.includes(0)) {
        throw new Error(`is not a text: ${TAKEN}`);
    }
    try {
        return { text: new TextDecoder("utf-8", { fatal: true }).decode(buffer), note: "" };
    } catch {
        return { text: new TextDecoder("windows-1252").decode(buffer), note: "not UTF-8: read as Windows-1252" };
    }
}
