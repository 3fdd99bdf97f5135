// The texts of documents, kept in this browser.
//
// A kept document is {text, places, hasLines}; older ones are their text alone. `places` are as the server's reader tells them.

import { openedWhenUsed } from "./database.js";

const act = openedWhenUsed("riffle", ["texts"]);
const kept = new Map();

/** Keeps a document. Resolves to whether it will be there after a reload. */
export async function keepText(id, { text, places = [], hasLines = false }) {
    kept.set(id, { text, places, hasLines });
    try {
        await act("readwrite", (transaction) => transaction.objectStore("texts").put(kept.get(id), id));
        return true;
    } catch {
        return false;
    }
}

/** A document that was kept. */
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

/** The text of a document that was kept. */
export async function textOf(id) {
    return (await keptDocument(id)).text;
}

/** Forgets texts. */
export async function dropTexts(ids) {
    for (const id of ids) {
        kept.delete(id);
        await act("readwrite", (transaction) => transaction.objectStore("texts").delete(id)).catch(() => {});
    }
}
