// Databases of this browser (IndexedDB).

/**
 * A database with these stores, opened when it is first used. Returns `act(mode, work)`: `work` gets a transaction of all stores and returns what it
 * likes, such as requests. `act` resolves to that once everything is done, and rejects if nothing is.
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
            // Who carries old messages over removes them elsewhere: they have to lie on the disk then.
            const transaction = database.transaction(stores, mode, { durability: "strict" });
            transaction.oncomplete = () => resolve(made);
            transaction.onabort = () => reject(transaction.error ?? new Error("nothing was written"));
            const made = work(transaction);
        });
    };
}
