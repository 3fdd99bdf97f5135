// The texts of documents, which are too long for localStorage: they lie in IndexedDB.
//
// A kept document is {text, places, hasLines}; older ones are their text alone. `places` are as the server's reader tells them.

const kept = new Map();
let opened = null;

/** Keeps a document. Resolves to whether it will be there after a reload. */
export async function keepText(id, { text, places = [], hasLines = false }) {
    kept.set(id, { text, places, hasLines });
    try {
        await act("readwrite", (store) => store.put(kept.get(id), id));
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
            found = await act("readonly", (store) => store.get(id));
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
        await act("readwrite", (store) => store.delete(id)).catch(() => {});
    }
}

async function act(mode, work) {
    opened ??= open();
    const database = await opened;
    return new Promise((resolve, reject) => {
        const transaction = database.transaction("texts", mode);
        const request = work(transaction.objectStore("texts"));
        transaction.oncomplete = () => resolve(request.result);
        transaction.onerror = () => reject(transaction.error);
        transaction.onabort = () => reject(transaction.error);
    });
}

function open() {
    return new Promise((resolve, reject) => {
        const request = indexedDB.open("riffle", 1);
        request.onupgradeneeded = () => request.result.createObjectStore("texts");
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
    });
}
