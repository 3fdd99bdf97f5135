// Dialogs: each resolves to what the user said, or to null.

import { byId, setText } from "./elements.js";

/** Asks for the server's key. `wasRefused` says that the one there was does not fit. */
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

/** Asks whether to delete a conversation. */
export async function askToDelete(name) {
    setText(byId("delete-line"), `Delete “${name}” with its documents? This cannot be undone.`);
    return (await show("delete-dialog")) === "ok";
}

/** Shows the text of a document as the model reads it. */
export function showText(name, text) {
    const most = 200_000;
    setText(byId("text-title"), name);
    setText(byId("text-line"), text.length > most ? "This is how its beginning reaches the model." : "This is how it reaches the model.");
    setText(byId("text-body"), text.slice(0, most));
    byId("text-dialog").querySelector("pre").scrollTop = 0;
    return show("text-dialog");
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
