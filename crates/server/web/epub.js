// The text of a book in EPUB: a zip archive of pages in XHTML, in the order of its spine.

import { textOfXhtml } from "./html-text.js";
import { Zip } from "./zip.js";

const CONTAINER = "META-INF/container.xml";
const ENCRYPTION = "META-INF/encryption.xml";

/** The text of a book, `{text, title}`. Errors end a sentence that begins with the file's name. */
export async function readEpub(buffer) {
    const zip = new Zip(buffer);
    if (!zip.has(CONTAINER)) {
        throw new Error("is a zip archive but no EPUB: unpack it and drop what is in it");
    }
    const container = await xml(zip, CONTAINER);
    const root = all(container, "rootfile")[0]?.getAttribute("full-path");
    if (!root) {
        throw new Error("names no package file");
    }
    const book = await xml(zip, root);
    const pages = spine(book, root);
    await refuseProtected(zip, pages);
    const texts = [];
    for (const page of pages) {
        const text = textOfXhtml(await zip.text(page));
        if (text) {
            texts.push(text);
        }
    }
    const title = all(book, "title")[0]?.textContent.trim() ?? "";
    return { text: texts.join("\n\n"), title };
}

/** Names of the pages, in the order in which one reads them. */
function spine(book, root) {
    const files = new Map();
    for (const item of all(book, "item")) {
        const kind = item.getAttribute("media-type") ?? "";
        if (kind.includes("html") || kind.includes("xml")) {
            files.set(item.getAttribute("id"), item.getAttribute("href"));
        }
    }
    const order = all(book, "itemref")
        .filter((item) => item.getAttribute("linear") !== "no")
        .map((item) => files.get(item.getAttribute("idref")))
        .filter(Boolean);
    if (order.length === 0) {
        throw new Error("lists no pages to read");
    }
    return order.map((place) => resolve(root, place));
}

/** The name in the archive of what `root` refers to as `place`. */
function resolve(root, place) {
    const url = new URL(place, `zip://book/${root.split("/").map(encodeURIComponent).join("/")}`);
    return decodeURIComponent(url.pathname).replace(/^\/+/, "");
}

/** Bought books may have pages that only their shop's programs can read. Fonts alone may be hidden in any book. */
async function refuseProtected(zip, pages) {
    if (!zip.has(ENCRYPTION)) {
        return;
    }
    const hidden = all(await xml(zip, ENCRYPTION), "CipherReference").map((item) => decodeURIComponent(item.getAttribute("URI") ?? ""));
    if (pages.some((page) => hidden.includes(page))) {
        throw new Error("is protected by its seller: its text cannot be read");
    }
}

async function xml(zip, name) {
    const parsed = new DOMParser().parseFromString(await zip.text(name), "application/xml");
    if (parsed.querySelector("parsererror")) {
        throw new Error(`is damaged: ${name} is not valid XML`);
    }
    return parsed;
}

/** Every element with this name, whatever its namespace. */
function all(parsed, name) {
    return [...parsed.getElementsByTagNameNS("*", name)];
}
