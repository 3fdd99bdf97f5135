// Requests to the server.

const KEY = "riffle.key";
const MODEL = "riffle.model";

/** The folder of the server's paths. A proxy may serve it below another path. */
const BASE = new URL("../", import.meta.url);

/** The reason for a failed request. `message` is the server's line. */
export class ServerError extends Error {
    constructor(message, status = 0) {
        super(message);
        this.name = "ServerError";
        this.status = status;
    }
}

let keyAsker = null;
let askingNow = null;

/** Sets the function that asks the user for a key. It gets the server's line, and resolves to a key or to null. */
export function setKeyAsker(ask) {
    keyAsker = ask;
}

/** True if a key is kept. It is kept until the tab is closed. */
export function hasKey() {
    return Boolean(sessionStorage.getItem(KEY));
}

/** Forgets the key. */
export function forgetKey() {
    sessionStorage.removeItem(KEY);
}

/** Asks the user for a key. Resolves to true if the user gave one. */
export async function askForKey() {
    // Several requests may be refused at a time, but the user is asked once.
    askingNow ??= keyAsker(hasKey()).finally(() => {
        askingNow = null;
    });
    const key = await askingNow;
    if (key) {
        sessionStorage.setItem(KEY, key);
    }
    return Boolean(key);
}

/** The model that the user has chosen among several; empty for the server's first. */
export function chosenModel() {
    try {
        return localStorage.getItem(MODEL) ?? "";
    } catch {
        return "";
    }
}

/** Keeps the choice of a model in this browser. */
export function chooseModel(name) {
    try {
        localStorage.setItem(MODEL, name);
    } catch {
        // Without storage the server's first model answers.
    }
}

/** The fields of a request that name its model. */
function modelField() {
    const model = chosenModel();
    return model ? { model } : {};
}

/** The server's state, or an error. It never asks for a key. */
export async function getStatus() {
    const model = chosenModel();
    try {
        return await (await send(model ? `status?model=${encodeURIComponent(model)}` : "status", {})).json();
    } catch (error) {
        if (error.status === 404 && model) {
            // The server no longer has this model.
            chooseModel("");
            return getStatus();
        }
        throw error;
    }
}

/** Tokens of a text: `{count, max_model_len}`. */
export async function tokenize(text, signal) {
    return (await ask("tokenize", { ...modelField(), content: text }, signal)).json();
}

/** The chunks of an answer, when they arrive. */
export async function* streamAnswer(body, signal) {
    const response = await ask("v1/chat/completions", { ...modelField(), ...body, stream: true }, signal);
    let isWhole = false;
    for await (const data of events(response.body)) {
        if (data === "[DONE]") {
            isWhole = true;
            break;
        }
        const chunk = JSON.parse(data);
        if (chunk.error) {
            throw new ServerError(chunk.error.message, 500);
        }
        yield chunk;
    }
    if (!isWhole) {
        throw new ServerError("The connection ended before the answer did.");
    }
}

/** A file's text and its places, by the server's reader. */
export async function readFile(file, name) {
    const request = { method: "POST", headers: { "content-type": "application/octet-stream" }, body: file };
    return (await withKey(`documents?name=${encodeURIComponent(name)}`, request)).json();
}

/** Posts JSON. */
function ask(path, body, signal) {
    return withKey(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
}

/** Sends a request, and asks for a key if one is missing. */
async function withKey(path, request) {
    for (;;) {
        try {
            return await send(path, request);
        } catch (error) {
            if (error.status !== 401 || !(await askForKey())) {
                throw error;
            }
        }
    }
}

async function send(path, request) {
    const headers = { ...request.headers };
    const key = sessionStorage.getItem(KEY);
    if (key) {
        headers.authorization = `Bearer ${key}`;
    }
    let response;
    try {
        response = await fetch(new URL(path, BASE), { ...request, headers, cache: "no-store" });
    } catch (error) {
        if (error.name === "AbortError") {
            throw error;
        }
        throw new ServerError("The server cannot be reached. Is it still running?");
    }
    if (!response.ok) {
        throw await refusal(response);
    }
    return response;
}

async function refusal(response) {
    let message = `The server answered with status ${response.status}.`;
    try {
        const body = await response.json();
        message = body.error?.message ?? message;
    } catch {
        // A proxy between the page and the server may answer without JSON.
    }
    return new ServerError(message, response.status);
}

/** The data of server-sent events. */
async function* events(stream) {
    const reader = stream.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    try {
        for (;;) {
            const { done, value } = await read(reader);
            rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
            const lines = rest.split(/\r?\n/);
            rest = lines.pop();
            for (const line of lines) {
                if (line.startsWith("data:")) {
                    yield line.slice(5).trim();
                }
            }
            if (done) {
                return;
            }
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}

async function read(reader) {
    try {
        return await reader.read();
    } catch (error) {
        if (error.name === "AbortError") {
            throw error;
        }
        throw new ServerError("The connection to the server was lost.");
    }
}
