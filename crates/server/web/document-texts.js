// The texts of documents, kept in this browser.
//
// A kept document is {text, places, hasLines}, or only a text in the earlier format. `places` come from the server's
// reader.

import { openedWhenUsed } from "./database.js";

const act = openedWhenUsed("riffle", ["texts"]);
const kept = new Map();

/** Keeps a document. Resolves to true if it will exist after a reload. */
export async function keepText(id, { text, places = [], hasLines = false }) {
    kept.set(id, { text, places, hasLines });
    try {
        await act("readwrite", (transaction) => transaction.objectStore("texts").put(kept.get(id), id));
        return true;
    } catch {
        return false;
    }
}

/** A kept document. */
export async function keptDocument(id) {
    if (!kept.has(id)) {
        let found;
        try {
            found = (await act("readonly", (transaction) => transaction.objectStore("texts").get(id))).result;
        } catch {
            found = undefined;
        }
        if (found === undefined) {
            throw new Error("This browser no longer has the text of a document of this conversation: begin a new one.");
        }
        kept.set(id, typeof found === "string" ? { text: found, places: [], hasLines: false } : found);
    }
    return kept.get(id);
}

/** The text of a kept document. */
export async function textOf(id) {
    return (await keptDocument(id)).text;
}

/** Deletes texts. */
export async function dropTexts(ids) {
    for (const id of ids) {
        kept.delete(id);
        await act("readwrite", (transaction) => transaction.objectStore("texts").delete(id)).catch(() => {});
    }
}
