// Conversations: trees of messages, kept in this browser alone.
//
// A conversation is {id, title, isNamed, created, changed, leaf, system}. Its messages are kept one by one, so tabs
// that write at the same time lose nothing: their additions are two branches. A message is {id, parent, role, created,
// text, …}. A user's message has documents: [{id, name, kind, note, tokens}]. A model's message has thought, state,
// progress, report, timings, isCut, error and touched, the time of its latest save. Its state is "waiting", "reading",
// "answering", "done", "stopped" or "failed".
//
// In memory a conversation also has `nodes`, all messages by id, and `messages`, the messages from the first to the
// leaf.

import { erase, readAll, readOne, write } from "./conversation-store.js";
import { dropTexts } from "./document-texts.js";

/** If no tab has saved an answer for this time, its writing has ended. */
const SILENCE_MS = 8000;

/** A new conversation. It is kept after its first message. */
export function createConversation(system = "") {
    const now = Date.now();
    return { id: newId(), title: "New conversation", isNamed: false, created: now, changed: now, leaf: null, system, nodes: new Map(), messages: [] };
}

/** Every conversation, the latest first. Rejects if this browser cannot read its data. */
export async function loadConversations() {
    const conversations = [];
    for (const { header, messages } of await readAll()) {
        const conversation = assembled(header, messages);
        if (header.messages) {
            await saveConversation(conversation, ...conversation.nodes.values());
        }
        conversations.push(conversation);
    }
    return conversations.filter(({ nodes }) => nodes.size > 0).sort((a, b) => b.changed - a.changed);
}

/** A conversation as it is kept, or null. */
export async function loadConversation(id) {
    const kept = await readOne(id);
    return kept && assembled(kept.header, kept.messages);
}

/** A conversation of its header and its messages. */
export function assembled(header, messages) {
    const { messages: line, ...rest } = header;
    const conversation = { system: "", leaf: null, ...rest, nodes: new Map(), messages: [] };
    // A conversation of an earlier format is one list of messages.
    for (const message of Array.isArray(line) ? line : []) {
        const id = newId();
        conversation.nodes.set(id, { created: header.created, ...message, id, parent: conversation.leaf });
        conversation.leaf = id;
    }
    for (const message of messages) {
        conversation.nodes.set(message.id, message);
    }
    if (!conversation.nodes.has(conversation.leaf)) {
        conversation.leaf = latestBelow(conversation, null);
    }
    conversation.nodes.forEach(stopIfSilent);
    showPath(conversation);
    return conversation;
}

/** Keeps a conversation and some of its messages. Resolves to true if there was room. */
export async function saveConversation(conversation, ...messages) {
    if (conversation.nodes.size === 0) {
        return true;
    }
    const { nodes, messages: path, ...header } = conversation;
    for (const message of messages) {
        message.touched = Date.now();
    }
    try {
        await write(header, messages, [...nodes.values()]);
        return true;
    } catch {
        return false;
    }
}

/** Deletes a conversation with its documents. Rejects if the deletion failed. */
export async function deleteConversation(conversation) {
    await erase(conversation.id);
    const documents = [...conversation.nodes.values()].flatMap((message) => message.documents ?? []);
    await dropTexts(documents.map((document) => document.id));
}

/** Adds a question after `parent` with an empty answer, and returns both. */
export function addQuestion(conversation, text, documents, parent = conversation.leaf) {
    const question = { role: "user", text, documents };
    add(conversation, question, parent);
    if (!conversation.isNamed && conversation.nodes.size === 1) {
        conversation.title = titleOf(text, documents);
    }
    return [question, addAnswer(conversation, question.id)];
}

/** Adds an empty answer. */
export function addAnswer(conversation, parent) {
    const answer = { role: "assistant", text: "", thought: "", state: "waiting", progress: null, report: null, timings: null, isCut: false, error: "" };
    return add(conversation, answer, parent);
}

function add(conversation, message, parent) {
    const now = Date.now();
    Object.assign(message, { id: newId(), parent, created: now, touched: now });
    conversation.nodes.set(message.id, message);
    conversation.leaf = message.id;
    conversation.changed = now;
    showPath(conversation);
    return message;
}

/** A message and its alternatives, the oldest first. */
export function alternatives(conversation, message) {
    const all = [...conversation.nodes.values()].filter(({ parent }) => (parent ?? null) === (message.parent ?? null));
    return all.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
}

/** Shows a message and its latest branch. */
export function goTo(conversation, message) {
    conversation.leaf = latestBelow(conversation, message.id);
    showPath(conversation);
}

function latestBelow(conversation, id) {
    const children = [...conversation.nodes.values()].filter(({ parent }) => (parent ?? null) === id);
    const latest = children.sort((a, b) => a.created - b.created).at(-1);
    return latest ? latestBelow(conversation, latest.id) : id;
}

function showPath(conversation) {
    const path = [];
    const seen = new Set();
    for (let id = conversation.leaf; id && conversation.nodes.has(id) && !seen.has(id); id = conversation.nodes.get(id).parent) {
        seen.add(id);
        path.unshift(conversation.nodes.get(id));
    }
    conversation.messages = path;
}

/** Takes a message that another tab has kept. A view at the end follows additions there. */
export function takeMessage(conversation, message) {
    const own = conversation.nodes.get(message.id);
    if (own) {
        Object.assign(own, message);
    } else {
        conversation.nodes.set(message.id, message);
    }
    if ((message.parent ?? null) === conversation.leaf && message.id !== conversation.leaf) {
        conversation.leaf = message.id;
    }
    showPath(conversation);
}

/** True if this tab or another works on a message. */
export function isUnderWay(message) {
    return message.role === "assistant" && ["waiting", "reading", "answering"].includes(message.state);
}

/** Marks an answer as stopped if no tab works on it. Returns true if it did. */
export function stopIfSilent(message) {
    const isSilent = isUnderWay(message) && Date.now() - (message.touched ?? 0) > SILENCE_MS;
    if (isSilent) {
        message.state = "stopped";
    }
    return isSilent;
}

/** Tokens of the context that the conversation takes, and true if some are estimated. */
export function tokensOf(conversation) {
    let tokens = Math.ceil(conversation.system.length / 3);
    let isGuess = tokens > 0;
    for (const message of conversation.messages) {
        const { timings } = message;
        if (message.role === "user") {
            for (const document of message.documents) {
                tokens += document.tokens;
            }
            tokens += Math.ceil(message.text.length / 3);
            isGuess = true;
        } else if (timings) {
            tokens = timings.cache_n + timings.prompt_n + timings.predicted_n;
            isGuess = false;
        } else {
            tokens += Math.ceil(message.text.length / 3);
        }
    }
    return { tokens, isGuess };
}

/** An id that no other conversation, message or document has. */
export function newId() {
    const bytes = crypto.getRandomValues(new Uint8Array(12));
    return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function titleOf(text, documents) {
    const line = text.trim().replace(/\s+/g, " ") || documents[0]?.name || "";
    return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line || "New conversation";
}
