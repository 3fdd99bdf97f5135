// The texts of documents, which are too long for localStorage: they lie in IndexedDB.

const texts = new Map();
let opened = null;

/** Keeps a text. Resolves to whether it will be there after a reload. */
export async function keepText(id, text) {
    texts.set(id, text);
    try {
        await act("readwrite", (store) => store.put(text, id));
        return true;
    } catch {
        return false;
    }
}

/** A text that was kept. */
export async function textOf(id) {
    if (!texts.has(id)) {
        let text;
        try {
            text = await act("readonly", (store) => store.get(id));
        } catch {
            text = undefined;
        }
        if (text === undefined) {
            throw new Error("This browser no longer has the text of a document of this conversation: begin a new one.");
        }
        texts.set(id, text);
    }
    return texts.get(id);
}

/** Forgets texts. */
export async function dropTexts(ids) {
    for (const id of ids) {
        texts.delete(id);
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
