// Requests answers: the request, its stream, and the parts that are kept.

import { leaveUnwritten } from "./conversation-store.js";
import { isUnderWay, saveConversation } from "./conversations.js";
import { textOf } from "./document-texts.js";
import { framed } from "./framing.js";
import { streamAnswer } from "./server.js";
import { serverState } from "./server-state.js";
import { samplingOf, settings } from "./settings.js";

const SAVE_EVERY_MS = 2000;

/** Requests under way, by the id of their conversation. */
const running = new Map();

/** True if this tab requested the answer that is being written in this conversation. */
export function isRunning(conversation) {
    return running.has(conversation.id);
}

/**
 * Ends the answer that is being written in this conversation. The server stops at once and keeps the text that it read.
 */
export function stopAnswer(conversation) {
    running.get(conversation.id)?.abort();
}

/**
 * Requests or continues `answer`, the last message of a conversation. `changed(conversation, answer)` is called for
 * every change, and `keep(conversation, answer)` at intervals.
 */
export async function writeAnswer(conversation, answer, changed, keep) {
    const control = new AbortController();
    running.set(conversation.id, control);
    Object.assign(answer, { state: "waiting", progress: null, report: null, timings: null, isCut: false, error: "" });
    if (!answer.text) {
        answer.thought = "";
    }
    changed(conversation, answer);
    const saving = setInterval(() => keep(conversation, answer), SAVE_EVERY_MS);
    try {
        const body = await bodyOf(conversation, answer);
        for await (const chunk of streamAnswer(body, control.signal)) {
            take(answer, chunk);
            changed(conversation, answer);
        }
        answer.state = "done";
    } catch (error) {
        if (control.signal.aborted) {
            answer.state = "stopped";
        } else {
            answer.state = "failed";
            answer.error = error.message;
        }
    } finally {
        clearInterval(saving);
        running.delete(conversation.id);
        conversation.changed = Date.now();
        changed(conversation, answer);
    }
}

/** Stops every answer and keeps its text so far, as when the page is closed. */
export function stopAll(conversations) {
    for (const conversation of conversations.filter(isRunning)) {
        stopAnswer(conversation);
        const answer = conversation.messages.at(-1);
        if (isUnderWay(answer)) {
            saveConversation(conversation, { ...answer, state: "stopped" });
        }
    }
    leaveUnwritten();
}

/**
 * Lets the server read the documents of the next question, after the conversation. `show(progress)` shows its progress.
 */
export async function readAhead(conversation, documents, signal, show) {
    const question = { role: "user", text: "", documents };
    const messages = await messagesOf(conversation, [...conversation.messages, question], (document) => document.text);
    // The low priority lets questions of other users go first.
    const body = { messages, max_tokens: 1, riffle: { ...policies(), priority: -1 } };
    for await (const chunk of streamAnswer(body, signal)) {
        if (chunk.riffle?.progress) {
            show(chunk.riffle.progress);
        }
    }
}

function take(answer, chunk) {
    const choice = chunk.choices?.[0];
    const progress = chunk.riffle?.progress;
    if (progress) {
        answer.state = "reading";
        answer.progress = { read: progress.tokens_read, tokens: progress.tokens, seconds_left: progress.seconds_left };
    } else if (chunk.riffle) {
        answer.report = chunk.riffle;
    }
    if (chunk.timings) {
        answer.timings = chunk.timings;
    }
    const { content, reasoning_content: thought } = choice?.delta ?? {};
    if (content || thought) {
        answer.state = "answering";
        answer.text += content ?? "";
        answer.thought += thought ?? "";
    }
    if (choice?.finish_reason) {
        answer.isCut = choice.finish_reason === "length";
    }
}

/** The request for the rest of `answer`, after its text so far. */
async function bodyOf(conversation, answer) {
    const before = conversation.messages.slice(0, conversation.messages.indexOf(answer));
    const messages = await messagesOf(conversation, before, ({ id }) => textOf(id));
    const body = { messages, ...samplingOf(answer), riffle: { ...policies(), audit: settings.audit } };
    if (answer.text && serverState.status?.has_chat_template === false) {
        // Without a template the model reads the texts one after the other, so the answer continues its own text.
        messages.at(-1).content += answer.text;
    } else if (answer.text) {
        messages.push({ role: "assistant", content: answer.text });
        body.continue_final_message = true;
    }
    return body;
}

function policies() {
    const { prefill, decode } = settings;
    return { ...(prefill && { prefill }), ...(decode && { decode }) };
}

/** Messages in the server's form. Users and models take turns, so the messages of one turn become one message. */
async function messagesOf(conversation, messages, text) {
    const sent = conversation.system ? [{ role: "system", content: conversation.system }] : [];
    for (const message of messages) {
        const content = message.role === "user" ? await questionOf(message, text) : message.text;
        if (!content || (message.role === "assistant" && isUnderWay(message))) {
            continue;
        }
        if (sent.at(-1)?.role === message.role) {
            sent.at(-1).content += `\n\n${content}`;
        } else {
            sent.push({ role: message.role, content });
        }
    }
    return sent;
}

/** Documents come first, so a later question about them finds them read. */
async function questionOf(message, text) {
    const hasTemplate = serverState.status?.has_chat_template !== false;
    let content = "";
    for (const document of message.documents) {
        content += framed(document.name, await text(document), hasTemplate);
    }
    return content + message.text;
}
