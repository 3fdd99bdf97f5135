// Databases of this browser (IndexedDB).

/**
 * A database with these stores, opened at its first use. Returns `act(mode, work)`: `work` gets a transaction of all
 * stores and may return any value, such as requests. `act` resolves to this value when the transaction is complete, and
 * rejects if it fails.
 */
export function openedWhenUsed(name, stores) {
    let opened = null;
    const forget = () => (opened = null);
    const open = () =>
        new Promise((resolve, reject) => {
            const request = indexedDB.open(name, 1);
            request.onupgradeneeded = () => stores.forEach((store) => request.result.createObjectStore(store));
            request.onsuccess = () => resolve(Object.assign(request.result, { onclose: forget }));
            request.onerror = () => reject(request.error);
        });
    return async (mode, work) => {
        opened ??= open();
        opened.catch(forget);
        const database = await opened;
        return new Promise((resolve, reject) => {
            // The caller may delete its other copy of the data afterwards, so the data must be on the disk.
            const transaction = database.transaction(stores, mode, { durability: "strict" });
            transaction.oncomplete = () => resolve(made);
            transaction.onabort = () => reject(transaction.error ?? new Error("nothing was written"));
            const made = work(transaction);
        });
    };
}
