// Dialogs: each resolves to the user's answer, or to null.

import { byId, element, setText } from "./elements.js";

/** Asks for the server's key. `wasRefused` is true if the server refused the earlier key. */
export async function askForKeyText(wasRefused) {
    const line = wasRefused ? "The server does not know this key. Enter another." : "This server asks for a key. It stays in this tab until you close it.";
    setText(byId("key-line"), line);
    byId("key-field").value = "";
    return (await show("key-dialog")) === "ok" ? byId("key-field").value.trim() || null : null;
}

/** Asks for a conversation's name. */
export async function askForName(name) {
    byId("name-field").value = name;
    byId("name-field").select();
    return (await show("name-dialog")) === "ok" ? byId("name-field").value.trim() || null : null;
}

/** Asks for permission to delete a conversation. */
export async function askToDelete(name) {
    setText(byId("delete-line"), `Delete “${name}” with its documents? This cannot be undone.`);
    return (await show("delete-dialog")) === "ok";
}

/** Characters of a document that are shown at once. */
const MOST_SHOWN = 200_000;

/** Shows the text of a document as the model reads it; a passage from `start` to `end` is marked and in view. */
export function showText(name, text, start, end) {
    const from = start === undefined ? 0 : Math.max(0, start - MOST_SHOWN / 2);
    const shown = text.slice(from, from + MOST_SHOWN);
    const body = byId("text-body");
    setText(byId("text-title"), name);
    setText(byId("text-line"), shown.length < text.length ? "A part of the text as it reaches the model." : "This is how it reaches the model.");
    if (start === undefined) {
        body.replaceChildren(shown);
    } else {
        const marked = element("mark", {}, text.slice(start, end));
        body.replaceChildren(text.slice(from, start), marked, text.slice(end, from + MOST_SHOWN));
    }
    const closed = show("text-dialog");
    body.scrollTop = 0;
    body.querySelector("mark")?.scrollIntoView({ block: "center" });
    return closed;
}

/** True if a dialog is open. */
export function isDialogOpen() {
    return document.querySelector("dialog[open]") !== null;
}

/** Opens a dialog, and resolves to the value of the button that closed it; Escape gives "". */
export function show(id) {
    const dialog = byId(id);
    dialog.returnValue = "";
    return new Promise((resolve) => {
        dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
        dialog.showModal();
    });
}
