// The documents that go with the next question: read, counted, and read ahead by the model.

import { isRunning, readAhead } from "./answers.js";
import { newId } from "./conversations.js";
import { readDocument } from "./documents.js";
import { announce, button, byId, element, notify, setText } from "./elements.js";
import { bytes, count, countOf } from "./numbers.js";
import { tokenize } from "./server.js";
import { serverState } from "./server-state.js";

/** Shorter documents are read with their question. */
const LEAST_AHEAD_TOKENS = 256;

/** Number of a folder's problems that are shown with file names. */
const MOST_TOLD = 2;

/**
 * The tray. `current()` is the conversation, `taken()` its tokens with the question. `actions` are {changed(),
 * openDocument(document)}.
 */
export class DocumentTray {
    #documents = [];
    #current;
    #taken;
    #actions;
    #ahead = null;
    #hasRefused = false;
    /** Grows with each opened conversation: work for an earlier one is dropped. */
    #turn = 0;

    constructor(current, taken, actions) {
        this.#current = current;
        this.#taken = taken;
        this.#actions = actions;
    }

    get isEmpty() {
        return this.#documents.length === 0;
    }

    /** True once every document is read and counted. */
    get isReady() {
        return this.#documents.every(({ tokens }) => tokens !== null);
    }

    get tokens() {
        return this.#documents.reduce((sum, { tokens }) => sum + (tokens ?? 0), 0);
    }

    /** Returns the documents and empties the tray. The server keeps the parts that the model has read. */
    take() {
        const documents = this.#documents;
        this.clear();
        return documents;
    }

    /** True at the first call after a document was refused, if the tray has none. */
    takeRefused() {
        const isAlone = this.#hasRefused && this.isEmpty;
        this.#hasRefused = false;
        return isAlone;
    }

    /** Empties it. */
    clear() {
        this.#turn += 1;
        this.#hasRefused = false;
        this.#stopAhead();
        this.#documents = [];
        this.#show();
    }

    /** Reads files, `{file, name}`, and adds their texts. Of a folder, files without text are left out. */
    async add(files) {
        const turn = this.#turn;
        const problems = [];
        notify("");
        this.#stopAhead();
        const added = files.map(({ file, name }) => ({ file, id: newId(), name, kind: "", note: "", tokens: null, text: "", line: "Waits to be read" }));
        this.#documents.push(...added);
        this.#show();
        for (const document of added) {
            if (!this.#documents.includes(document)) {
                continue;
            }
            try {
                await this.#read(document);
                announce(`${document.name} added, ${countOf(document.tokens, "token")}`);
            } catch (error) {
                this.#documents = this.#documents.filter((other) => other !== document);
                problems.push(error.message);
            }
            this.#show();
        }
        if (turn === this.#turn) {
            this.#hasRefused = problems.length > 0;
            const more = problems.length - MOST_TOLD;
            notify([...problems.slice(0, MOST_TOLD), ...(more > 0 ? [`${countOf(more, "further file")} left out.`] : [])].join(" "));
            this.#startAhead();
        }
    }

    async #read(document) {
        const show = (line) => {
            document.line = line;
            this.#show();
        };
        show("Reading the file");
        const found = await readDocument(document);
        const most = serverState.status?.body_bytes ?? Infinity;
        if (found.text.length > most) {
            throw new Error(`${document.name} has a text of ${bytes(found.text.length)}, and the server takes ${bytes(most)} at most.`);
        }
        show("Counting tokens");
        const { count: tokens, max_model_len: context } = await tokenize(found.text);
        const taken = this.#taken();
        if (taken + tokens >= context) {
            const rest = taken > 0 ? `, of which ${count(taken)} are taken` : "";
            throw new Error(
                `${document.name} has ${count(tokens)} tokens. The context holds ${count(context)}${rest}. Add a shorter document, or a part of it.`,
            );
        }
        Object.assign(document, found, { tokens, line: "", file: null });
    }

    /** Lets the server read the documents while the user writes. A question continues from there. */
    async #startAhead() {
        const conversation = this.#current();
        if (!this.isReady || this.tokens < LEAST_AHEAD_TOKENS || isRunning(conversation)) {
            return;
        }
        const control = new AbortController();
        this.#ahead = control;
        const tell = (line) => control === this.#ahead && setText(byId("reading-ahead"), line);
        tell("The model begins to read");
        try {
            await readAhead(conversation, this.#documents, control.signal, ({ tokens_read: read, tokens }) => {
                tell(`The model reads: ${count(read)} of ${countOf(tokens, "token")}`);
            });
            tell("The model has read this. Questions about it are answered at once.");
        } catch {
            // The question reads the documents itself, and its failure is shown.
            tell("");
        }
    }

    #stopAhead() {
        this.#ahead?.abort();
        this.#ahead = null;
        setText(byId("reading-ahead"), "");
    }

    #show() {
        byId("composer-documents").replaceChildren(...this.#documents.map((document) => this.#chip(document)));
        this.#actions.changed();
    }

    #chip(document) {
        const details = document.line || [document.kind, countOf(document.tokens, "token"), document.note].filter(Boolean).join(" · ");
        const open = button("", () => this.#actions.openDocument(document), { class: "document" });
        open.disabled = document.tokens === null;
        open.append(element("span", { class: "document-name" }, document.name), element("span", { class: "document-size" }, details));
        const remove = button("", () => this.#remove(document), { class: "icon delete", "aria-label": `Leave out ${document.name}` });
        return element("li", {}, open, remove);
    }

    #remove(document) {
        this.#stopAhead();
        this.#documents = this.#documents.filter((other) => other !== document);
        announce(`${document.name} left out`);
        this.#show();
        byId("question").focus();
        if (!this.isEmpty) {
            this.#startAhead();
        }
    }
}
