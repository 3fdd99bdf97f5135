// Conversations, kept in this browser alone.
//
// A conversation is {id, title, isNamed, created, changed, messages}. A message of the user is
// {role: "user", text, documents: [{id, name, kind, note, tokens}]}; one of the model is
// {role: "assistant", text, thought, state, progress, report, timings, isCut, error}, whose state is
// "waiting", "reading", "answering", "done", "stopped" or "failed".

import { dropTexts } from "./document-texts.js";

const PREFIX = "riffle.conversation.";

/** A new conversation, which is kept once it has a message. */
export function createConversation() {
    const now = Date.now();
    return { id: newId(), title: "New conversation", isNamed: false, created: now, changed: now, messages: [] };
}

/** Every conversation, the latest first. */
export function loadConversations() {
    const found = [];
    for (const key of Object.keys(localStorage)) {
        if (key.startsWith(PREFIX)) {
            const conversation = parse(localStorage.getItem(key));
            if (conversation) {
                found.push(conversation);
            }
        }
    }
    return found.sort((a, b) => b.changed - a.changed);
}

/** Keeps a conversation. Returns whether there was room. */
export function saveConversation(conversation) {
    if (conversation.messages.length === 0) {
        return true;
    }
    try {
        localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
        return true;
    } catch {
        return false;
    }
}

/** Deletes a conversation with its documents. */
export async function deleteConversation(conversation) {
    localStorage.removeItem(PREFIX + conversation.id);
    await dropTexts(conversation.messages.flatMap((message) => message.documents ?? []).map((document) => document.id));
}

/** Adds a question and the answer that is to come, and returns the answer. */
export function addQuestion(conversation, text, documents) {
    const answer = newAnswer();
    conversation.messages.push({ role: "user", text, documents }, answer);
    conversation.changed = Date.now();
    if (!conversation.isNamed && conversation.messages.length === 2) {
        conversation.title = titleOf(text, documents);
    }
    return answer;
}

/** An answer of which nothing is there yet. */
export function newAnswer() {
    return { role: "assistant", text: "", thought: "", state: "waiting", progress: null, report: null, timings: null, isCut: false, error: "" };
}

/** True if a message is being worked on. */
export function isUnderWay(message) {
    return message.role === "assistant" && ["waiting", "reading", "answering"].includes(message.state);
}

/** Tokens that the conversation takes of the context, and whether some are guessed. */
export function tokensOf(conversation) {
    let tokens = 0;
    let isGuess = false;
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

/** An id that no other conversation or document has. */
export function newId() {
    const bytes = crypto.getRandomValues(new Uint8Array(12));
    return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function titleOf(text, documents) {
    const line = text.trim().replace(/\s+/g, " ") || documents[0]?.name || "";
    return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line || "New conversation";
}

function parse(text) {
    try {
        const conversation = JSON.parse(text);
        if (!Array.isArray(conversation.messages)) {
            return null;
        }
        for (const message of conversation.messages) {
            // Closing the page stops the answer that was under way.
            if (isUnderWay(message)) {
                message.state = "stopped";
            }
        }
        return conversation;
    } catch {
        return null;
    }
}
