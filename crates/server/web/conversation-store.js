// Keeps conversations: headers and messages in this browser's IndexedDB, which has much more room than localStorage.
//
// When the page is closed, data that the database has not written goes to localStorage. The next page moves it to the
// database. Conversations in the earlier format lie in localStorage under the same keys. Tabs tell each other their
// changes.

import { openedWhenUsed } from "./database.js";

const HEADER = "riffle.conversation.";
const MESSAGE = "riffle.message.";

const act = openedWhenUsed("riffle.conversations", ["headers", "messages"]);

/** Data not yet written, by the id of a conversation: {header, messages}, with messages by id. */
const unwritten = new Map();

const channel = new BroadcastChannel("riffle.conversations");

/** Messages of other tabs before the page listens. */
let heard = [];
let listener = (news) => heard.push(news);
channel.addEventListener("message", ({ data }) => listener(data));
// A tab that is closing can send only this event, and so can tabs of earlier versions.
addEventListener("storage", ({ key, newValue }) => {
    if (key?.startsWith(MESSAGE) && newValue !== null) {
        const message = parse(newValue);
        listener({ id: conversationOf(key), header: null, messages: message ? [message] : [], isDeleted: false });
    }
});

/** Calls `listen({id, header, messages, isDeleted})` when another tab writes or deletes parts of a conversation. */
export function listenToOtherTabs(listen) {
    listener = listen;
    heard.forEach(listen);
    heard = [];
}

/** All kept data: [{header, messages}], one entry for each conversation. */
export async function readAll() {
    await carryOver();
    const [headers, keys, messages] = await act("readonly", (transaction) => {
        const store = transaction.objectStore("messages");
        return [transaction.objectStore("headers").getAll(), store.getAllKeys(), store.getAll()];
    });
    const found = new Map(headers.result.map((header) => [header.id, { header, messages: [] }]));
    // The keys of messages begin with their conversation.
    keys.result.forEach((key, place) => found.get(key.split(".")[0])?.messages.push(messages.result[place]));
    return [...found.values()];
}

/** The kept data of one conversation: {header, messages}, or null. */
export async function readOne(id) {
    const [header, messages] = await act("readonly", (transaction) => [
        transaction.objectStore("headers").get(id),
        transaction.objectStore("messages").getAll(messagesOf(id)),
    ]);
    return header.result ? { header: header.result, messages: messages.result } : null;
}

/**
 * Writes the header of a conversation and the messages `changed`; a new conversation gets all its messages (`all`).
 * Rejects if the browser has no room. The next call then writes the data too.
 */
export async function write(header, changed, all) {
    const { id } = header;
    const before = unwritten.get(id);
    const task = { header, messages: new Map([...(before?.messages ?? []), ...changed.map((message) => [message.id, message])]) };
    unwritten.set(id, task);
    let written = [];
    await act("readwrite", (transaction) => {
        const headers = transaction.objectStore("headers");
        const known = headers.getKey(id);
        known.onsuccess = () => {
            written = known.result === undefined ? all : [...task.messages.values()];
            headers.put(header, id);
            written.forEach((message) => transaction.objectStore("messages").put(message, `${id}.${message.id}`));
        };
    });
    if (unwritten.get(id) === task) {
        unwritten.delete(id);
    }
    channel.postMessage({ id, header, messages: written, isDeleted: false });
}

/** Deletes a conversation. Rejects if the deletion failed. */
export async function erase(id) {
    unwritten.delete(id);
    await act("readwrite", (transaction) => {
        transaction.objectStore("headers").delete(id);
        transaction.objectStore("messages").delete(messagesOf(id));
    });
    keysOf(id).forEach((key) => localStorage.removeItem(key));
    channel.postMessage({ id, header: null, messages: [], isDeleted: true });
}

/** Keeps the unwritten data in localStorage at once, for the next page. It has room for about 5 MB. */
export function leaveUnwritten() {
    for (const [id, { header, messages }] of unwritten) {
        try {
            for (const message of messages.values()) {
                localStorage.setItem(`${MESSAGE}${id}.${message.id}`, JSON.stringify(message));
            }
            localStorage.setItem(HEADER + id, JSON.stringify(header));
        } catch {
            // The page ends now. A message told the user when the database had no room.
        }
    }
}

/** Moves the data in localStorage to the database. Newer data of the database stays. */
async function carryOver() {
    const found = Object.keys(localStorage)
        .filter((key) => key.startsWith(HEADER) || key.startsWith(MESSAGE))
        .map((key) => ({ key, text: localStorage.getItem(key), value: parse(localStorage.getItem(key)) }))
        .filter(({ value }) => value?.id);
    if (found.length === 0) {
        return;
    }
    await act("readwrite", (transaction) => {
        for (const { key, value } of found) {
            if (key.startsWith(HEADER)) {
                putUnlessOlder(transaction.objectStore("headers"), key.slice(HEADER.length), value, "changed");
            } else {
                putUnlessOlder(transaction.objectStore("messages"), key.slice(MESSAGE.length), value, "touched");
            }
        }
    });
    // Another tab may have written meanwhile.
    found.filter(({ key, text }) => localStorage.getItem(key) === text).forEach(({ key }) => localStorage.removeItem(key));
}

function putUnlessOlder(store, key, value, time) {
    const request = store.get(key);
    request.onsuccess = () => {
        if ((request.result?.[time] ?? 0) <= (value[time] ?? 0)) {
            store.put(value, key);
        }
    };
}

/** The keys of a conversation's messages in the database. */
function messagesOf(id) {
    return IDBKeyRange.bound(`${id}.`, `${id}.\uffff`);
}

function keysOf(id) {
    return Object.keys(localStorage).filter((key) => key === HEADER + id || key.startsWith(`${MESSAGE}${id}.`));
}

function conversationOf(key) {
    return key.slice(MESSAGE.length).split(".")[0];
}

function parse(text) {
    try {
        return JSON.parse(text);
    } catch {
        return null;
    }
}
