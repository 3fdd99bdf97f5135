// Conversations in files: JSON for another browser, Markdown for people.

import { assembled, newId } from "./conversations.js";
import { keepText, keptDocument } from "./document-texts.js";

const FORMAT = "riffle-conversations";

/** All conversations with their documents, as the text of a JSON file. */
export async function exported(conversations) {
    const documents = {};
    for (const { id } of conversations.flatMap(({ nodes }) => [...nodes.values()]).flatMap((message) => message.documents ?? [])) {
        // A text that this browser no longer has is left out.
        documents[id] ??= await keptDocument(id).catch(() => undefined);
    }
    const plain = conversations.map(({ nodes, messages, ...header }) => ({ ...header, nodes: [...nodes.values()] }));
    return JSON.stringify({ format: FORMAT, version: 1, conversations: plain, documents }, null, 1);
}

/** The shown branch of a conversation, as Markdown. */
export function asMarkdown({ title, system, messages }) {
    const parts = [`# ${title}`];
    if (system) {
        parts.push(`## Instructions\n\n${system}`);
    }
    for (const message of messages) {
        const documents = (message.documents ?? []).map(({ name }) => `*Document: ${name}*`);
        parts.push([message.role === "user" ? "## Question" : "## Answer", ...documents, message.text].filter(Boolean).join("\n\n"));
    }
    return `${parts.join("\n\n")}\n`;
}

/** The conversations of a file's text; their documents are kept. An error's message is a sentence for the user. */
export async function imported(text) {
    let file;
    try {
        file = JSON.parse(text);
    } catch {
        file = null;
    }
    if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
        throw new Error("This file holds no conversations of Riffle: choose one that “Export all” wrote.");
    }
    if (file.version !== 1) {
        throw new Error("A later version of Riffle wrote this file: open it there.");
    }
    for (const [id, document] of Object.entries(file.documents ?? {})) {
        if (typeof document?.text === "string") {
            const places = Array.isArray(document.places) ? document.places : [];
            await keepText(id, { text: document.text, places, hasLines: Boolean(document.hasLines) });
        }
    }
    return file.conversations.map(conversationOf).filter(({ nodes }) => nodes.size > 0);
}

function conversationOf(found) {
    const nodes = (Array.isArray(found.nodes) ? found.nodes : []).map(messageOf).filter(Boolean);
    const now = Date.now();
    const header = {
        id: idOf(found.id) ?? newId(),
        title: textOr(found.title, "Conversation").slice(0, 200),
        isNamed: Boolean(found.isNamed),
        created: Number(found.created) || now,
        changed: Number(found.changed) || now,
        leaf: idOf(found.leaf),
        system: textOr(found.system, ""),
    };
    return assembled(header, nodes);
}

/** A message of a file: only fields of the right kind. */
function messageOf(found) {
    const id = idOf(found?.id);
    if (!id || !["user", "assistant"].includes(found.role)) {
        return null;
    }
    const message = { id, parent: idOf(found.parent), role: found.role, created: Number(found.created) || 0, text: textOr(found.text, "") };
    if (found.role === "user") {
        const documents = Array.isArray(found.documents) ? found.documents.filter((document) => idOf(document?.id)) : [];
        message.documents = documents.map(({ id, name, kind, note, tokens }) => ({ id, name: textOr(name, "Document"), kind: textOr(kind, ""), note: textOr(note, ""), tokens: Number(tokens) || 0 }));
        return message;
    }
    const state = ["done", "stopped", "failed"].includes(found.state) ? found.state : "stopped";
    // Reports are not exported: they have many fields, and the page shows them by name.
    return { ...message, thought: textOr(found.thought, ""), state, progress: null, report: null, timings: null, isCut: Boolean(found.isCut), error: textOr(found.error, "") };
}

const textOr = (value, other) => (typeof value === "string" ? value : other);

const idOf = (value) => (typeof value === "string" && /^[\w-]{1,64}$/.test(value) ? value : null);

/** Hands a text to the user as a file. */
export function download(name, kind, text) {
    const address = URL.createObjectURL(new Blob([text], { type: kind }));
    const link = document.createElement("a");
    Object.assign(link, { href: address, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
